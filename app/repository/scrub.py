"""Scrubbing: reading what is stored again, and comparing it with what it should be. It reports, and never deletes.

Blobs are taken in the order of their digests, so that a digest is all that is needed to go on later. Their bytes are hashed in the
thread pool, no faster than asked, and read from the disk rather than from the kernel's memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore
from sqlalchemy import Row

from app.database.engines import Database
from app.database.statements import text
from app.errors import ArkvoryError
from app.storage import BlobStore, OpenBlob
from app.storage.threads import apart

BATCH = 200
PIECE = 1024 * 1024
# Pieces for each visit to the thread pool.
PIECES = 4
STEP_SECONDS = 5.0
MOST_ARTIFACTS = 100

MISSING, SIZE, CORRUPT, UNREADABLE = "missing", "size", "corrupt", "unreadable"


@dataclass(frozen=True)
class Use:
    """An artifact that needs the blob."""

    repository: str
    path: str


@dataclass(frozen=True)
class Damage:
    """A blob that is not what it should be: `problem` is one of missing, size, corrupt, unreadable; at most 100 `artifacts` of `uses`."""

    digest: str
    size: int
    problem: str
    detail: str
    uses: int
    artifacts: list[Use]


@dataclass
class Scrubbed:
    """What one step did; `next` is where the following one begins, null at the end."""

    blobs: int = 0
    bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    next: str | None = None


class Scrub:
    """One step at a time, whoever asks."""

    def __init__(self, database: Database, store: BlobStore) -> None:
        self._database = database
        self._store = store
        self._turn = BoundedSemaphore(1)

    def step(self, start: str, bytes_per_second: int) -> Scrubbed:
        """Check live blobs from the digest `start` on, for some seconds and at least one blob. Raises DatabaseAway."""
        with self._turn:
            done = Scrubbed()
            deadline = time.monotonic() + STEP_SECONDS
            for row in self._blobs(start):
                if done.blobs and time.monotonic() >= deadline:
                    done.next = row.digest
                    break
                self._check(row, bytes_per_second, done)
            return done

    def _blobs(self, start: str) -> Iterator[Row[Any]]:
        statement = text(
            f"select id, digest, size from arkvory_blobs where digest >= :start and status = 'live' order by digest limit {BATCH}"
        )
        while True:
            with self._database.read() as connection:
                rows = connection.execute(statement, {"start": start}).all()
            yield from rows
            if len(rows) < BATCH:
                return
            # Longer than any digest: behind this one, and before every other.
            start = rows[-1].digest + "0"

    def _check(self, row: Row[Any], rate: int, done: Scrubbed) -> None:
        done.blobs += 1
        found = self._problem(row, rate, done)
        if found is not None and self._still_live(row.id):
            done.damages.append(self._damage(row, *found))

    def _problem(self, row: Row[Any], rate: int, done: Scrubbed) -> tuple[str, str] | None:
        """What is wrong, in a word and in a sentence."""
        try:
            blob = self._store.open(row.digest, row.id)
        except FileNotFoundError:
            return MISSING, "its file is not there"
        except ArkvoryError as error:
            return UNREADABLE, f"its file cannot be opened: {error.__cause__ or error}"
        with contextlib.closing(blob):
            if blob.size != row.size:
                return SIZE, f"its file has {blob.size} bytes instead of {row.size}"
            try:
                shown = self._hash(blob, rate, done)
            except OSError as error:
                return UNREADABLE, f"its file cannot be read: {error.strerror}"
        return None if shown == row.digest else (CORRUPT, f"the bytes of its file are those of {shown}")

    def _hash(self, blob: OpenBlob, rate: int, done: Scrubbed) -> str:
        digest = hashlib.sha256()
        apart(_forget_pages, blob.fd)
        began, offset = time.monotonic(), 0
        while offset < blob.size:
            count = apart(_read_on, blob.fd, offset, digest)
            if not count:
                break
            offset += count
            gevent.sleep(max(0.0, began + offset / rate - time.monotonic()))
        done.bytes += offset
        return digest.hexdigest()

    def _still_live(self, blob_id: int) -> bool:
        """Cleanup may have taken it meanwhile (W3)."""
        with self._database.read() as connection:
            found = connection.execute(text("select 1 from arkvory_blobs where id = :id and status = 'live'"), {"id": blob_id})
            return found.first() is not None

    def _damage(self, row: Row[Any], problem: str, detail: str) -> Damage:
        uses = (
            "from arkvory_artifacts a join arkvory_repositories r on r.id = a.repository_id "
            "where a.blob_id = :id and r.deleted_at is null"
        )
        with self._database.read() as connection:
            count = int(connection.execute(text(f"select count(*) {uses}"), {"id": row.id}).scalar_one())
            some = connection.execute(text(f"select r.name, a.path {uses} order by r.name, a.path limit {MOST_ARTIFACTS}"), {"id": row.id})
            return Damage(row.digest, row.size, problem, detail, count, [Use(each.name, each.path) for each in some])


def _forget_pages(fd: int) -> None:
    """What lies on the disk is to be read, not what the kernel remembers of it; only a hint."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _read_on(fd: int, offset: int, digest: Any) -> int:
    """Feed the next pieces to the digest; how many bytes, 0 at the end."""
    count = 0
    for _ in range(PIECES):
        piece = os.pread(fd, PIECE, offset + count)
        if not piece:
            break
        digest.update(piece)
        count += len(piece)
    return count
