"""The body of a request as `wsgi.input`: whole pieces, an honest end, `100 Continue` only when somebody reads."""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Iterator
from typing import Any

import gevent

from app.errors import BodyCutShort, Invalid
from app.http.connection import MIB, ClientGone, Connection
from app.http.head import Head, is_text

_CHUNK_LINE = 1024
_TRAILER_BYTES = 8192
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;.*)?")
_DRAIN_PIECE = 16 * 1024


class Body(io.RawIOBase):
    """A request's body. `read(n)` and `readinto(buffer)` return less than asked for only at the end.

    Reading raises `BodyCutShort` when the client stops before the end (closes, resets, or is silent for `idle_seconds`) and
    `Invalid` when the chunks are malformed; after either the connection is of no more use.
    """

    def __init__(self, connection: Connection, head: Head) -> None:
        super().__init__()
        self._connection = connection
        self._continue = head.expects_continue
        self._arrived = 0
        self._waited = 0.0
        self.broken = False

    @property
    def finished(self) -> bool:
        """Whether the end has been read, so that the next request may follow."""
        raise NotImplementedError

    @property
    def unread(self) -> int | None:
        """Bytes that are left; None when nobody knows."""
        raise NotImplementedError

    @property
    def awaited(self) -> bool:
        """Whether the client still waits for `100 Continue` before it sends the body."""
        return self._continue

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer) as whole, whole.cast("B") as view:
            filled = 0
            while filled < len(view):
                began = time.monotonic()
                with view[filled:] as rest:
                    count = self._some(rest)
                if not count:
                    break
                self._check_pace(count, time.monotonic() - began)
                filled += count
            return filled

    def _check_pace(self, count: int, seconds: float) -> None:
        """A body that drips would keep its place from others for days: silence is bounded, and so is the average."""
        self._arrived += count
        self._waited += seconds
        if self._waited > self._connection.idle_seconds and self._arrived < self._waited * self._connection.least_rate:
            self.broken = True
            raise BodyCutShort(f"The body arrives more slowly than {self._connection.least_rate} bytes per second; send it again.")

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        return self._piece(size) if size <= MIB else b"".join(self._pieces(size))

    def readall(self) -> bytes:
        return b"".join(self._pieces(None))

    def _piece(self, size: int) -> bytes:
        piece = bytearray(size if self.unread is None else min(size, self.unread))
        count = self.readinto(piece)
        with memoryview(piece) as view:
            return bytes(view[:count])

    def _pieces(self, size: int | None) -> Iterator[bytes]:
        """Memory grows with what arrives, not with what was announced."""
        while size is None or size > 0:
            piece = self._piece(MIB if size is None else min(size, MIB))
            if not piece:
                return
            yield piece
            if size is not None:
                size -= len(piece)

    def drain(self, most: int, seconds: float) -> bool:
        """Read and forget a small rest; whether the end was reached within `most` bytes and `seconds`."""
        if self.broken or self._continue:
            return self.finished
        with contextlib.suppress(BodyCutShort, Invalid), gevent.Timeout(seconds, False):
            while most > 0 and not self.finished:
                most -= len(self.read(min(most, _DRAIN_PIECE)))
        return self.finished

    def _some(self, view: memoryview) -> int:
        """Put some bytes into `view`; how many, 0 at the end of the body."""
        raise NotImplementedError

    def _receive(self, view: memoryview) -> int:
        self._ask()
        try:
            count = self._connection.receive_into(view)
        except ClientGone as error:
            raise self._cut_short() from error
        if not count:
            raise self._cut_short()
        return count

    def _ask(self) -> None:
        if not self._continue:
            return
        self._continue = False
        # RFC 9110, 10.1.1: not needed once the client has begun.
        if self._connection.buffer:
            return
        try:
            self._connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        except ClientGone as error:
            raise self._cut_short() from error

    def _cut_short(self) -> BodyCutShort:
        self.broken = True
        return BodyCutShort("The body ended before its announced end; send it again.")


class LengthBody(Body):
    """A body of known length (also of none)."""

    def __init__(self, connection: Connection, head: Head) -> None:
        super().__init__(connection, head)
        self._left = head.length or 0

    @property
    def finished(self) -> bool:
        return not self._left

    @property
    def unread(self) -> int:
        return self._left

    def _some(self, view: memoryview) -> int:
        if not self._left or not view:
            return 0
        with view[: self._left] as wanted:
            count = self._receive(wanted)
        self._left -= count
        return count


class ChunkedBody(Body):
    """A chunked body (RFC 9112, 7.1); extensions and trailers are read and ignored."""

    def __init__(self, connection: Connection, head: Head) -> None:
        super().__init__(connection, head)
        self._left = 0
        self._begun = False
        self._ended = False

    @property
    def finished(self) -> bool:
        return self._ended

    @property
    def unread(self) -> None:
        return None

    def _some(self, view: memoryview) -> int:
        if self.broken:
            raise self._cut_short()
        if not view or self._ended or not (self._left or self._next_chunk()):
            return 0
        with view[: self._left] as wanted:
            count = self._receive(wanted)
        self._left -= count
        return count

    def _next_chunk(self) -> bool:
        """Go to the bytes of the next chunk; False when it was the last."""
        self._ask()
        if self._begun and self._line(2):
            raise self._malformed()
        self._begun = True
        size = _CHUNK_SIZE.fullmatch(self._line(_CHUNK_LINE))
        if size is None:
            raise self._malformed()
        self._left = int(size.group(1), 16)
        if not self._left:
            self._skip_trailer()
        return not self._ended

    def _skip_trailer(self) -> None:
        left = _TRAILER_BYTES
        while line := self._line(left):
            left -= len(line) + 2
            if left <= 0 or b":" not in line:
                raise self._malformed()
        self._ended = True

    def _line(self, limit: int) -> bytes:
        try:
            line = self._connection.line(limit)
        except ValueError:
            raise self._malformed() from None
        except ClientGone as error:
            raise self._cut_short() from error
        if line is None:
            raise self._cut_short()
        if not is_text(line):
            raise self._malformed()
        return line

    def _malformed(self) -> Invalid:
        self.broken = True
        return Invalid("The chunks of the body are malformed.")


def body_of(connection: Connection, head: Head) -> Body:
    """The body that `head` announces."""
    return ChunkedBody(connection, head) if head.chunked else LengthBody(connection, head)
