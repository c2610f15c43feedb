"""Files of this machine: read as bodies, and hashed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from arkvory.errors import LocalFile
from arkvory.retry import Stop
from arkvory.transport import PIECE

OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class Source:
    """A file as it was when it was first looked at."""

    file: Path
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, file: Path) -> Source:
        """Raises LocalFile where it cannot be read, or is none."""
        try:
            facts = file.stat()
        except OSError as error:
            raise LocalFile(f"{file} cannot be read: {error.strerror}") from error
        if not file.is_file():
            raise LocalFile(f"{file} is not a file")
        return cls(file, facts.st_size, facts.st_mtime_ns)

    def check(self) -> None:
        """Raises LocalFile when it is not what it was."""
        if Source.of(self.file) != self:
            raise LocalFile(f"{self.file} was changed while it was sent: upload it again when nobody writes it")


class Section:
    """Bytes from `start` to `stop` of a source, as the body of a request; `moved` hears how many of them went."""

    def __init__(self, source: Source, start: int, stop: int, halt: Stop, moved: OnBytes) -> None:
        self._source = source
        self._start = start
        self._stop = stop
        self._halt = halt
        self._moved = moved

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[bytes]:
        """From its first byte, as often as asked. Raises LocalFile when the file has become shorter, Stopped."""
        self._moved(0)
        with opened(self._source.file) as file:
            file.seek(self._start)
            at = self._start
            while at < self._stop:
                self._halt.check()
                piece = file.read(min(PIECE, self._stop - at))
                if not piece:
                    self._source.check()
                    raise LocalFile(f"{self._source.file} ends at {at} bytes")
                yield piece
                at += len(piece)
                self._moved(at - self._start)


@dataclass(frozen=True)
class Digests:
    """SHA-256 of a whole file and of each of its parts."""

    whole: str
    parts: list[str]


def hashed(source: Source, part_size: int, stop: Stop) -> Digests:
    """One walk over the file; without parts (`part_size` 0) only the whole. Raises LocalFile."""
    whole, parts = hashlib.sha256(), []
    with opened(source.file) as file:
        left = source.size
        while left:
            length = min(part_size or left, left)
            part = hashlib.sha256() if part_size else None
            _feed(source, file, length, [each for each in (whole, part) if each is not None], stop)
            left -= length
            if part is not None:
                parts.append(part.hexdigest())
    source.check()
    return Digests(whole.hexdigest(), parts)


def sha256_of(file: Path, stop: Stop | None = None) -> str:
    return hashed(Source.of(file), 0, stop or Stop()).whole


def opened(file: Path) -> IO[bytes]:
    """Raises LocalFile."""
    try:
        return file.open("rb", buffering=0)
    except OSError as error:
        raise LocalFile(f"{file} cannot be read: {error.strerror}") from error


def _feed(source: Source, file: IO[bytes], length: int, hashes: list[hashlib._Hash], stop: Stop) -> None:
    while length:
        stop.check()
        piece = file.read(min(4 * PIECE, length))
        if not piece:
            source.check()
            raise LocalFile(f"{source.file} ends too early")
        for each in hashes:
            each.update(piece)
        length -= len(piece)


def sync_folder(folder: Path) -> None:
    """So that a new name outlives a power cut, where the system can do that."""
    if os.name != "nt":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
