"""A client's socket: buffered reads with deadlines, writes and files out, under gevent.

Every wait has a bound: `idle_seconds` of silence while a body moves, the caller's deadline while a head arrives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket as sockets
import struct
import time
from collections.abc import Callable
from typing import Self

import gevent
from gevent import socket as gevent_sockets

from app.http.pacing import Lane

MIB = 1024 * 1024
SMALL = 64 * 1024
_HEAD_PIECE = 16 * 1024

_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.ENOTCONN,
                   errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EBADF, errno.ESHUTDOWN})


class ClientGone(ConnectionError):
    """The client closed, reset or went silent; nobody is left to answer."""


class FileTooShort(OSError):
    """A file holds fewer bytes than the answer has announced."""


class Connection:
    """One client's socket. `sent` counts bytes handed to the kernel since the caller last set it."""

    __slots__ = ("_moved", "_plain", "buffer", "idle_seconds", "lane", "least_rate", "sent", "socket")

    def __init__(self, socket: gevent_sockets.socket, idle_seconds: float, least_rate: int = 0) -> None:
        self.socket = socket
        self.idle_seconds = idle_seconds
        self.least_rate = least_rate
        self.buffer = bytearray()
        self.sent = 0
        # Where a budget is set, in which the present answer goes out.
        self.lane: Lane | None = None
        self._moved = 0
        self._plain = not hasattr(socket, "vanish")

    # Reading

    def fill(self, deadline: float, size: int = _HEAD_PIECE) -> bool:
        """Add what has arrived to `buffer`; False at the end of the stream.

        Raises `TimeoutError` at the deadline (by the monotonic clock) and `ClientGone`.
        """
        self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data = self.socket.recv(size)
        except TimeoutError:
            raise
        except OSError as error:
            raise _gone(error) from error
        self.buffer += data
        return bool(data)

    def take(self, count: int) -> bytes:
        """Remove the first `count` bytes of `buffer` and return them."""
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def receive_into(self, view: memoryview) -> int:
        """Put bytes that belong to a body into `view`; how many, 0 at the end of the stream.

        Raises `ClientGone`, also after `idle_seconds` of silence.
        """
        if self.buffer:
            count = min(len(view), len(self.buffer))
            with memoryview(self.buffer) as source:
                view[:count] = source[:count]
            del self.buffer[:count]
            return count
        self.socket.settimeout(self.idle_seconds)
        try:
            received: int = self.socket.recv_into(view)
        except OSError as error:
            raise _gone(error) from error
        self._take_turns(received)
        return received

    def line(self, limit: int) -> bytes | None:
        """The next line of a body's framing without its CRLF; None when the stream ends first.

        Raises `ValueError` for more than `limit` bytes or a bare LF, and `ClientGone`.
        """
        searched = 0
        while (end := self.buffer.find(b"\n", searched)) < 0:
            searched = len(self.buffer)
            if searched > limit + 1:
                raise ValueError("line too long")
            if not self._fill_body():
                return None
        line = self.take(end + 1)
        if end - 1 > limit or not line.endswith(b"\r\n"):
            raise ValueError("line too long or ended by a bare LF")
        return line[:-2]

    def _fill_body(self) -> bool:
        try:
            return self.fill(time.monotonic() + self.idle_seconds, 256 * 1024)
        except TimeoutError as error:
            raise ClientGone("the client went silent") from error

    # Writing

    def send(self, data: bytes) -> None:
        """Hand all of `data` to the kernel; raises `ClientGone`."""
        self.socket.settimeout(self.idle_seconds)
        view = memoryview(data)
        while view:
            with self._turn(len(view)) as turn:
                try:
                    turn.moved = self.socket.send(view[: turn.allowed])
                except OSError as error:
                    raise _gone(error) from error
            count = turn.moved
            self.sent += count
            view = view[count:]
            self._take_turns(count)

    def send_file(self, head: bytes, fd: int, offset: int, length: int, check: Callable[[], None] | None = None) -> None:
        """Send `head` and `length` bytes of the file at `offset`; `check` is called before each piece of a larger one.

        Raises `ClientGone`, `FileTooShort` (for a small file before anything was sent), and what `check` raises.
        """
        if length <= SMALL:
            data = os.pread(fd, length, offset) if length else b""
            if len(data) != length:
                raise FileTooShort(f"expected {length} bytes, the file has {len(data)}")
            self.send(head + data)
            return
        self.send(head)
        if self._plain:
            self._send_pieces(fd, offset, length, check)
        else:
            self._copy_pieces(fd, offset, length, check)

    def _copy_pieces(self, fd: int, offset: int, length: int, check: Callable[[], None] | None) -> None:
        """TLS is made in this process, out of the kernel's reach."""
        for at in range(offset, offset + length, SMALL):
            if check is not None:
                check()
            piece = os.pread(fd, min(SMALL, offset + length - at), at)
            if not piece:
                raise FileTooShort(f"the file ends at {at}")
            self.send(piece)

    def _send_pieces(self, fd: int, offset: int, length: int, check: Callable[[], None] | None) -> None:
        out = self.socket.fileno()
        while length:
            if check is not None:
                check()
            with self._turn(min(length, MIB)) as turn:
                turn.moved = self._send_piece(out, fd, offset, turn.allowed)
            count = turn.moved
            offset += count
            length -= count
            self.sent += count
            if count == turn.allowed:
                gevent.sleep(0)
            elif length:
                self._wait_writable(out)

    def _turn(self, wanted: int) -> _Turn:
        return _Turn(self.lane, wanted if self.lane is None else self.lane.take(wanted))

    def _send_piece(self, out: int, fd: int, offset: int, wanted: int) -> int:
        try:
            count = os.sendfile(out, fd, offset, wanted)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in _GONE:
                raise
            raise _gone(error) from error
        if not count:
            raise FileTooShort(f"the file ends at {offset}")
        return count

    def _wait_writable(self, out: int) -> None:
        try:
            gevent_sockets.wait_write(out, self.idle_seconds, TimeoutError("the client reads nothing"))
        except OSError as error:
            raise _gone(error) from error

    def _take_turns(self, count: int) -> None:
        """A fast peer never makes us wait, so nobody else would ever run: give way once for each MiB."""
        self._moved += count
        if self._moved >= MIB:
            self._moved = 0
            gevent.sleep(0)

    # Ending

    def stop_reading(self) -> None:
        """Wake a greenlet that waits for the next request; one that is on its way is still read and answered."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(sockets.SHUT_RD)

    def linger(self, seconds: float, silence: float, most: int) -> None:
        """Tell the client that nothing more comes, then discard up to `most` bytes that it still sends, for `seconds` or until `silence`.

        Closing at once would reset the connection, and the client might lose the answer.
        """
        self.buffer.clear()
        with contextlib.suppress(OSError):
            self.socket.shutdown(sockets.SHUT_WR)
            self._discard(time.monotonic() + seconds, silence, most)

    def _discard(self, deadline: float, silence: float, most: int) -> None:
        scratch = memoryview(bytearray(256 * 1024))
        while most > 0 and (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(min(left, silence))
            count = self.socket.recv_into(scratch)
            if not count:
                return
            most -= count
            self._take_turns(count)

    def reset(self) -> None:
        """Make the close that follows a reset, where a plain end would look like a complete answer."""
        if not self._plain:
            self.socket.vanish()
        with contextlib.suppress(OSError):
            self.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))


class _Turn:
    """So many bytes may go out now; what does not, whatever is in the way, is given back at the end."""

    __slots__ = ("_lane", "allowed", "moved")

    def __init__(self, lane: Lane | None, allowed: int) -> None:
        self._lane = lane
        self.allowed = allowed
        self.moved = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lane is not None and self.moved < self.allowed:
            self._lane.give_back(self.allowed - self.moved)


def _gone(error: OSError) -> ClientGone:
    return ClientGone(f"the client is gone: {error}")
