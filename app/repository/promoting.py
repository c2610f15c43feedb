"""Copying between repositories without moving bytes: the blobs stay where they are, further paths point at them.

What is copied is read as its reader would, and stored as its publisher would: the same rights, policies, holds and quotas. All or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from app.access.decision import READ, Access, find_repository
from app.access.identity import Caller
from app.cache.snapshots import Snapshot
from app.database.engines import Database
from app.database.statements import text
from app.errors import ArkvoryError, Invalid, NotAllowedHere, NotFound, Quarantined
from app.repository.blobs import Linked
from app.repository.formats import FORMATS
from app.repository.members import require_own
from app.repository.publishing import Also, KnownBlob, NewFile, Package, Published, Publisher, Session, Target
from app.repository.reading import check_online
from app.repository.references import Reference, closure

MOST_ARTIFACTS = 1000


@dataclass(frozen=True, slots=True)
class Selection:
    """What to copy: `paths` (one that ends in a slash means all below it), or a `version` of a `package`, all of them where it is null."""

    paths: Sequence[str] = ()
    package: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """What was copied: how many artifacts, and how many of them are new at their path."""

    artifacts: int
    created: int


class Promoter:
    """Copies within one format."""

    def __init__(self, database: Database, access: Access, publisher: Publisher) -> None:
        self._database = database
        self._access = access
        self._publisher = publisher

    def promote(self, caller: Caller, source: str, target: str, selection: Selection) -> Promotion:
        """Copy what is selected, with all that belongs to it.

        Raises Invalid, NotFound, Quarantined, and what reading and publishing raise.
        """
        with self._database.consistent() as connection:
            snapshot = find_repository(connection, caller, source)
            check_online(snapshot)
            require_own(snapshot)
            _require_whole(snapshot)
            copies = self._select(connection, caller, snapshot, selection)
        into = Target(snapshot.format, target, caller)
        with self._publisher.begin(into, None, links=True) as session:
            if session.snapshot.id == snapshot.id:
                raise _same(snapshot, target)
            published = _publish(session, copies)
        return Promotion(len(published), sum(1 for each in published if each.created))

    def readable(self, source: Target, path: str) -> KnownBlob | None:
        """The bytes at a path, if the caller may have them; null when not, for whatever reason."""
        try:
            with self._database.consistent() as connection:
                snapshot = find_repository(connection, source.caller, source.repository, source.tenant, source.format)
                check_online(snapshot)
                rows = self._rows(connection, source.caller, snapshot, [path])
        except ArkvoryError:
            return None
        return _blob(rows[0])

    def _select(self, connection: Connection, caller: Caller, snapshot: Snapshot, selection: Selection) -> list[Copy]:
        """In no order; the caller may read each."""
        paths = _selected(connection, snapshot, selection)
        if not paths:
            raise _nothing(snapshot, selection)
        if FORMATS[snapshot.format].references:
            paths = sorted({*paths, *closure(connection, snapshot.id, paths)})
        if len(paths) > MOST_ARTIFACTS:
            raise Invalid(f"at most {MOST_ARTIFACTS} artifacts are copied at once, these are {len(paths)}")
        rows = self._rows(connection, caller, snapshot, paths)
        references = _references(connection, [row.id for row in rows])
        parts = _parts(connection, snapshot, paths)
        return [Copy(row, tuple(references.get(row.id, ())), row.path in parts) for row in rows]

    def _rows(self, connection: Connection, caller: Caller, snapshot: Snapshot, paths: Sequence[str]) -> Sequence[Row[Any]]:
        """Raises NotFound, Quarantined and what a reader may not have."""
        for path in paths:
            self._access.require_now(connection, caller, snapshot, READ, path)
        rows = connection.execute(_ARTIFACTS, {"id": snapshot.id, "paths": list(paths)}).all()
        if missing := sorted(set(paths) - {row.path for row in rows}):
            raise NotFound(f"there is no {missing[0]!r} in repository {snapshot.name!r}")
        for row in rows:
            if row.withheld:
                raise Quarantined(f"{row.path!r} is held in quarantine")
        return rows


def _require_whole(source: Snapshot) -> None:
    """Raises NotAllowedHere for a proxy whose copies are less than what a hosted repository has of the same."""
    if source.upstream_url is not None and FORMATS[source.format].indexes:
        raise NotAllowedHere(
            f"repository {source.name!r} is a proxy: its copies are files without what the index of a hosted repository is made of; "
            "download the package and publish it where it is to be"
        )


def _same(source: Snapshot, target: str) -> Invalid:
    if target == source.name:
        return Invalid("source and target are the same repository", field="to")
    told = f"{target!r} is a group that publishes to {source.name!r}, where this is already; through the group it can be read"
    return Invalid(told, field="to")


def _nothing(source: Snapshot, selection: Selection) -> NotFound:
    version = f"version {selection.version!r} of " if selection.version is not None else ""
    wanted = " or ".join(map(repr, selection.paths)) if selection.package is None else f"{version}{selection.package!r}"
    told = f"there is no {wanted} in repository {source.name!r}"
    if source.upstream_url is not None:
        told += ", a proxy: it has copies of what was read through it, and no more; list its artifacts, and name them by their paths"
    return NotFound(told)


@dataclass(frozen=True, slots=True)
class Copy:
    """One artifact of the source, what it refers to, and whether it is only a part of others."""

    row: Row[Any]
    references: tuple[Reference, ...]
    is_part: bool


def _publish(session: Session, copies: Sequence[Copy]) -> list[Published]:
    linked = session.link([_blob(each.row) for each in copies])
    also = _rows_of(FORMATS[session.snapshot.format].rows, copies)
    return session.publish([_file(each, blob, also) for each, blob in zip(copies, linked, strict=True)])


def _rows_of(table: str, copies: Sequence[Copy]) -> Also | None:
    """What copies the rows of the format's own table; null where it has none."""
    if not table:
        return None
    sources = {each.row.path: each.row for each in copies}
    statement = text(
        f"insert into {table} select (jsonb_populate_record(null::{table}, to_jsonb(t) || "
        f"jsonb_build_object('artifact_id', cast(:to as bigint)))).* from {table} t join arkvory_artifacts a on a.id = t.artifact_id "
        "where t.artifact_id = :from and a.upload_id = :upload"
    )

    def copy(connection: Connection, package_id: int, published: Sequence[Published]) -> None:
        for each in published:
            source = sources[each.path]
            connection.execute(text(f"delete from {table} where artifact_id = :to"), {"to": each.id})
            # Of the same bytes: the row of an artifact that was replaced meanwhile is about others.
            done = connection.execute(statement, {"from": source.id, "upload": source.upload_id, "to": each.id})
            if done.rowcount == 0 and source.version is not None:
                raise NotFound(f"{each.path!r} was deleted or replaced while it was copied")

    return copy


def _file(copy: Copy, blob: Linked, also: Also | None) -> NewFile:
    row = copy.row
    package = None if row.package is None else Package(row.package, row.display_name, also)
    return NewFile(row.path, blob, row.content_type, row.metadata, row.version, package, copy.references, copy.is_part)


def _blob(row: Row[Any]) -> KnownBlob:
    return KnownBlob(row.digest, row.size, row.checksums)


def _selected(connection: Connection, snapshot: Snapshot, selection: Selection) -> list[str]:
    """With what stands beside each file."""
    if selection.paths and selection.package is not None:
        raise Invalid("name paths or a package, not both", field="paths")
    if not selection.paths and selection.package is None:
        raise Invalid("say what to copy: a package (and its version), or paths", field="package")
    if selection.package is not None:
        values = {"id": snapshot.id, "package": selection.package, "version": selection.version}
        found = set(connection.execute(_VERSION, values).scalars())
    else:
        folders = [each for each in selection.paths if each.endswith("/")]
        values = {"id": snapshot.id, "folders": folders, "ends": [each[:-1] + "0" for each in folders], "most": MOST_ARTIFACTS + 1}
        found = {each for each in selection.paths if not each.endswith("/")} | set(connection.execute(_BELOW, values).scalars())
    beside = [path + ending for path in found for ending in FORMATS[snapshot.format].companions]
    there = connection.execute(_THERE, {"id": snapshot.id, "paths": beside})
    return sorted(found | set(there.scalars()))


def _references(connection: Connection, artifact_ids: Sequence[int]) -> Mapping[int, list[Reference]]:
    found: dict[int, list[Reference]] = {}
    for row in connection.execute(_REFERENCES, {"ids": list(artifact_ids)}):
        # Nobody asks for more than the source has: foreign layers, images that were deleted from a list.
        found.setdefault(row.artifact_id, []).append(Reference(row.path, row.kind, optional=True))
    return found


def _parts(connection: Connection, snapshot: Snapshot, paths: Sequence[str]) -> set[str]:
    statement = text(
        "select a.path from arkvory_artifacts a where a.repository_id = :id and a.path = any(:paths) and (a.candidate_at is not null "
        "or exists (select 1 from arkvory_references r where r.repository_id = :id and r.path = a.path and r.kind = 'part'))"
    )
    return set(connection.execute(statement, {"id": snapshot.id, "paths": list(paths)}).scalars())


_ARTIFACTS = text(
    "select a.id, a.upload_id, a.path, a.content_type, a.metadata, a.version, a.withheld, b.digest, b.size, b.checksums, "
    "p.name as package, p.display_name from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id "
    "left join arkvory_packages p on p.id = a.package_id "
    "where a.repository_id = :id and a.path = any(:paths) order by a.path"
)
_VERSION = text(
    "select a.path from arkvory_packages p join arkvory_artifacts a on a.package_id = p.id where p.repository_id = :id "
    "and p.name = :package and (cast(:version as text) is null or a.version = :version)"
)
_BELOW = text(
    "select a.path from unnest(cast(:folders as text[]), cast(:ends as text[])) as f(folder, ending) join arkvory_artifacts a "
    "on a.repository_id = :id and a.path > f.folder collate \"C\" and a.path < f.ending collate \"C\" limit :most"
)
_THERE = text("select path from arkvory_artifacts where repository_id = :id and path = any(:paths)")
_REFERENCES = text("select artifact_id, path, kind from arkvory_references where artifact_id = any(:ids)")
