"""An upstream that does what a test says: rules by path, a log of what it was asked, on a real socket."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent import socket
from gevent.pool import Pool
from gevent.server import StreamServer

from tests.support.certificates import Pair


@dataclass
class Rule:
    """How one path is answered. `truncate`: so many bytes of the body, then the connection drops; `times`: for so many requests."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    truncate: int | None = None
    delay: float = 0.0
    # Before each piece of the body.
    pause: float = 0.0
    piece: int = 65536
    chunked: bool = False
    auth: str | None = None
    times: int | None = None
    # Announced instead of the body's length.
    length: int | None = None
    # Neither length nor chunks: the body ends with the connection.
    endless: bool = False
    # The body waits for it.
    gate: Any = None
    # What a request without `auth` is told; and the one method that the rule is for.
    challenge: str = 'Basic realm="up"'
    method: str | None = None
    # Only requests whose `Accept` has this in it.
    accept: str = ""


@dataclass(frozen=True)
class Asked:
    """One request as it came: method, target, headers (names in lower case) and body."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""


class FakeUpstream:
    """Speaks HTTP/1.1; an ETag in a rule's headers makes conditional requests work."""

    def __init__(self, certificate: Pair | None = None, host: str = "127.0.0.1") -> None:
        """With a certificate it speaks https."""
        self._host = host
        self._tls = None if certificate is None else certificate.server()
        self.rules: dict[str, list[Rule]] = {}
        self.asked: list[Asked] = []
        self.connections = 0
        self.arrived: Callable[[Asked], None] = lambda asked: None
        self._server: StreamServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self._host}:{self._port}"

    def start(self) -> FakeUpstream:
        """Again at the same port, after `stop`."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self._host, self._port))
        listener.listen(256)
        self._port = listener.getsockname()[1]
        self._server = StreamServer(listener, self._serve, spawn=Pool(), **({} if self._tls is None else {"ssl_context": self._tls}))
        self._server.start()
        return self

    def stop(self) -> None:
        """Whoever connects is refused, and whoever is connected cut off."""
        assert self._server is not None
        self._server.stop(timeout=0.1)

    def put(self, path: str, body: bytes = b"", *, etag: str | None = None, **fields: Any) -> Rule:
        """From now on; a rule with `times` stands before the former ones, one with another `accept` beside them."""
        if etag is not None:
            fields["headers"] = {**fields.get("headers", {}), "ETag": etag}
        rule = Rule(body, **fields)
        if rule.times is None and rule.method is None:
            others = [each for each in self.rules.get(path, ()) if each.accept != rule.accept]
            self.rules[path] = sorted([rule, *others], key=lambda each: -len(each.accept))
        else:
            self.rules.setdefault(path, []).insert(0, rule)
        return rule

    def forget(self, path: str) -> None:
        self.rules.pop(path, None)

    def count(self, path: str, method: str | None = None) -> int:
        return sum(1 for each in self.asked if each.target == path and method in (None, each.method))

    def _serve(self, client: Any, _address: Any) -> None:
        self.connections += 1
        with contextlib.closing(client), contextlib.suppress(OSError), client.makefile("rb") as lines:
            while (asked := _read(lines)) is not None:
                self.asked.append(asked)
                self.arrived(asked)
                if not self._answer(client, asked):
                    return

    def _rule(self, asked: Asked) -> Rule:
        for rule in self.rules.get(asked.target, ()):
            if rule.method not in (None, asked.method) or rule.accept not in asked.headers.get("accept", ""):
                continue
            if rule.times is None:
                return rule
            if rule.times > 0:
                rule.times -= 1
                return rule
        return Rule(b"nothing here\n", 404)

    def _answer(self, client: Any, asked: Asked) -> bool:
        """Whether the connection may go on."""
        rule = self._rule(asked)
        gevent.sleep(rule.delay)
        status, body, headers = rule.status, rule.body, dict(rule.headers)
        if rule.auth is not None and asked.headers.get("authorization") != rule.auth:
            status, body, headers = 401, b"", {"WWW-Authenticate": rule.challenge}
        elif status == 200 and "ETag" in headers and asked.headers.get("if-none-match") == headers["ETag"]:
            status, body = 304, b""
        if rule.chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif status != 304 and not rule.endless:
            headers["Content-Length"] = str(len(body) if rule.length is None else rule.length)
        client.sendall(_head(status, headers))
        if status == 304 or asked.method == "HEAD":
            return True
        for piece in _pieces(rule, body):
            client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if rule.chunked else piece)
        if rule.truncate is None and rule.chunked:
            client.sendall(b"0\r\n\r\n")
        return rule.truncate is None and rule.length is None and not rule.endless


def _pieces(rule: Rule, body: bytes) -> Iterator[bytes]:
    sent = body if rule.truncate is None else body[: rule.truncate]
    for start in range(0, len(sent), rule.piece):
        if rule.gate is not None and start:
            rule.gate.wait()
        gevent.sleep(rule.pause)
        yield sent[start : start + rule.piece]


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Because\r\n{lines}\r\n".encode("latin-1")


def _read(lines: Any) -> Asked | None:
    first = lines.readline().decode("latin-1").split()
    if len(first) < 3:
        return None
    headers: dict[str, str] = {}
    while line := lines.readline().decode("latin-1").rstrip("\r\n"):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Asked(first[0], first[1], headers, lines.read(int(headers.get("content-length", 0))))


def noise(size: int, seed: int = 1) -> bytes:
    """So many bytes, always the same for a seed, that no two pieces share."""
    blocks = (hashlib.sha256(f"{seed}/{number}".encode()).digest() for number in range(-(-size // 32)))
    return b"".join(blocks)[:size]
