"""Bytes on their way in: streamed, hashed and written in the thread pool, some pieces in flight while the next are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import gevent
from gevent.event import AsyncResult

from app.errors import DigestMismatch, Invalid, UploadGivenUp
from app.storage import BlobStore, Incoming, Whole
from app.storage.disk import disk_errors
from app.storage.threads import apart, opened
from app.upload.admission import Admission, Reservation

PIECE = 1024 * 1024
# md5 runs at 40 % of SHA-256's speed: it is made for every small file, and for a large one only when asked.
SMALL = 32 * 1024 * 1024
# Two threads for one piece are worth their while from this size on.
APART = 256 * 1024
# Pieces that may wait for those in flight; all of them make up the next flight, so that threads change hands less often.
WAITING = 2
ALGORITHMS = ("md5", "sha1", "sha256", "sha512")

Read = Callable[[int], bytes]
# Puts the next bytes into a buffer, from its beginning: how many, 0 at the end.
Fill = Callable[[bytearray], int]


@dataclass(frozen=True)
class Expected:
    """What the client announced: lower-case hex digests by algorithm, and the length in bytes."""

    digests: Mapping[str, str] = field(default_factory=dict)
    size: int | None = None


@dataclass(frozen=True)
class Received:
    """A whole body, on the disk and synced; `checksums` are hex digests by algorithm, `sha256` among them."""

    reservation: Reservation
    incoming: Whole
    size: int
    checksums: Mapping[str, str]

    @property
    def sha256(self) -> str:
        return self.checksums["sha256"]

    @property
    def path(self) -> Path:
        return self.incoming.path


class Hashes:
    """The digests of one body; optional ones are dropped once the body is no longer small."""

    def __init__(self, asked: Iterable[str], when_small: Iterable[str]) -> None:
        self._asked = {name: hashlib.new(name, usedforsecurity=False) for name in {"sha256", *asked}}
        optional = set(when_small) - set(self._asked)
        self._optional = {name: hashlib.new(name, usedforsecurity=False) for name in optional}
        self._size = 0

    def update(self, piece: bytes | memoryview) -> None:
        self._size += len(piece)
        if self._size > SMALL:
            self._optional.clear()
        for each in (*self._asked.values(), *self._optional.values()):
            each.update(piece)

    def hex(self) -> dict[str, str]:
        return {name: each.hexdigest() for name, each in (self._asked | self._optional).items()}


@dataclass(frozen=True)
class Progress:
    """What has arrived of a body that comes in several requests: `size` bytes, and their hashes where this process made all of them."""

    size: int = 0
    hashes: Hashes | None = None


class Receiver:
    """One body on its way into a temporary file. Ends with `finish` or `discard`; with `pause` another one goes on with it.

    Each byte is hashed as it comes. Only where another process took in the first of them is the file read once more, at its end.
    """

    def __init__(
        self,
        admission: Admission,
        store: BlobStore,
        reservation: Reservation,
        expected: Expected,
        when_small: Iterable[str] = (),
        always: Iterable[str] = (),
        going_on: tuple[Incoming, Progress] | None = None,
    ) -> None:
        """`always` are the digests to make whatever the size, `when_small` those that a large body goes without.

        `going_on`: the temporary file that has a part of the body already.
        """
        self._admission = admission
        self._expected = expected
        self._reservation = reservation
        self._always = {"sha256", *expected.digests, *always}
        self._hashes: Hashes | None = Hashes((*expected.digests, *always), when_small)
        self._size = 0
        # Its bytes are all there, and may be placed.
        self.finished = False
        self._waiting: list[bytes | memoryview] = []
        self._flying: list[bytes | memoryview] = []
        self._spare: list[bytearray] = []
        self._flights: tuple[AsyncResult, ...] = ()
        self._pool = gevent.get_hub().threadpool
        if going_on is None:
            self._incoming: Incoming = opened(store.create, reservation.id, close=_discard)
        else:
            self._incoming, progress = going_on
            self._size = reservation.written = progress.size
            self._hashes = progress.hashes if progress.size else progress.hashes or self._hashes

    @property
    def size(self) -> int:
        """Bytes taken so far."""
        return self._size

    @property
    def path(self) -> Path:
        """The temporary file."""
        return self._incoming.path

    @property
    def written(self) -> int:
        """Bytes that are in the file."""
        return self._reservation.written

    def feed(self, piece: bytes | memoryview) -> None:
        """Take the next bytes; returns while they are being hashed and written. Raises CapacitySpent or TooLarge."""
        if not piece:
            return
        size = self._size + len(piece)
        if size > self._reservation.reserved:
            if self._reservation.exact:
                raise Invalid(f"the body is longer than the {self._reservation.reserved} bytes that were announced")
            self._admission.grow(self._reservation, size)
        self._size = size
        self._waiting.append(piece)
        if len(self._waiting) >= WAITING or all(flight.ready() for flight in self._flights):
            self._land()
            self._take_off()

    def drain(self, read: Read) -> None:
        """Feed all that `read(n)` gives, in pieces of 1 MiB."""
        while piece := read(PIECE):
            self.feed(piece)

    def drain_into(self, fill: Fill) -> None:
        """The same from a source that fills buffers, which are used again once their bytes are on the disk."""
        size = PIECE if self._expected.size is None else min(PIECE, max(self._expected.size, 1))
        while True:
            buffer = self._spare.pop() if self._spare else bytearray(size)
            count = fill(buffer)
            if not count:
                return
            self.feed(memoryview(buffer)[:count])

    def finish(self) -> Received:
        """Check length and digests, sync. Raises DigestMismatch, Invalid or CapacitySpent; then nothing is kept."""
        self._land()
        self._take_off()
        self._land()
        if self._expected.size is not None and self._size != self._expected.size:
            raise Invalid(f"the body has {self._size} bytes, {self._expected.size} were announced")
        self.finished = True
        checksums = self._checksums()
        for name, expected in self._expected.digests.items():
            if checksums[name] != expected:
                raise DigestMismatch(f"{name} of the body is {checksums[name]}, {expected} was announced")
        # As a flight: it is waited for, even by `discard` when whoever waits here is stopped.
        self._flights = (self._pool.spawn(self._incoming.sync),)
        self._land()
        return Received(self._reservation, self._incoming, self._size, checksums)

    def announce(self, size: int) -> None:
        """So many bytes come next: reserve all of them at once. Raises CapacitySpent or TooLarge."""
        if self._size + size > self._reservation.reserved:
            self._admission.grow(self._reservation, self._size + size, exactly=True)

    @property
    def reservation(self) -> Reservation:
        return self._reservation

    def flush(self) -> None:
        """What has been fed is on the disk. Raises CapacitySpent."""
        self._land()
        self._take_off()
        self._land()
        self._flights = (self._pool.spawn(_flush_file, self._incoming.path),)
        self._land()

    def pause(self) -> Progress:
        """Write what has been fed and let go of the file; `finish` is left to a later request. Raises UploadGivenUp."""
        self._land()
        # Whoever was told to end while the threads were busy may have lost some: nothing is written behind a gap.
        if self.written + sum(map(len, self._waiting)) == self._size:
            self._take_off()
            self._land()
        apart(self._incoming.close)
        return Progress(self.written, self._hashes if self.written == self._size else None)

    def _checksums(self) -> dict[str, str]:
        """Made while the bytes came; what was not is made from the file."""
        made = self._hashes.hex() if self._hashes is not None else {}
        missing = self._always - set(made)
        if missing:
            made |= apart(_hash_file, self._incoming.path, missing)
        return made

    def discard(self) -> None:
        """Stop and remove the temporary file; harmless after it was placed."""
        for flight in self._flights:
            flight.wait()
        apart(self._incoming.discard)

    def _take_off(self) -> None:
        """Hash and write what waits; neither waits for the other when there is enough to do."""
        self._flying = pieces = self._waiting
        self._waiting = []
        if not pieces:
            return
        # Each may have to wait for a thread.
        for work in (self._store,) if sum(map(len, pieces)) < APART else (self._hash, self._write):
            self._flights = (*self._flights, self._pool.spawn(work, pieces))

    def _land(self) -> None:
        """Wait for the pieces in flight; raises what its hashing or writing raised."""
        # A wait that is interrupted leaves them to `discard`: no file may be closed under a thread that writes it.
        for flight in self._flights:
            flight.wait()
        flights, self._flights = self._flights, ()
        for flight in flights:
            flight.get()
        flown, self._flying = self._flying, []
        self._spare += [cast(bytearray, piece.obj) for piece in flown if isinstance(piece, memoryview)]

    def _store(self, pieces: Sequence[bytes | memoryview]) -> None:
        self._hash(pieces)
        self._write(pieces)

    def _hash(self, pieces: Sequence[bytes | memoryview]) -> None:
        if self._hashes is None:
            return
        for piece in pieces:
            self._hashes.update(piece)

    def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        for piece in pieces:
            self._incoming.write(piece)
            self._reservation.written += len(piece)


def _discard(incoming: Incoming) -> None:
    incoming.discard()


def _flush_file(path: Path) -> None:
    """What was written into it, by whatever descriptor, is on the disk. Raises UploadGivenUp when another one has taken it over."""
    try:
        with disk_errors(FileNotFoundError), path.open("rb", buffering=0) as file:
            os.fdatasync(file.fileno())
    except FileNotFoundError:
        raise UploadGivenUp from None


def _hash_file(path: Path, algorithms: Iterable[str]) -> dict[str, str]:
    hashes = Hashes(algorithms, ())
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            hashes.update(piece)
    return {name: digest for name, digest in hashes.hex().items() if name in algorithms}
