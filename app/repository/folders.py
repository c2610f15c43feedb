"""What is directly in a folder of a repository, read by skipping over whole subfolders: the cost is that of the entries shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from app.database.statements import text
from app.repository.names import PATH_BYTES
from app.repository.withholding import Judge

PAGE = 1000
# Longer than any path and of the highest character: above every path that begins alike.
_LAST = "\U0010ffff" * (PATH_BYTES // 4 + 1)
_BATCH = 500


@dataclass(frozen=True)
class Entry:
    """A file, or a folder (its name ends in a slash, the rest is null); `size` in bytes."""

    name: str
    size: int | None = None
    sha256: str | None = None
    updated_at: datetime | None = None

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")


@dataclass(frozen=True)
class Page:
    """Up to `PAGE` entries in the order of their bytes; `next` is where the following page goes on, null on the last."""

    entries: Sequence[Entry]
    next: str | None


_QUERY = text(
    "select a.path, b.size, b.digest, a.updated_at, case when :judged then a.metadata - 'details' end as metadata "
    "from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id "
    "where a.repository_id = :id and not a.withheld and a.path > :after and a.path < :end order by a.path limit :limit"
)


_HELD = text(
    "select h.path from arkvory_holds h join arkvory_artifacts a on a.repository_id = h.repository_id and a.path = h.path and a.withheld "
    "where h.repository_id = :id and h.path > :folder and h.path < :end and strpos(substr(h.path, length(:folder) + 1), '/') = 0"
)


def list_folder(connection: Connection, repository_id: int, folder: str, after: str = "", judge: Judge | None = None) -> Page:
    """The entries of `folder` (empty, or ending in a slash) behind the name `after`, but for what `judge` leaves out."""
    judge = None if judge is None or judge.is_idle else judge
    entries: list[Entry] = []
    position, end = folder + _behind(after), _end_of(folder)
    while len(entries) <= PAGE:
        values = {"id": repository_id, "after": position, "end": end, "limit": _BATCH, "judged": judge is not None}
        rows = connection.execute(_QUERY, values).all()
        position = _collect(rows, folder, entries, position, judge)
        if len(rows) < _BATCH and not (entries and entries[-1].is_folder and rows):
            break
        if not rows:
            break
    return Page(entries[:PAGE], entries[PAGE - 1].name if len(entries) > PAGE else None)


def held_in_folder(connection: Connection, repository_id: int, folder: str) -> frozenset[str]:
    """Names of the files directly in the folder that are withheld."""
    values = {"id": repository_id, "folder": folder, "end": _end_of(folder)}
    return frozenset(row.path[len(folder) :] for row in connection.execute(_HELD, values))


@dataclass(frozen=True)
class Part:
    """What a member of a group has in a folder, and the names of files there that it withholds."""

    page: Page
    held: frozenset[str]
    judge: Judge


def united(parts: Sequence[Part]) -> Page:
    """The page of a group; the first member that has a name shows it, or withholds it."""
    found: dict[str, Entry] = {}
    held: set[str] = set()
    for part in parts:
        found |= {entry.name: entry for entry in part.page.entries if entry.name not in found and entry.name not in held}
        held |= part.held
    # Behind the end of a page that goes on, it is not known what that member has.
    ends = [part.page.next for part in parts if part.page.next is not None]
    names = sorted(name for name in found if not ends or name <= min(ends))
    end = names[PAGE - 1] if len(names) > PAGE else min(ends, default=None)
    return Page([found[name] for name in names[:PAGE]], end)


def _collect(rows: Sequence[Row[Any]], folder: str, entries: list[Entry], position: str, judge: Judge | None) -> str:
    """Add what the rows show, up to the first subfolder that goes on behind them; where to read next."""
    for row in rows:
        if row.path <= position:
            continue
        name, separator, _ = row.path[len(folder) :].partition("/")
        if separator:
            entry, position = Entry(name + "/"), folder + _behind(name + "/")
        else:
            entry, position = Entry(name, row.size, row.digest, row.updated_at), row.path
        if judge is None or not judge.leaves_out_copy(folder + entry.name, row.metadata):
            entries.append(entry)
    return position


def _behind(name: str) -> str:
    """Nothing that belongs to the entry lies behind it. No path holds a NUL, and PostgreSQL takes none."""
    return (name + _LAST if name.endswith("/") else name).replace("\0", "")


def _end_of(folder: str) -> str:
    """All of a folder lies before `name0`, since `0` follows `/`."""
    return folder[:-1] + "0" if folder else _LAST
