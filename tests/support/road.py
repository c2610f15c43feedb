"""A road between a client and a server that breaks when a test says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gevent import socket
from gevent.pool import Pool
from gevent.server import StreamServer

PIECE = 65536


@dataclass(frozen=True)
class Passed:
    """A request that came along: its first line and its fields (names in lower case)."""

    method: str
    target: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Fate:
    """What becomes of a request. `answer`: this, and the server hears nothing; `cut`: so many bytes of the server's answer (its head
    counts) and then the connection breaks: 0: the server has done it, and nobody hears of it."""

    answer: bytes | None = None
    cut: int | None = None


@dataclass
class Road:
    """Forwards each request on a connection of its own. `fate` decides, asked once for each request."""

    port: int
    fate: Callable[[Passed], Fate | None] = lambda asked: None
    passed: list[Passed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = StreamServer(("127.0.0.1", 0), self._serve, spawn=Pool())
        self._server.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.stop(timeout=0.1)

    def count(self, method: str) -> int:
        return sum(each.method == method for each in self.passed)

    def _serve(self, client: Any, _address: Any) -> None:
        with contextlib.closing(client), contextlib.suppress(OSError, ValueError), client.makefile("rb") as lines:
            first = lines.readline().decode("latin-1").split()
            headers = {}
            while line := lines.readline().decode("latin-1").rstrip("\r\n"):
                name, _, value = line.partition(":")
                headers[name.strip().lower()] = value.strip()
            asked = Passed(first[0], first[1], headers)
            self.passed.append(asked)
            fate = self.fate(asked) or Fate()
            if fate.answer is not None:
                _copy_body(lines, headers, lambda piece: None)
                client.sendall(fate.answer)
            else:
                self._forward(client, lines, asked, fate.cut)

    def _forward(self, client: Any, lines: Any, asked: Passed, cut: int | None) -> None:
        fields = (f"{name}: {value}" for name, value in asked.headers.items() if name != "connection")
        head = [f"{asked.method} {asked.target} HTTP/1.1", *fields]
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.port))) as server:
            server.sendall("\r\n".join([*head, "connection: close", "", ""]).encode("latin-1"))
            _copy_body(lines, asked.headers, server.sendall)
            _copy(server.recv, float("inf") if cut is None else cut, client.sendall)
            if cut == 0:
                # Until the server has said it.
                server.recv(PIECE)


def refusal(status: int, *, retry_after: str | None = None, body: bytes = b"later\n") -> bytes:
    """An answer, as bytes."""
    told = "" if retry_after is None else f"Retry-After: {retry_after}\r\n"
    return f"HTTP/1.1 {status} No\r\n{told}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _copy_body(lines: Any, headers: dict[str, str], write: Callable[[bytes], Any]) -> None:
    """A body of a length, or in chunks."""
    if headers.get("transfer-encoding") != "chunked":
        _copy(lines.read1, int(headers.get("content-length", 0)), write)
        return
    size = None
    while size != 0:
        first = lines.readline()
        size = int(first, 16)
        write(first)
        _copy(lines.read1, size + 2, write)


def _copy(read: Callable[[int], bytes], left: float, write: Callable[[bytes], Any]) -> None:
    while left > 0 and (piece := read(int(min(PIECE, left)))):
        left -= len(piece)
        write(piece)
