"""Connections to chosen workers of running servers: requests that are answered by one process and no other."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.server import Server

Auth = tuple[str, str] | str | None
TRIES = 200


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


class Line:
    """A connection that is kept, to the worker with that process id; made again when it was closed."""

    def __init__(self, server: Server, worker: int, timeout: float = 30) -> None:
        self.server = server
        self.worker = worker
        self._timeout = timeout
        self._connection: http.client.HTTPConnection | None = None

    @property
    def label(self) -> str:
        return f"{self.server.port}/{self.worker}"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, method: str, path: str, body: Any = None, auth: Auth = None) -> Answer:
        """`auth` is a token, or name and password. A connection that was closed while it was idle is made again, once."""
        headers = headers_of(auth)
        if body is not None and not isinstance(body, bytes):
            body, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        for last in (False, True):
            fresh = self._connection is None
            connection = self._connection = self._connection or self._connect()
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                return Answer(answer.status, answer.read(), dict(answer.headers))
            except TimeoutError:
                self.close()
                raise
            except (http.client.HTTPException, OSError):
                self.close()
                if last or fresh:
                    raise
        raise AssertionError("unreachable")

    def get(self, path: str, auth: Auth = None) -> Answer:
        return self.ask("GET", path, auth=auth)

    def glance(self, path: str, auth: Auth = None) -> int:
        """The status of a GET, for those who ask so often that `http.client` would have most of the machine. Never tried again."""
        connection = self._connection = self._connection or self._connect()
        lines = (f"GET {path} HTTP/1.1", "Host: a", *(f"{name}: {value}" for name, value in headers_of(auth).items()))
        connection.sock.sendall("\r\n".join((*lines, "", "")).encode())
        received = b""
        while (size := _size(received)) is None or len(received) < size:
            piece = connection.sock.recv(65536)
            if not piece:
                self.close()
                raise ConnectionError(f"worker {self.worker} broke off behind {received!r}")
            received += piece
        return int(received.split(maxsplit=2)[1])

    def _connect(self) -> http.client.HTTPConnection:
        """The workers of a master accept from one socket: tried until the right one has it."""
        others = []
        try:
            for _ in range(TRIES):
                connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=self._timeout)
                connection.connect()
                # The first answer says that somebody has accepted it.
                connection.request("GET", "/health/live")
                connection.getresponse().read()
                if _has(self.worker, connection.sock):
                    return connection
                others.append(connection)
        finally:
            for each in others:
                each.close()
        raise AssertionError(f"no connection came to worker {self.worker}")


def lines(*servers: Server) -> list[Line]:
    """One to each worker of these servers."""
    return [Line(server, worker) for server in servers for worker in server.workers()]


def _size(received: bytes) -> int | None:
    """Bytes of the whole answer, null until its head is there."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = re.search(rb"\r\ncontent-length: *(\d+)", received[:end], re.IGNORECASE)
    assert length, f"an answer without a length: {received[:end]!r}"
    return end + 4 + int(length[1])


def headers_of(auth: Auth) -> dict[str, str]:
    """What says who asks."""
    if auth is None:
        return {}
    if isinstance(auth, str):
        return {"Authorization": f"Bearer {auth}"}
    return {"Authorization": f"Basic {base64.b64encode(':'.join(auth).encode()).decode()}"}


def _has(process: int, ours: socket.socket) -> bool:
    """Whether that process holds the other end."""
    here, there = ours.getsockname()[1], ours.getpeername()[1]
    wanted = (f"0100007F:{there:04X}", f"0100007F:{here:04X}")
    inodes = {row[9] for row in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:]) if (row[1], row[2]) == wanted}
    for each in Path(f"/proc/{process}/fd").iterdir():
        try:
            if os.readlink(each) in {f"socket:[{inode}]" for inode in inodes}:
                return True
        except OSError:
            continue
    return False
