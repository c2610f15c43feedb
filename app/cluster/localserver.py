"""How a command on this machine finds the running server: its address and a secret in the data directory."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class LocalServer:
    """A server of this machine, and the secret by which a command is its administrator."""

    url: str
    secret: str


def write(data_dir: Path, url: str) -> str:
    """Leave address and a fresh secret in `server.json` (0600); the secret."""
    secret = secrets.token_urlsafe(32)
    target, fresh = data_dir / "server.json", data_dir / "server.json.new"
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"url": url, "secret": secret}, file)
    fresh.rename(target)
    return secret


def read(data_dir: Path) -> LocalServer | None:
    """The server that left its address there, if it still answers to its secret. Raises PermissionError for another user's."""
    try:
        left = json.loads((data_dir / "server.json").read_bytes())
        found = LocalServer(str(left["url"]), str(left["secret"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return found if _answers(found) else None


def _answers(server: LocalServer) -> bool:
    """By hand, in HTTP/1.0: an HTTP library would load TLS, which must not happen before gevent has patched it."""
    address = urlsplit(server.url)
    host, port = address.hostname or "", address.port or 80
    question = f"GET /api/v1/whoami HTTP/1.0\r\nHost: {address.netloc}\r\nAuthorization: Bearer {server.secret}\r\n\r\n"
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection((host, port), ANSWER_SECONDS) as connection:
        connection.sendall(question.encode())
        while b"\n" not in answer and (piece := connection.recv(4096)):
            answer += piece
    return answer[:8] in {b"HTTP/1.0", b"HTTP/1.1"} and answer[9:12] == b"200"


def remove(data_dir: Path) -> None:
    """The server is going."""
    (data_dir / "server.json").unlink(missing_ok=True)
