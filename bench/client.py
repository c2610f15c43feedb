"""HTTP clients over raw sockets, so cheap that the server is what is measured. They run in processes of their own (`workers`)."""

from __future__ import annotations

import contextlib
import functools
import http.client
import multiprocessing
import os
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

MIB = 1024 * 1024
BLOCK = 16 * MIB
PATIENCE = 120.0

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: chunked\r\n", re.IGNORECASE)
_CLOSING = re.compile(rb"\r\nconnection: close\r\n", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"
_spawn = multiprocessing.get_context("spawn")
_block = bytearray()


def workers(count: int = 1) -> ProcessPoolExecutor:
    """Processes for clients and floors; each keeps its own for as long as it is entered."""
    return ProcessPoolExecutor(count, mp_context=_spawn)


def request(method: str, path: str, *lines: str, body: bytes = b"") -> bytes:
    """A whole request; `lines` are further lines of its head."""
    length = [f"Content-Length: {len(body)}"] if body or method in ("PUT", "POST") else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: bench.test", *lines, *length, "", ""]).encode() + body


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def wait_for(port: int, seconds: float = 30.0) -> None:
    """Until somebody listens there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError), connect(port):
            return
        time.sleep(0.05)
    raise RuntimeError(f"nobody listens on port {port}")


def block() -> bytearray:
    """Random bytes of this process, the same at each call."""
    if not _block:
        _block.extend(os.urandom(BLOCK))
    return _block


def pieces(size: int) -> Iterator[memoryview]:
    """`size` random bytes in pieces of 1 MiB."""
    view = memoryview(block())
    for offset in range(0, size, MIB):
        start = offset % BLOCK
        yield view[start : start + min(MIB, size - offset)]


def _read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head of the next answer and what came with it."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        piece = connection.recv(65536)
        if not piece:
            raise RuntimeError(f"the server closed the connection after {data!r}")
        data += piece
    return data[: end + 2], data[end + 4 :]


# Large bodies


def download(port: int, asked: bytes, size: int) -> float:
    """Seconds from the request to the last of `size` bytes."""
    scratch = memoryview(bytearray(MIB))
    with connect(port) as connection:
        began = time.perf_counter()
        connection.sendall(asked)
        head, rest = _read_head(connection)
        announced = _LENGTH.search(head)
        if not head.startswith(b"HTTP/1.1 200") or announced is None or int(announced[1]) != size:
            raise RuntimeError(f"expected 200 and {size} bytes, got {head!r}")
        left = size - len(rest)
        while left:
            count = connection.recv_into(scratch)
            if not count:
                raise RuntimeError(f"{left} bytes are missing")
            left -= count
        return time.perf_counter() - began


def upload(port: int, path: str, authorization: str, size: int) -> float:
    """Seconds from the first byte of a PUT to its answer.

    The bytes come from the kernel's memory: on few cores a client that copies is in the way of the server.
    """
    source, first = _source(), os.urandom(32)
    head = f"PUT {path} HTTP/1.1\r\nHost: bench.test\r\n{authorization}\r\nContent-Length: {size}\r\n\r\n".encode()
    with connect(port) as connection:
        _block_at_most(connection, PATIENCE)
        began = time.perf_counter()
        connection.sendall(head)
        connection.sendall(first)
        sent = len(first)
        while sent < size:
            sent += _send_some(connection, source, sent, size)
        answer, _ = _read_head(connection)
        if not answer.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(f"expected 201, got {answer!r}")
        return time.perf_counter() - began


def _block_at_most(connection: socket.socket, seconds: float) -> None:
    """`sendfile` wants a socket that blocks; the kernel bounds each wait."""
    connection.settimeout(None)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), 0))


def _send_some(connection: socket.socket, source: int, sent: int, size: int) -> int:
    offset = sent % BLOCK
    return os.sendfile(connection.fileno(), source, offset, min(MIB, BLOCK - offset, size - sent))


@functools.cache
def _source() -> int:
    """A file in memory with the bytes of `block`."""
    file = os.memfd_create("bench")
    os.write(file, block())
    return file


# Many small requests


@dataclass(frozen=True)
class Load:
    """Answers that came, in so many seconds."""

    count: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


class _Caller:
    """One connection that sends the next request once the answer to the former is complete; another one where the server closes it."""

    def __init__(self, port: int, requests: Iterator[bytes], allowed: frozenset[int]) -> None:
        self.socket = connect(port)
        self.closing = False
        self._port = port
        self._requests = requests
        self._allowed = allowed
        self._buffer = b""
        self._left: int | None = None
        self._tail: bytes | None = None
        self._bodyless = False

    def send_next(self) -> bool:
        """False when there is no further request."""
        asked = next(self._requests, None)
        if asked is None:
            return False
        self._bodyless = asked.startswith(b"HEAD ")
        self._buffer, self._left, self._tail = b"", None, None
        self.socket.sendall(asked)
        return True

    def receive(self) -> bool:
        """Take what has arrived; True when the answer is complete."""
        data = self.socket.recv(262144)
        if not data:
            raise RuntimeError("the server closed a connection")
        if self._left is None:
            self._buffer += data
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return False
            data = self._buffer[end + 4 :]
            self._read_head(self._buffer[: end + 2])
        assert self._left is not None
        self._left -= len(data)
        if self._tail is None:
            return self._left <= 0
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        return self._tail == _LAST_CHUNK

    def reconnect(self) -> None:
        self.socket.close()
        self.socket, self.closing = connect(self._port), False

    def _read_head(self, head: bytes) -> None:
        status = int(head[9:12])
        if status not in self._allowed:
            raise RuntimeError(f"unexpected answer {head!r}")
        found = _LENGTH.search(head)
        bodyless = self._bodyless or status in (204, 304)
        self._left = 0 if bodyless or found is None else int(found[1])
        self._tail = b"" if not bodyless and _CHUNKED.search(head) else None
        self.closing = _CLOSING.search(head) is not None


def load(port: int, requests: Sequence[bytes], connections: int, seconds: float, allowed: Sequence[int] = (200,)) -> Load:
    """Send them over so many connections, each waiting for its answer, again and again for `seconds`; once when that is 0."""
    source = _cycle(requests) if seconds else iter(requests)
    callers = [_Caller(port, source, frozenset(allowed)) for _ in range(connections)]
    poller = select.epoll()
    by_fd = {}
    began = time.perf_counter()
    for caller in callers:
        by_fd[caller.socket.fileno()] = caller
        poller.register(caller.socket, select.EPOLLIN)
    busy = sum(caller.send_next() for caller in callers)
    count, deadline, patience = 0, began + (seconds or PATIENCE), began + PATIENCE
    # One answer at least, however slow the machine is.
    while busy and (now := time.perf_counter()) < (deadline if count else patience):
        for fd, _ in poller.poll((deadline if count else patience) - now):
            if by_fd[fd].receive():
                count += 1
                caller = by_fd[fd]
                if caller.closing:
                    poller.unregister(fd)
                    caller.reconnect()
                    by_fd[caller.socket.fileno()] = caller
                    poller.register(caller.socket, select.EPOLLIN)
                busy -= not caller.send_next()
    taken = time.perf_counter() - began
    poller.close()
    for caller in callers:
        caller.socket.close()
    if not count or (busy and not seconds):
        raise RuntimeError(f"{count} of {len(requests)} answers came within {PATIENCE:.0f} s")
    return Load(count, taken)


def _cycle(requests: Sequence[bytes]) -> Iterator[bytes]:
    while True:
        yield from requests


# Requests one after the other


class Step(NamedTuple):
    """A request whose answer must have one of `statuses`; its `path` may hold `{location}`, what the answer before said."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    statuses: tuple[int, ...] = (200, 201)


def walk(port: int, steps: Sequence[Step]) -> float:
    """Send them over one connection (another one where the server closes it); seconds from the first to the last answer."""
    connection, location = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE), ""
    connection.connect()
    began = time.perf_counter()
    for step in steps:
        connection.request(step.method, step.path.replace("{location}", location), step.body, dict(step.headers))
        answer = connection.getresponse()
        said = answer.read()
        if answer.status not in step.statuses:
            raise RuntimeError(f"{step.method} {step.path}: {answer.status} {said[:200]!r}")
        location = _relative(answer.headers.get("Location", ""))
    taken = time.perf_counter() - began
    connection.close()
    return taken


def _relative(location: str) -> str:
    """With a query, perhaps an empty one: something may be added to it."""
    parts = urlsplit(location)
    return f"{parts.path}?{parts.query}"


# Other people's requests


@dataclass
class Pings:
    """While it is entered: each of `requests` over a connection of its own every `pause` seconds, from another process.

    Afterwards `seconds` holds what each took, from the moment it was due: one that had to wait for the one before counts the wait.
    """

    port: int
    requests: Sequence[bytes]
    pause: float = 0.025
    seconds: list[float] = field(default_factory=list)
    _pipe: Any = None
    _process: Any = None

    def __enter__(self) -> Pings:
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_ping_all, args=(theirs, self.port, self.requests, self.pause), daemon=True)
        self._process.start()
        if not self._pipe.poll(PATIENCE) or self._pipe.recv() != "ready":
            raise RuntimeError("the pings did not start")
        return self

    def __exit__(self, *_: object) -> None:
        failures = ["their process died"]
        with contextlib.suppress(OSError, EOFError):
            self._pipe.send("stop")
            failures = ["they did not end"]
            if self._pipe.poll(PATIENCE):
                self.seconds, failures = self._pipe.recv()
        self._process.join(PATIENCE)
        if failures or not self.seconds:
            raise RuntimeError(f"the pings failed: {failures}")


def _ping_all(pipe: Connection, port: int, requests: Sequence[bytes], pause: float) -> None:
    over, taken, failures = threading.Event(), list[float](), list[str]()

    def ping(asked: bytes) -> None:
        try:
            _ping(port, asked, pause, over, taken)
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=ping, args=(asked,)) for asked in requests]
    for thread in threads:
        thread.start()
    pipe.send("ready")
    pipe.recv()
    over.set()
    for thread in threads:
        thread.join()
    pipe.send((taken, failures))


def _ping(port: int, asked: bytes, pause: float, over: threading.Event, taken: list[float]) -> None:
    caller = _Caller(port, _cycle([asked]), frozenset({200}))
    due = time.perf_counter()
    while not over.is_set():
        caller.send_next()
        while not caller.receive():
            pass
        now = time.perf_counter()
        taken.append(now - due)
        due += pause
        if due > now:
            time.sleep(due - now)
    caller.socket.close()
