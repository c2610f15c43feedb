"""Reading what came in parts once more, from one end to the other: its digest, those of its parts, and a copy where one is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.storage import Incoming
from app.storage.disk import disk_errors
from app.storage.threads import apart
from app.upload.multipart import Part
from app.upload.receiving import PIECE

# In one turn of a thread: whoever waits is told to stop between two.
STEP = 64 * PIECE


class Passage:
    """One reading of a file that its parts make up, in their order. Everything but `run` is a thread's."""

    def __init__(self, source: Path, parts: Sequence[Part], *, each: bool, copy: Incoming | None = None) -> None:
        """`each`: whether the parts' own digests are made too; `copy`: where the bytes go that were read."""
        self._source = source
        self._parts = parts
        self._each = each
        self._copy = copy
        self._whole = hashlib.sha256(usedforsecurity=False)
        # Numbers of parts that are not what they were.
        self.damaged: list[int] = []

    @property
    def sha256(self) -> str:
        """In hexadecimal, once all has been read."""
        return self._whole.hexdigest()

    def run(self) -> None:
        """Read it all in the thread pool, in turns. Raises CapacitySpent or Unavailable."""
        turns, more = self._turns(), True
        while more:
            more = apart(next, turns, False)

    def _turns(self) -> Iterator[bool]:
        """Reads, and pauses after each step."""
        done = 0
        buffer = memoryview(bytearray(PIECE))
        with disk_errors(), self._source.open("rb", buffering=0) as file:
            for part in self._parts:
                own = hashlib.sha256(usedforsecurity=False)
                left = part.size
                while left and (count := file.readinto(buffer[: min(left, PIECE)])):
                    self._take(buffer[:count], own)
                    left -= count
                    done += count
                    if done >= STEP:
                        done = 0
                        yield True
                if left or (self._each and own.hexdigest() != part.sha256):
                    self.damaged.append(part.number)

    def _take(self, piece: memoryview, own: hashlib._Hash) -> None:
        self._whole.update(piece)
        if self._each:
            own.update(piece)
        if self._copy is not None:
            self._copy.write(piece)
