"""One request and its answer: the WSGI side of the server (PEP 3333)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from types import TracebackType
from typing import Any

from app.http.body import Body
from app.http.connection import SMALL, Connection
from app.http.files import FileBody
from app.http.head import Head

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
StartResponse = Callable[..., Callable[[bytes], None]]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BROKEN = re.compile(r"[\r\n\0]")
_OURS = frozenset({"connection", "transfer-encoding", "keep-alive", "x-request-id", "date"})
_STATUS = re.compile(r"[1-9][0-9][0-9]( [^\r\n\0]*)?")


class AnswerError(Exception):
    """The application broke the rules of WSGI or HTTP."""


class Fields(list[tuple[str, str]]):
    """Headers that are looked at once and sent many times; `length` is what Content-Length says, `text` their lines.

    Raises `AnswerError` for one that cannot be sent as it is, or is left to the server, or when there is no Content-Length.
    """

    __slots__ = ("length", "text")

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        super().__init__(headers)
        if any(_is_unsendable(name, value) or name.lower() in _OURS for name, value in self):
            raise AnswerError("headers that cannot be sent again and again")
        lengths = [int(value) for name, value in self if name.lower() == "content-length"]
        if len(lengths) != 1:
            raise AnswerError("no Content-Length, or several")
        self.length = lengths[0]
        self.text = "".join(f"{name}: {value}\r\n" for name, value in self)

    def extended(self, more: Iterable[tuple[str, str]]) -> Fields:
        """With a few of the server's own words behind them, which need no look."""
        longer = Fields.__new__(Fields)
        list.__init__(longer, (*self, *more))
        longer.length = self.length
        longer.text = self.text + "".join([f"{name}: {value}\r\n" for name, value in more])
        return longer


def _is_unsendable(name: str, value: str) -> bool:
    return not _NAME.fullmatch(name) or _BROKEN.search(value) is not None


class Clock:
    """The Date header, made once a second."""

    second = 0
    text = ""

    @classmethod
    def date(cls) -> str:
        second = int(time.time())
        if second != cls.second:
            cls.second, cls.text = second, formatdate(second, usegmt=True)
        return cls.text


class Exchange:
    """Runs the application for one request; `is_last` says, when the answer begins, whether the server wants the connection closed.

    `code`, `sent` (bytes of body) and `keep_alive` are for whoever goes on with the connection.
    """

    def __init__(self, connection: Connection, head: Head, environ: dict[str, Any], body: Body, is_last: Callable[[], bool]) -> None:
        self.connection = connection
        self.head = head
        self.environ = environ
        self.body = body
        self.keep_alive = head.keep_alive
        self._is_last = is_last
        self.code = 0
        self.head_sent = False
        self.head_bytes = 0
        self._status = ""
        self._fields: list[tuple[str, str]] = []
        self._length: int | None = None
        self._written = 0
        self._chunked = False

    @property
    def sent(self) -> int:
        """Bytes of the answer's body handed to the kernel (with the marks of its chunks)."""
        return max(self.connection.sent - self.head_bytes, 0)

    @property
    def framed(self) -> bool:
        """Whether the client can tell that an answer cut short is incomplete."""
        return self._chunked or self._length is not None

    def run(self, application: Application) -> None:
        """Call the application and send its answer. Raises what it raises, `AnswerError`, `ClientGone`."""
        result: Iterable[bytes] = ()
        try:
            result = application(self.environ, self.start_response)
            self.connection.lane = self.environ.get("arkvory.lane")
            self._send(result)
        finally:
            self.connection.lane = None
            for owner in (result, self.environ.get("arkvory.file")):
                if (close := getattr(owner, "close", None)) is not None:
                    close()

    # What the application calls

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: ExceptionInfo | None = None) -> Callable[[bytes], None]:
        """PEP 3333; raises `AnswerError` for a status or header that could not be sent as it is."""
        if exc_info is not None and self.head_sent and exc_info[1] is not None:
            raise exc_info[1].with_traceback(exc_info[2])
        if exc_info is None and self._status:
            raise AnswerError("start_response was called twice")
        if not _STATUS.fullmatch(status):
            raise AnswerError(f"not a status: {status!r}")
        fields, length = self._checked(headers)
        self._status, self.code, self._fields, self._length = status, int(status[:3]), fields, length
        self._written, self._chunked = 0, False
        return self.write

    def write(self, data: bytes) -> None:
        """Send a piece of the body, the head before the first one."""
        if not self._status:
            raise AnswerError("the application did not call start_response")
        if self._without_body:
            return
        data = self._within_length(data)
        if not self.head_sent:
            self._send_first(data)
        elif data:
            self.connection.send(self._framed(data))

    # The answer

    @property
    def _without_body(self) -> bool:
        return self.head.method == "HEAD" or self.code in (204, 304) or self.code < 200

    def _checked(self, headers: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], int | None]:
        if type(headers) is Fields:
            return headers, headers.length
        fields: list[tuple[str, str]] = []
        length = None
        for name, value in headers:
            if _is_unsendable(name, value):
                raise AnswerError(f"the header {name!r} cannot be sent")
            lowered = name.lower()
            if lowered == "content-length":
                length = int(value)
            elif lowered == "connection":
                self.keep_alive = self.keep_alive and value.lower() != "close"
                continue
            elif lowered in ("transfer-encoding", "keep-alive"):
                raise AnswerError(f"the header {name} belongs to the server")
            elif lowered in ("x-request-id", "date"):
                continue
            fields.append((name, value))
        return fields, length

    def _send(self, result: Iterable[bytes]) -> None:
        if isinstance(result, FileBody) and not self.head_sent and not self._without_body:
            self._send_file(result)
            return
        if self._length is None and isinstance(result, (list, tuple)) and len(result) < 2:
            self._length = sum(map(len, result))
        for piece in result:
            if self._status and self._without_body:
                break
            if piece:
                self.write(piece)
        self._finish()

    def _send_file(self, file: FileBody) -> None:
        if self._length != file.length:
            raise AnswerError(f"Content-Length {self._length} and a file of {file.length} bytes")
        head = self._begin()
        self._written = file.length
        self.head_sent = file.length > SMALL
        self.connection.send_file(head, file.fd, file.offset, file.length, file.check)
        self.head_sent = True

    def _send_first(self, data: bytes) -> None:
        self._chunked = self._length is None and self.head.version == "HTTP/1.1" and not self._without_body
        if self._length is None and not self._chunked and not self._without_body:
            self.keep_alive = False
        head = self._begin()
        self.head_sent = True
        if len(data) <= SMALL:
            self.connection.send(head + self._framed(data))
        else:
            self.connection.send(head)
            self.connection.send(self._framed(data))

    def _finish(self) -> None:
        if not self._status:
            raise AnswerError("the application did not call start_response")
        if not self.head_sent:
            if self._length is None and not self._without_body:
                self._length = 0
            self._send_first(b"")
        if self._without_body:
            return
        if self._chunked:
            self.connection.send(b"0\r\n\r\n")
        elif self._length is not None and self._written != self._length:
            raise AnswerError(f"announced {self._length} bytes, sent {self._written}")

    def _within_length(self, data: bytes) -> bytes:
        self._written += len(data)
        if self._length is None or self._written <= self._length:
            return data
        raise AnswerError(f"announced {self._length} bytes, sent more")

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked and data else data

    def _begin(self) -> bytes:
        self._decide_about_connection()
        head = self._head_bytes()
        self.head_bytes, self.connection.sent = len(head), 0
        return head

    def _head_bytes(self) -> bytes:
        fields, lines = self._fields, [f"HTTP/1.1 {self._status}\r\n"]
        if type(fields) is Fields:
            lines.append(fields.text)
        else:
            lines += [f"{name}: {value}\r\n" for name, value in fields]
            lines.append(self._framing())
        lines.append(f"Date: {Clock.date()}\r\nX-Request-Id: {self.environ['arkvory.request_id']}\r\n")
        if not self.keep_alive:
            lines.append("Connection: close\r\n\r\n")
        else:
            lines.append("Connection: keep-alive\r\n\r\n" if self.head.version == "HTTP/1.0" else "\r\n")
        try:
            return "".join(lines).encode("latin-1")
        except UnicodeEncodeError:
            raise AnswerError("a header is not Latin-1") from None

    def _framing(self) -> str:
        if self._chunked:
            return "Transfer-Encoding: chunked\r\n"
        if self._length is None or self._without_body or any(name.lower() == "content-length" for name, _ in self._fields):
            return ""
        return f"Content-Length: {self._length}\r\n"

    def _decide_about_connection(self) -> None:
        """Keep it unless a rest of the body is in the way that nobody wants to wait for."""
        body = self.body
        if self._is_last() or body.broken or body.awaited or (not body.finished and (body.unread is None or body.unread > SMALL)):
            self.keep_alive = False
