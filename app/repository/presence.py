"""Are the files here that the database speaks of? A sample tells whether this is the folder that the others write to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import gevent
from sqlalchemy import Connection

from app.database.engines import Database
from app.database.statements import text
from app.errors import Unavailable
from app.storage.filesystem import address

# Of the newest blobs, and of those of all times.
SAMPLE = 20
# A few files may be lost, which is the scrub's to say; of a folder of one's own, nearly all are missing.
MOST_MISSING = 0.25
# Digest, row id, size in bytes.
Blob = tuple[str, int, int]


def sample(connection: Connection) -> list[Blob]:
    """The newest blobs and as many of all times, on whichever machine they were stored."""
    statement = text(
        "(select digest, id, size from arkvory_blobs where status = 'live' order by id desc limit :some) union "
        "(select digest, id, size from arkvory_blobs where status = 'live' and digest >= :random order by digest limit :some)"
    )
    return [(row.digest, row.id, row.size) for row in connection.execute(statement, {"some": SAMPLE, "random": secrets.token_hex(32)})]


def missing(data: Path, blobs: Sequence[Blob]) -> list[Blob]:
    """Those whose file is not in the data directory, or not of that size. Blocks."""
    return [blob for blob in blobs if _size(data, blob) != blob[2]]


def _size(data: Path, blob: Blob) -> int | None:
    try:
        # Opened, so that a network file system asks its server.
        with open(address(data / "blobs" / "sha256", *blob[:2]), "rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError:
        return None


def missing_words(data: Path, gone: Sequence[Blob], blobs: Sequence[Blob]) -> str:
    """What was found, for people."""
    return f"{len(gone)} of {len(blobs)} files that were stored lately or long ago are not below {data.resolve()}/blobs"


def require_shared_folder(database: Database, data: Path) -> None:
    """Raises Unavailable where a process of a cluster would store what no other one can serve, and miss what they stored."""
    with database.read() as connection:
        blobs = sample(connection)
    gone = gevent.get_hub().threadpool.apply(missing, (data, blobs))
    if len(gone) > len(blobs) * MOST_MISSING:
        raise Unavailable(
            f"{missing_words(data, gone, blobs)}: this is not the folder that the cluster's other servers write to. Mount the shared "
            "file system at `blobs` in the data directory, and start again; if the files are really lost, put them back from a backup, "
            "or start one server with ARKVORY_DEPLOYMENT=single"
        )
