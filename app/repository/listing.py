"""What is in a repository, for people: lists, one artifact, sums, search. Answered from the database, in one state of it.

Lists are by path and read the index from where the last page ended. A search looks at a bounded number of
paths for each page, so a page may hold few items, or none, and still have a next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row

from app.access.authority import Authority
from app.access.decision import MANAGE, READ, Access, Grant, deployed, find_repository
from app.access.identity import Caller, Identity
from app.access.visibility import APPLIES, KNOWN, subject
from app.cache.snapshots import EPOCHS, FACTS, Snapshot, snapshot_of
from app.database.engines import Database
from app.database.paging import Page
from app.database.statements import text
from app.errors import Forbidden, NotFound, Quarantined, Unauthenticated
from app.repository.formats import is_internal, main_path
from app.repository.members import members_now
from app.repository.names import PATH_BYTES
from app.repository.quotas import level_of

# Most paths that one page of a search looks at, and most repositories.
LOOKED_AT = 20_000
REPOSITORIES_LOOKED_AT = 200

# Longer than any path and of the highest character: above every path that begins alike.
_LAST = "\U0010ffff" * (PATH_BYTES // 4 + 1)


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact as it is shown; `size` in bytes. `member`: of a group, the one that has it."""

    repository: str
    member: str | None
    format: str
    path: str
    size: int
    sha256: str
    content_type: str
    package: str | None
    version: str | None
    created_by: str | None
    created_at: datetime
    updated_at: datetime
    # Shown to those who may manage the repository; others do not see what is held at all.
    held: str | None
    trust: str | None
    held_at: datetime | None
    # As they were written last, half a minute ago at most.
    downloads: int
    last_downloaded_at: datetime | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes by the status of their uploads, as admission counts them, and how many artifacts there are.

    `quota_level`: see `quotas.level_of`; null without a quota. Downloads are also those of what is gone since.
    """

    open: int
    published: int
    garbage: int
    quota_bytes: int | None
    quota_level: int | None
    artifacts: int
    downloads: int
    last_downloaded_at: datetime | None


@dataclass(frozen=True, slots=True)
class Filter:
    """`prefix` of the path, exactly; `words` anywhere in it, in any case."""

    prefix: str = ""
    words: str = ""

    def finds(self, path: str) -> bool:
        """Whether the words are in a path that begins as it must."""
        return self.words.lower() in path.lower()


class Listing:
    """Each caller sees the paths that they may read, no others."""

    def __init__(self, database: Database, access: Access) -> None:
        self._database = database
        self._access = access
        self._authority = Authority(access.identities)

    def artifacts(self, caller: Caller, repository: str, wanted: Filter, limit: int, after: str = "") -> Page[Artifact]:
        """By path; of a group the union of what its members have. Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            snapshot = find_repository(connection, caller, repository)
            grant = self._access.grant_now(connection, caller, snapshot, READ)
            held_too = self._manages(connection, caller, snapshot)
            members = members_now(connection, snapshot)
            # What one of them withholds, no later one shows.
            pages = [
                _Pages(connection, wanted, limit, held_too=held_too or bool(members), member=each).fill(snapshot, grant, after)
                for each in members or (None,)
            ]
        return _united(pages, limit, held_too=held_too)

    def artifact(self, caller: Caller, repository: str, path: str) -> Artifact:
        """Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            snapshot = find_repository(connection, caller, repository)
            self._access.require_now(connection, caller, snapshot, READ, path)
            found = _first(connection, snapshot, path)
            if found is None or is_internal(snapshot.format, path):
                raise NotFound(f"there is no {path!r} in repository {repository!r}")
            if found.held is not None and not self._manages(connection, caller, snapshot):
                raise Quarantined(f"{path!r} is held in quarantine: {found.held}")
        return found

    def of_uploads(self, uploads: Sequence[tuple[int, str, UUID]]) -> Mapping[UUID, Artifact]:
        """What uploads became, given by repository, path and id, unless it was replaced or deleted since. Asks for no right."""
        values = {
            "repositories": [each[0] for each in uploads],
            "paths": [each[1] for each in uploads],
            "uploads": [str(each[2]) for each in uploads],
        }
        with self._database.read() as connection:
            rows = connection.execute(_OF_UPLOADS, values).all()
        return {row.upload_id: _shown_to_all(row) for row in rows}

    def _manages(self, connection: Connection, caller: Caller, snapshot: Snapshot) -> bool:
        """Whether the caller may see what is held, to release it."""
        try:
            return self._access.grant_now(connection, caller, snapshot, MANAGE).whole
        except (Forbidden, NotFound, Unauthenticated):
            return False

    def format(self, caller: Caller, repository: str) -> str:
        """The format of a repository that the caller may know of. Raises NotFound or Unauthenticated."""
        with self._database.read() as connection:
            snapshot = find_repository(connection, caller, repository)
            self._access.require_known(connection, caller, snapshot)
        return snapshot.format

    def usage(self, caller: Caller, repository: str) -> Usage:
        """Needs `read` for the whole repository. Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            snapshot = find_repository(connection, caller, repository)
            self._access.require_whole(connection, caller, snapshot, READ)
            counters = connection.execute(_COUNTERS, {"id": snapshot.id}).all()
            row = connection.execute(_COUNTS, {"id": snapshot.id}).one()
        sums = dict.fromkeys(("open", "published", "garbage"), 0) | {each.status: int(each.bytes) for each in counters}
        # Each artifact is what one upload was published as.
        artifacts = sum(int(each.uploads) for each in counters if each.status == "published")
        level = None if row.quota_bytes is None else level_of(sums["open"] + sums["published"], row.quota_bytes)
        return Usage(
            **sums, quota_bytes=row.quota_bytes, quota_level=level, artifacts=artifacts, downloads=row.downloads,
            last_downloaded_at=row.last_downloaded_at,
        )  # fmt: skip

    def packages(
        self, caller: Caller, format: str, limit: int, after: tuple[str, str] = ("", ""), only: str | None = None
    ) -> Page[tuple[str, str]]:
        """Repository and package of all that the caller may read of one format, in that order, behind `after`; of the repository `only`.

        A group has what its members have.
        """
        with self._database.consistent() as connection:
            self._access.admit(connection, caller)
            identity = self._authority.present(connection, caller)
            found: list[tuple[str, str]] = []
            # A client takes a page that is not full for the last one, however many repositories have nothing.
            for row in self._known_of_format(connection, identity, format, after[0], only):
                start = after[1] if row.name == after[0] else ""
                names = _package_names(connection, row.holders or [row.id], _grant(row, identity), start, limit + 1 - len(found))
                found += [(row.name, name) for name in names]
                if len(found) > limit:
                    return Page(found[:limit], found[limit - 1] if limit else None)
        return Page(found)

    def _known_of_format(
        self, connection: Connection, identity: Identity | None, format: str, first: str, only: str | None
    ) -> Iterator[Row[Any]]:
        """Repositories from the name `first` on."""
        values = {"from": first, "format": format, "only": only, "limit": REPOSITORIES_LOOKED_AT, **subject(identity)}
        while known := connection.execute(_KNOWN_OF_FORMAT, values).all():
            yield from known
            # The least name that is higher.
            values["from"] = f"{known[-1].name}\x01"

    def search(self, caller: Caller, wanted: Filter, limit: int, after: tuple[str, str] = ("", "")) -> Page[Artifact]:
        """In all repositories that the caller may read, by repository and path; `after` is such a pair.

        What stands beside a file (a signature) is found only by words that do not find the file.
        """
        with self._database.consistent() as connection:
            self._access.admit(connection, caller)
            identity = self._authority.present(connection, caller)
            pages = _Pages(connection, wanted, limit, beside_too=False)
            known = connection.execute(_KNOWN, {"from": after[0], "limit": REPOSITORIES_LOOKED_AT + 1, **subject(identity)}).all()
            for row in known[:REPOSITORIES_LOOKED_AT]:
                if not pages.read(snapshot_of(row), _grant(row, identity), after[1] if row.name == after[0] else ""):
                    break
            else:
                pages.ended = len(known) <= REPOSITORIES_LOOKED_AT
                if not pages.ended:
                    pages.position = (known[REPOSITORIES_LOOKED_AT - 1].name, _LAST)
        return pages.page()


def _grant(row: Row[Any], identity: Identity | None) -> Grant:
    """What `Access.grant_now` would give for reading, from a row of `_KNOWN`."""
    if row.public:
        return Grant(whole=True)
    if identity is not None and identity.deploy is not None:
        return deployed(identity.deploy, row.id, READ)
    if identity is not None and identity.token is not None and READ not in identity.token.permissions:
        return Grant()
    return Grant(whole=row.whole or "" in row.prefixes, prefixes=tuple(row.prefixes))


def _package_names(connection: Connection, repository_ids: Sequence[int], grant: Grant, after: str, limit: int) -> list[str]:
    names: list[str] = []
    for low, high in _ranges(grant, ""):
        values = {"ids": list(repository_ids), "low": low, "high": high, "after": after, "limit": limit - len(names)}
        names += connection.execute(_PACKAGES, values).scalars()
    return names


class _Pages:
    """Fills one page from the ranges of paths that may be read, within a bound on the paths looked at.

    With a `member`, what that one has of what a group shows.
    """

    def __init__(
        self,
        connection: Connection,
        wanted: Filter,
        limit: int,
        *,
        held_too: bool = False,
        beside_too: bool = True,
        member: Snapshot | None = None,
    ) -> None:
        self._connection = connection
        self._member = member
        self._held_too = held_too
        self._beside_too = beside_too
        self._wanted = wanted
        self._limit = limit
        self._left = LOOKED_AT
        self.items: list[Artifact] = []
        # Repository and path of what was looked at last; a page that has not `ended` goes on behind it.
        self.position = ("", "")
        self.ended = False

    def fill(self, snapshot: Snapshot, grant: Grant, after: str) -> _Pages:
        """With what this repository alone has."""
        self.ended = self.read(snapshot, grant, after)
        return self

    def read(self, snapshot: Snapshot, grant: Grant, after: str) -> bool:
        """False when the page is full, or enough was looked at."""
        for low, high in _ranges(grant, self._wanted.prefix):
            more = after < high
            while more:
                batch = self._batch()
                rows = self._rows((self._member or snapshot).id, max(low, after), high, strictly=after >= low, batch=batch)
                if not self._take(snapshot, rows):
                    return False
                more = len(rows) == batch
                after = rows[-1].path if rows else after
        return True

    def _batch(self) -> int:
        """One more than the page has room for tells whether there is a next page."""
        room = self._limit - len(self.items) + 1
        return min(self._left, max(room, 1000) if self._wanted.words else room)

    def _take(self, snapshot: Snapshot, rows: Sequence[Row[Any]]) -> bool:
        for row in rows:
            if len(self.items) == self._limit:
                return False
            self.position = (snapshot.name, row.path)
            if self._shows(snapshot, row.path):
                self.items.append(_artifact(snapshot, self._member, row))
        self._left -= len(rows)
        return self._left > 0

    def _shows(self, snapshot: Snapshot, path: str) -> bool:
        if not self._wanted.finds(path) or is_internal(snapshot.format, path):
            return False
        main = path if self._beside_too else main_path(snapshot.format, path)
        return main == path or not self._wanted.finds(main)

    def _rows(self, repository_id: int, low: str, high: str, *, strictly: bool, batch: int) -> Sequence[Row[Any]]:
        return self._connection.execute(
            text(
                f"{_ARTIFACTS} where a.repository_id = :id and a.path {'>' if strictly else '>='} :low and a.path < :high "
                f"{'' if self._held_too else 'and not a.withheld '}"
                "order by a.path limit :batch"
            ),
            {"id": repository_id, "low": low, "high": high, "batch": batch},
        ).all()

    def page(self) -> Page[Artifact]:
        return Page(self.items, None if self.ended else self.position)


def _united(pages: Sequence[_Pages], limit: int, *, held_too: bool) -> Page[Artifact]:
    """As far as all of them were looked at; of each path what the first has, also where that is held."""
    end = min((each.position[1] for each in pages if not each.ended), default=_LAST)
    first: dict[str, Artifact] = {}
    for each in pages:
        for item in each.items:
            if item.path <= end:
                first.setdefault(item.path, item)
    found = [first[path] for path in sorted(first)]
    if len(found) > limit:
        found, end = found[:limit], found[limit - 1].path
    return Page([each for each in found if held_too or each.held is None], None if end == _LAST else (end,))


def _first(connection: Connection, snapshot: Snapshot, path: str) -> Artifact | None:
    """What is at a path; of a group the first member's."""
    statement = text(f"{_ARTIFACTS} where a.repository_id = :id and a.path = :path")
    for member in members_now(connection, snapshot) or (None,):
        row = connection.execute(statement, {"id": (member or snapshot).id, "path": path}).first()
        if row is not None:
            return _artifact(snapshot, member, row)
    return None


def _shown_to_all(row: Row[Any]) -> Artifact:
    """Whether it is held is for those to see who may manage the repository."""
    return Artifact(
        row.repository, None, row.format, row.path, row.size, row.digest, row.content_type, row.package, row.version, row.created_by,
        row.created_at, row.updated_at, None, None, None, row.downloads, row.last_downloaded_at,
    )  # fmt: skip


def _ranges(grant: Grant, prefix: str) -> Iterator[tuple[str, str]]:
    """Half-open ranges of the paths that may be read and begin with `prefix`, in order, without overlap."""
    allowed = [("", _LAST)] if grant.whole else _merged([each for one in grant.prefixes for each in _below(one)])
    first, last = (prefix, prefix + _LAST) if prefix else ("", _LAST)
    for low, high in allowed:
        if max(low, first) < min(high, last):
            yield max(low, first), min(high, last)


def _below(prefix: str) -> list[tuple[str, str]]:
    """`a/b` covers itself and what is below it, not `a/bc`; `0` is the character after the slash."""
    folder = prefix.removesuffix("/")
    below = (folder + "/", folder + "0")
    return [below] if prefix.endswith("/") else [(prefix, prefix + "\x01"), below]


def _merged(ranges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    merged: list[tuple[str, str]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _artifact(snapshot: Snapshot, member: Snapshot | None, row: Row[Any]) -> Artifact:
    return Artifact(snapshot.name, None if member is None else member.name, snapshot.format, *tuple(row))


_ARTIFACTS = (
    "select a.path, b.size, b.digest, a.content_type, p.name as package, a.version, u.name as created_by, a.created_at, a.updated_at, "
    "h.reason as held, h.trust, h.held_at, coalesce(d.count, 0) as downloads, d.last_at as last_downloaded_at "
    "from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id left join arkvory_packages p on p.id = a.package_id "
    "left join arkvory_users u on u.id = a.created_by left join arkvory_holds h on h.repository_id = a.repository_id and h.path = a.path "
    "left join arkvory_downloads d on d.artifact_id = a.id"
)
_OF_UPLOADS = text(
    "select f.*, r.name as repository, r.format, t.upload_id from unnest(cast(:repositories as bigint[]), cast(:paths as text[]), "
    "cast(:uploads as uuid[])) as t(repository_id, path, upload_id) join arkvory_repositories r on r.id = t.repository_id "
    f"cross join lateral ({_ARTIFACTS} where a.repository_id = t.repository_id and a.path = t.path and a.upload_id = t.upload_id) f"
)
_COUNTERS = text("select status, bytes, uploads from arkvory_upload_bytes where repository_id = :id")
_COUNTS = text(
    "select r.quota_bytes, coalesce(d.count, 0) as downloads, d.last_at as last_downloaded_at "
    "from arkvory_repositories r left join arkvory_repository_downloads d on d.repository_id = r.id where r.id = :id"
)
_PREFIXES = (
    "array(select coalesce(a.path_prefix, '') from arkvory_rules a where a.repository_id = r.id and 'read' = any(a.permissions) "
    f"and {APPLIES})"
)
_PACKAGES = text(
    "select distinct p.name from unnest(cast(:ids as bigint[])) as h(id) cross join lateral (select name from arkvory_packages "
    "where repository_id = h.id and artifacts > 0 and name >= :low and name < :high and name > :after order by name limit :limit) as p "
    "order by p.name limit :limit"
)
_KNOWN_OF_FORMAT = text(
    f"select {FACTS}, {EPOCHS}, (:everything or coalesce(r.creator_id = :user, false)) as whole, {_PREFIXES} as prefixes, "
    # Of a group those whose packages it has, at this moment.
    "array(select o.id from arkvory_members m join arkvory_repositories o on o.id = m.member_id and o.status = 'online' "
    "where m.group_id = r.id) as holders "
    "from arkvory_repositories r where r.tenant = 'default' and r.deleted_at is null and r.status = 'online' and r.name >= :from "
    f"and r.format = :format and (cast(:only as text) is null or r.name = :only) and {KNOWN} order by r.name limit :limit"
)
_KNOWN = text(
    f"select {FACTS}, {EPOCHS}, (:everything or coalesce(r.creator_id = :user, false)) as whole, "
    f"{_PREFIXES} as prefixes from arkvory_repositories r where r.tenant = 'default' and r.deleted_at is null and r.name >= :from "
    f"and {KNOWN} order by r.name limit :limit"
)
