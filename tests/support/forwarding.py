"""An HTTP proxy as companies have it, on a real socket: tunnels for https (CONNECT), and requests with whole addresses for http."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import urlsplit

import gevent
from gevent import socket
from gevent.pool import Pool
from gevent.server import StreamServer

from tests.support.upstreams import Asked


class ForwardProxy:
    """`login` is the Proxy-Authorization that it wants; `seen` are all bytes that clients sent, those inside of tunnels too."""

    def __init__(self, login: str | None = None) -> None:
        self.login = login
        self.asked: list[Asked] = []
        self.seen = b""
        self._server = StreamServer(("127.0.0.1", 0), self._serve, spawn=Pool())
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.stop(timeout=0.1)

    def _serve(self, client: Any, _address: Any) -> None:
        with contextlib.closing(client), contextlib.suppress(OSError):
            head = self._head(client)
            if head is None:
                return
            asked = _parsed(head)
            self.asked.append(asked)
            if self.login is not None and asked.headers.get("proxy-authorization") != self.login:
                client.sendall(b"HTTP/1.1 407 Login\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                self._forward(client, asked)

    def _head(self, client: Any) -> bytes | None:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = client.recv(65536)
            if not piece:
                return None
            head += piece
        self.seen += head
        return head

    def _forward(self, client: Any, asked: Asked) -> None:
        tunnel = asked.method == "CONNECT"
        parts = urlsplit(f"//{asked.target}" if tunnel else asked.target)
        with contextlib.closing(socket.create_connection((parts.hostname, parts.port))) as there:
            if tunnel:
                client.sendall(b"HTTP/1.1 200 Go on\r\n\r\n")
            else:
                own = {name: value for name, value in asked.headers.items() if not name.startswith("proxy-")} | {"connection": "close"}
                lines = "".join(f"{name}: {value}\r\n" for name, value in own.items())
                there.sendall(f"{asked.method} {parts.path} HTTP/1.1\r\n{lines}\r\n".encode())
            back = gevent.spawn(self._pump, there, client)
            with contextlib.suppress(OSError):
                while data := client.recv(65536):
                    self.seen += data
                    there.sendall(data)
            back.join(5)
            back.kill()

    def _pump(self, source: Any, target: Any) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def _parsed(head: bytes) -> Asked:
    first, *lines = head.decode("latin-1").partition("\r\n\r\n")[0].split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    return Asked(method, target, {name.strip().lower(): value.strip() for name, _, value in pairs})
