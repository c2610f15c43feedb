"""How a command on this machine finds the running server: its address and a secret in the data directory.

    server.json          of a single node
    server-NAME.json     of each server of a cluster that uses this directory, perhaps from another machine
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
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


def file_name(instance: str | None) -> str:
    """Of the server that goes by this name in a cluster, null on a single node."""
    return "server.json" if instance is None else f"server-{instance}.json"


def write(data_dir: Path, server: LocalServer, instance: str | None = None) -> None:
    """Leave address and secret there (0600). Each worker of a server writes the same."""
    target = data_dir / file_name(instance)
    fresh = target.with_name(f"{target.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"url": server.url, "secret": server.secret, "certificates": list(server.certificates)}, file)
    fresh.rename(target)


def read(data_dir: Path) -> LocalServer | None:
    """A server that left its address there and still answers to its secret. Raises PermissionError for another user's."""
    for path in _all_paths(data_dir):
        left = _left(path)
        while left is not None:
            if _answers(left):
                return left
            # A certificate that was renewed since it was read is told there first.
            before, left = left, _left(path)
            if left == before:
                break
    return None


def certificates(data_dir: Path, secret: str) -> tuple[str, ...]:
    """Those by which the server with this secret is known at this moment: it may have renewed them since it was found."""
    return next((found.certificates for found in _all_left(data_dir) if found.secret == secret), ())


def _all_paths(data_dir: Path) -> Sequence[Path]:
    return data_dir / file_name(None), *sorted(data_dir.glob(file_name("*")))


def _all_left(data_dir: Path) -> Iterator[LocalServer]:
    left = (_left(path) for path in _all_paths(data_dir))
    return (found for found in left if found is not None)


def _left(path: Path) -> LocalServer | None:
    try:
        left = json.loads(path.read_bytes())
        return LocalServer(str(left["url"]), str(left["secret"]), tuple(map(str, left.get("certificates", ()))))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


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


def remove(data_dir: Path, secret: str, instance: str | None = None) -> None:
    """The server with this secret is gone; a successor's file stays."""
    path = data_dir / file_name(instance)
    left = _left(path)
    if left is not None and left.secret == secret:
        path.unlink(missing_ok=True)
