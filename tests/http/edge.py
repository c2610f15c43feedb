"""The sample application under a real gunicorn with our worker, and a client that speaks raw bytes to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.warm import Started, Wanted, servers

ROOT = Path(__file__).parents[2]

PATIENCE = 30.0


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait for a true value and return it; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(0.02)
    return value


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    raw_head: bytes = b""


@dataclass
class Wire:
    """One connection, byte by byte."""

    socket: socket.socket
    buffer: bytearray = field(default_factory=bytearray)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, method: str, target: str, *lines: str, body: bytes = b"") -> None:
        head = [f"{method} {target} HTTP/1.1", "Host: edge.test", *lines]
        self.send("\r\n".join([*head, "", ""]).encode("latin-1") + body)

    def ask(self, method: str, target: str, *lines: str, body: bytes = b"") -> Answer:
        self.request(method, target, *lines, body=body)
        return self.answer(method)

    def answer(self, method: str = "GET") -> Answer:
        """The next answer; a 100 counts as one."""
        head = self._until(b"\r\n\r\n")
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        assert len(fields) == len(dict(fields)), f"a header is there twice: {head!r}"
        status, headers = int(first.split(" ")[1]), dict(fields)
        return Answer(status, headers, self._body(method, status, headers), head)

    def rest(self) -> bytes:
        """All until the server closes; a reset raises."""
        while data := self.socket.recv(65536):
            self.buffer += data
        data, self.buffer = bytes(self.buffer), bytearray()
        return data

    def is_closed(self) -> bool:
        """Wait for the end of the connection, in whatever way."""
        with contextlib.suppress(ConnectionError):
            return self.rest() == b""
        return True

    def close(self) -> None:
        self.socket.close()

    def _until(self, mark: bytes) -> bytes:
        while (end := self.buffer.find(mark)) < 0:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError(bytes(self.buffer))
            self.buffer += data
        return self._take(end + len(mark))

    def _take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = self.socket.recv(1024 * 1024)
            if not data:
                raise EOFError(bytes(self.buffer[:200]))
            self.buffer += data
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def _body(self, method: str, status: int, headers: Mapping[str, str]) -> bytes:
        if method == "HEAD" or status in (100, 204, 304):
            return b""
        if headers.get("transfer-encoding") == "chunked":
            pieces = []
            while size := int(self._until(b"\r\n"), 16):
                pieces.append(self._take(size))
                assert self._take(2) == b"\r\n"
            assert self._take(2) == b"\r\n"
            return b"".join(pieces)
        return self._take(int(headers["content-length"])) if "content-length" in headers else self.rest()


class Edge:
    """gunicorn with the sample application; `folder` holds its files."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.errors = folder / "stderr"
        self.output = folder / "stdout"
        self._settings = settings
        # A client's context, where the settings are for https.
        self.tls: ssl.SSLContext | None = None
        self.process: Started | None = None
        self.port = 0

    def start(self) -> Edge:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ARKVORY_", "WEB_", "DATABASE_"))}
        # The sample has no database; a configured one keeps the master from starting its own.
        environment |= {"PORT": "0", "ARKVORY_BIND": "127.0.0.1", "ARKVORY_DATABASE_URL": "postgresql://127.0.0.1:1/none",
                        "SAMPLE_FOLDER": str(self.folder), **self._settings}
        output, errors = (os.open(each, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for each in (self.output, self.errors))
        wanted = Wanted("gunicorn", ["-c", "config/gunicorn.py", "tests.http.sample:app"], environment)
        self.process = servers.start(wanted, output, errors)
        self.port = until(self._listening)
        with self.wire() as wire:
            assert wire.ask("GET", "/ping").body == b"pong"
        return self

    def _listening(self) -> int | None:
        assert self.process is not None
        assert self.process.poll() is None, self.errors.read_text()
        found = re.search(r"Listening at: https?://127\.0\.0\.1:(\d+)", self.errors.read_text())
        return int(found.group(1)) if found else None

    @contextlib.contextmanager
    def wire(self) -> Iterator[Wire]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            if self.tls is None:
                yield Wire(connection)
                return
            with self.tls.wrap_socket(connection, server_hostname="localhost", suppress_ragged_eofs=False) as secure:
                yield Wire(secure)

    def ask(self, method: str, target: str, *lines: str, body: bytes = b"") -> Answer:
        """One request on a connection of its own."""
        with self.wire() as wire:
            return wire.ask(method, target, *lines, body=body)

    def raw(self, data: bytes) -> Answer:
        """The answer to these bytes, after which the server must close the connection."""
        with self.wire() as wire:
            wire.send(data)
            answer = wire.answer()
            assert wire.rest() == b""
            return answer

    @property
    def worker(self) -> psutil.Process:
        assert self.process is not None
        return psutil.Process(self.process.pid).children()[0]

    def children(self) -> list[int]:
        """Process ids of the workers."""
        assert self.process is not None
        return [each.pid for each in psutil.Process(self.process.pid).children()]

    def log(self, request_id: str) -> dict[str, Any]:
        """The access log's line of a request."""
        return until(lambda: next((line for line in self.lines() if line["request_id"] == request_id), None))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines() if line.startswith("{") and line.endswith("}")]

    def complaints(self) -> str:
        """What stands in the error log beside gunicorn's own notes."""
        return "\n".join(line for line in self.errors.read_text().splitlines() if "[INFO]" not in line)

    def stop(self, sig: int = signal.SIGTERM) -> float:
        """Stop it and return the seconds that took."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(sig)
        self.process.wait(PATIENCE)
        return time.monotonic() - began

    def __enter__(self) -> Edge:
        return self.start()

    def __exit__(self, *error: object) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            for child in psutil.Process(self.process.pid).children():
                child.kill()
            self.process.kill()
            self.process.wait()
