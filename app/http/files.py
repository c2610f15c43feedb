"""A piece of a file on its way out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

_PIECE = 256 * 1024


class FileBody:
    """`length` bytes at `offset` of an open file, which it owns: `close()` closes it, once.

    An application sets it as `environ["arkvory.file"]` and returns it as its iterable: our server sends it with `sendfile`,
    any other one iterates. `on_close` replaces the plain `os.close` where more than a descriptor is to be given back; `check` is
    called before each piece, and what it raises ends the answer.
    """

    __slots__ = ("_on_close", "check", "fd", "length", "offset")

    def __init__(
        self, fd: int, offset: int, length: int, on_close: Callable[[], None] | None = None, check: Callable[[], None] | None = None
    ) -> None:
        self.fd = fd
        self.offset = offset
        self.length = length
        self.check = check
        self._on_close = on_close

    def __iter__(self) -> Iterator[bytes]:
        offset, end = self.offset, self.offset + self.length
        while offset < end:
            if self.check is not None:
                self.check()
            piece = os.pread(self.fd, min(_PIECE, end - offset), offset)
            if not piece:
                raise OSError(f"the file ends at {offset}, expected {end}")
            offset += len(piece)
            yield piece

    def close(self) -> None:
        """Give the file back; harmless when done before."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        if self._on_close is not None:
            self._on_close()
        else:
            os.close(fd)

    def __del__(self) -> None:
        # The net under an answer that was made and then replaced by another, so that nobody closes it.
        if getattr(self, "fd", -1) >= 0:
            self.close()
