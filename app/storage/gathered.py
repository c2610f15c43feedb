"""A temporary file that several requests write into at once, each a range of its own (ADR 12)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from pathlib import Path

from app.storage import writeback
from app.storage.disk import disk_errors

WHOLE = ".whole"
# Of a name that says which digest the bytes have.
_DIGEST_SUFFIX = 1 + 64


class WindowOfFile:
    """A range of a file that is there. Raises FileNotFoundError when it is not: none is ever made here."""

    def __init__(self, path: Path, offset: int, size: int) -> None:
        self.path = path
        self._at = self._begun = offset
        self._end = offset + size
        with disk_errors(FileNotFoundError):
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, piece: bytes | memoryview) -> None:
        """Raises CapacitySpent when the disk is full."""
        view = memoryview(piece)
        assert len(view) <= self._end - self._at, "a part writes beyond its range"
        with disk_errors():
            while view:
                count = os.pwrite(self._fd, view, self._at)
                view, self._at = view[count:], self._at + count
        if self._at - self._begun >= writeback.BEHIND:
            writeback.begin(self._fd, self._begun, self._at - self._begun)
            self._begun = self._at

    def sync(self) -> None:
        """The end of writing: on the disk, and the descriptor given back, with which nobody can write here any more."""
        with disk_errors():
            os.fsync(self._fd)
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def discard(self) -> None:
        self.close()


class GatheredFile:
    """All parts of an upload in one file, under a name of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.staged = len(path.suffix) == _DIGEST_SUFFIX

    @property
    def size(self) -> int:
        with disk_errors():
            return self.path.stat().st_size

    def cut(self, size: int) -> None:
        assert not self.staged, "a blob may have these bytes"
        with disk_errors(), self.path.open("r+b") as file:
            os.ftruncate(file.fileno(), size)
            os.fsync(file.fileno())

    def is_sole(self) -> bool:
        try:
            with self.path.open("rb") as file:
                # Whoever opens it at that very moment is announced by a signal; the usual one would end the process.
                fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
                # A read lease is granted when nobody has the file open for writing: the kernel counts (fcntl(2), F_SETLEASE).
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            return False
        return True

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)


def found(name: Path) -> GatheredFile | None:
    """The gathered file of an upload, `name` being that of its temporary file; one that was staged goes before one that was not."""
    digested = (each for each in name.parent.glob(f"{name.name}.*") if len(each.suffix) == _DIGEST_SUFFIX)
    for path in (*digested, name.with_suffix(WHOLE)):
        with contextlib.suppress(FileNotFoundError):
            path.stat()
            return GatheredFile(path)
    return None
