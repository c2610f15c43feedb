"""One client's connection: requests one after the other, bounded in time and size, each answered and logged."""

from __future__ import annotations

import contextlib
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from gevent import GreenletExit, Timeout
from gevent import socket as gevent_sockets

from app.errors import Invalid, PinLost
from app.http.accesslog import loggable_path
from app.http.addresses import client_address
from app.http.body import body_of
from app.http.connection import SMALL, ClientGone, Connection
from app.http.exchange import Clock, Exchange
from app.http.head import MAX_REQUEST_LINE, BadHead, Head, is_text, parse_head

if TYPE_CHECKING:
    from app.http.worker import Server

# Of a server that stops, for a connection that has not sent any request yet.
FIRST_REQUEST_SECONDS = 1.0
_DRAIN_SECONDS = 2.0
_LINGER_SECONDS = 10.0
_LINGER_SILENCE = 2.0
_LINGER_BYTES = 256 * 1024 * 1024
_END = b"\r\n\r\n"


class Handler:
    """Serves one connection until either side closes it."""

    def __init__(self, socket: gevent_sockets.socket, address: Any, server: Server) -> None:
        self._server = server
        self._settings = server.settings
        self._peer = address if isinstance(address, tuple) else ("", 0)
        self._connection = Connection(socket, server.settings.idle_seconds, server.settings.least_body_rate)
        self._began = 0.0
        self._at = 0.0
        # No request was asked for yet: whoever connects sends one at once.
        self.fresh = True
        # A client that has left already makes this fail; reading will tell.
        with contextlib.suppress(OSError):
            socket.setsockopt(gevent_sockets.IPPROTO_TCP, gevent_sockets.TCP_NODELAY, 1)

    def handle(self) -> None:
        """Returns when the connection is to be closed; the caller closes the socket."""
        try:
            patience = self._settings.header_seconds
            while self._one_request(patience):
                patience = self._settings.keepalive_seconds
        except ClientGone:
            pass

    def _one_request(self, patience: float) -> bool:
        """Whether another one may follow."""
        try:
            data = self._read_head(patience)
            if data is None:
                return False
            head = parse_head(data, self._settings.max_header_count)
        except BadHead as bad:
            self._refuse(bad)
            return False
        return self._answer(head)

    # The head

    def _read_head(self, patience: float) -> bytes | None:
        """The bytes of the next head without its empty line; None when the client has no further request."""
        connection = self._connection
        if not connection.buffer and not self._await_request(patience):
            return None
        self.fresh = False
        self._at, self._began = time.time(), time.monotonic()
        self._server.listening[self] = None
        try:
            return self._whole_head(self._began + self._settings.header_seconds)
        finally:
            self._server.listening.pop(self, None)

    def _whole_head(self, deadline: float) -> bytes | None:
        connection, searched = self._connection, 0
        while True:
            _drop_empty_line(connection.buffer)
            end = connection.buffer.find(_END, max(searched - 3, 0))
            self._check_size(end)
            if end >= 0:
                data = connection.take(end + 4)
                return data[:-4]
            self._check_text(max(searched - 1, 0))
            searched = len(connection.buffer)
            if not self._more(deadline):
                return None

    def _await_request(self, patience: float) -> bool:
        server, connection = self._server, self._connection
        if server.stopping:
            if not self.fresh:
                return False
            patience = min(patience, FIRST_REQUEST_SECONDS)
        server.idle[self] = None
        try:
            return connection.fill(time.monotonic() + patience)
        except TimeoutError:
            return False
        finally:
            server.idle.pop(self, None)

    def _more(self, deadline: float) -> bool:
        try:
            return self._connection.fill(deadline)
        except TimeoutError:
            raise BadHead(408, f"the request head took longer than {self._settings.header_seconds:g} seconds") from None

    def _check_size(self, end: int) -> None:
        buffer, most = self._connection.buffer, self._settings.max_header_bytes
        if buffer.find(b"\r\n", 0, MAX_REQUEST_LINE + 2) < 0 and len(buffer) > MAX_REQUEST_LINE + 1:
            raise BadHead(414, f"the request line is longer than {MAX_REQUEST_LINE} bytes")
        if end > most or (end < 0 and len(buffer) > most):
            raise BadHead(431, f"the request head is larger than {most} bytes")

    def _check_text(self, start: int) -> None:
        """Refuse at once what can never become a head: TLS, a line that ends in a bare LF."""
        buffer = self._connection.buffer
        checked = buffer[:-1] if buffer.endswith(b"\r") else buffer
        if not is_text(checked, max(start - 1, 0)):
            raise BadHead(400, "the request head contains a control character or a broken line end")

    def stop_waiting(self) -> None:
        """End the wait for a next request."""
        self._connection.stop_reading()

    # The answer

    def _answer(self, head: Head) -> bool:
        body = body_of(self._connection, head)
        environ = self._environ(head)
        environ["wsgi.input"] = body
        exchange = Exchange(self._connection, head, environ, body, self._server.wants_places)
        outcome = self._run(exchange)
        self._log(environ["arkvory.request_id"], environ["arkvory.client"], head, exchange.code or None, exchange.sent,
                  {**environ["arkvory.log"], **outcome})
        if outcome:
            return False
        if body.finished and exchange.keep_alive:
            return not self._server.stopping
        if not body.finished and exchange.keep_alive and body.drain(SMALL, _DRAIN_SECONDS):
            return True
        if not body.finished or self._connection.buffer:
            self._linger()
        return False

    def _run(self, exchange: Exchange) -> dict[str, Any]:
        """Empty when the whole answer went out, else what the log says about it."""
        try:
            self._run_or_answer(exchange)
            return {}
        except ClientGone:
            return {"aborted": True}
        except PinLost as error:
            self._server.logger.warning("request %s: %s", exchange.environ["arkvory.request_id"], error.message)
            return {"error": type(error).__name__}
        except GreenletExit:
            # The end of a graceful stop; nobody catches it above us.
            return {"killed": True}
        except (Exception, Timeout) as error:
            self._server.logger.exception("request %s: the answer broke off", exchange.environ["arkvory.request_id"])
            if not exchange.framed:
                self._connection.reset()
            return {"error": type(error).__name__}

    def _run_or_answer(self, exchange: Exchange) -> None:
        """What the application raises becomes an answer as long as none has begun."""
        try:
            exchange.run(self._server.application)
        except ClientGone:
            raise
        except Invalid as error:
            if exchange.head_sent:
                raise ClientGone(error.message) from error
            _answer_plainly(exchange, "400 Bad Request", error.message)
        except (Exception, Timeout):
            if exchange.head_sent:
                raise
            self._server.logger.exception("request %s failed", exchange.environ["arkvory.request_id"])
            _answer_plainly(exchange, "500 Internal Server Error", "The server made a mistake; its log has the request id.")

    def _environ(self, head: Head) -> dict[str, Any]:
        environ: dict[str, Any] = self._server.get_environ()
        environ.update(head.fields)
        path, _, query = head.target.partition("?")
        environ.update({
            "REQUEST_METHOD": head.method,
            "RAW_URI": head.target,
            "PATH_INFO": unquote_to_bytes(path.encode("latin-1")).decode("latin-1"),
            "QUERY_STRING": query,
            "SERVER_PROTOCOL": head.version,
            "REMOTE_ADDR": str(self._peer[0]),
            "REMOTE_PORT": str(self._peer[1]),
            "arkvory.request_id": self._server.request_id(head.fields.get("HTTP_X_REQUEST_ID")),
            "arkvory.log": {},
        })
        environ["arkvory.client"] = client_address(environ, self._server.trusted)
        return environ

    def _refuse(self, bad: BadHead) -> None:
        """Answer a head that is not passed on, and let the client see it although it may still be sending."""
        request_id = self._server.request_id(None)
        body = f"{bad.message}\n".encode()
        head = (f"HTTP/1.1 {bad.status} {HTTPStatus(bad.status).phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nDate: {Clock.date()}\r\nX-Request-Id: {request_id}\r\nConnection: close\r\n\r\n")
        self._log(request_id, str(self._peer[0]), None, bad.status, len(body), {"error": bad.message})
        self._connection.send(head.encode("latin-1") + body)
        self._linger()

    def _linger(self) -> None:
        silence = 0.1 if self._server.stopping else _LINGER_SILENCE
        self._connection.linger(_LINGER_SECONDS, silence, _LINGER_BYTES)

    def _log(self, request_id: str, client: str, head: Head | None, status: int | None, sent: int, more: dict[str, Any]) -> None:
        log = self._server.access_log
        if log is None:
            return
        log.write({
            **more,
            "request_id": request_id,
            "method": head.method if head else None,
            "path": loggable_path(head.target) if head else None,
            "status": status,
            "bytes": sent,
            "duration_ms": round((time.monotonic() - self._began) * 1000, 1),
            "remote": client,
        }, self._at)


def _drop_empty_line(buffer: bytearray) -> None:
    """RFC 9112, 2.2: some clients send one after a body."""
    if buffer.startswith(b"\r\n"):
        del buffer[:2]


def _answer_plainly(exchange: Exchange, status: str, message: str) -> None:
    body = f"{message}\n".encode()
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), ("Connection", "close")]

    def application(_environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response(status, headers, (None, None, None))
        return [body]

    exchange.run(application)
