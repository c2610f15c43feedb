"""How a command on this machine finds the running server: its address and a secret in the data directory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class LocalServer:
    """A server of this machine, and the secret by which a command is its administrator."""

    url: str
    secret: str
    # Of https: SHA-256 of the certificates by which it is known, in place of any authority's word. Empty: http.
    certificates: tuple[str, ...] = ()


def write(data_dir: Path, url: str, certificates: Sequence[str] = (), secret: str | None = None) -> str:
    """Leave address and secret (a fresh one, when none is given) in `server.json` (0600); the secret."""
    secret = secret or secrets.token_urlsafe(32)
    target, fresh = data_dir / "server.json", data_dir / "server.json.new"
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"url": url, "secret": secret, "certificates": list(certificates)}, file)
    fresh.rename(target)
    return secret


def read(data_dir: Path) -> LocalServer | None:
    """The server that left its address there, if it still answers to its secret. Raises PermissionError for another user's."""
    try:
        left = json.loads((data_dir / "server.json").read_bytes())
        found = LocalServer(str(left["url"]), str(left["secret"]), tuple(map(str, left.get("certificates", ()))))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return found if _answers(found) else None


def _answers(server: LocalServer) -> bool:
    """By hand, in HTTP/1.0: an HTTP library would load TLS, which should not happen before gevent has patched it."""
    address = urlsplit(server.url)
    host, port = address.hostname or "", address.port or 80
    question = f"GET /api/v1/whoami HTTP/1.0\r\nHost: {address.netloc}\r\nAuthorization: Bearer {server.secret}\r\n\r\n"
    answer = b""
    with contextlib.suppress(OSError), _connected(server, host, port) as connection:
        connection.sendall(question.encode())
        while b"\n" not in answer and (piece := connection.recv(4096)):
            answer += piece
    return answer[:8] in {b"HTTP/1.0", b"HTTP/1.1"} and answer[9:12] == b"200"


def _connected(server: LocalServer, host: str, port: int) -> socket.socket:
    """Raises OSError, also for a server with another certificate."""
    connection = socket.create_connection((host, port), ANSWER_SECONDS)
    if not server.certificates:
        return connection
    try:
        secure = context().wrap_socket(connection)
        check_certificate(secure, server.certificates)
    except OSError:
        connection.close()
        raise
    return secure


def context() -> ssl.SSLContext:
    """For connections whose certificate `check_certificate` looks at, before anything is sent."""
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


def check_certificate(connection: ssl.SSLSocket, certificates: Sequence[str]) -> None:
    """Raises ConnectionError for a certificate that is none of these."""
    shown = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
    if shown not in certificates:
        connection.close()
        raise ConnectionError("another server answers there, or this one's certificate was replaced just now: try again")


def remove(data_dir: Path) -> None:
    """The server is going."""
    (data_dir / "server.json").unlink(missing_ok=True)
