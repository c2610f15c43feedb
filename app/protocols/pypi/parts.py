"""What one repository has of a project: a hosted one by its rows, a proxy by its upstream's page and the rows of its copies.

A page is made of one part, or of several that are merged. A part is read in two steps: its rows with the document's own
connection, and what takes time (opening and parsing what an upstream sent) without.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import gevent
from sqlalchemy import Connection, Row

from app.cache.snapshots import Snapshot
from app.database.engines import all_rows
from app.database.statements import text
from app.errors import NotFound
from app.protocols.pypi import indexes, releases
from app.protocols.pypi.indexes import Listing
from app.protocols.pypi.metadata import Project, ProjectFile, parsed_version
from app.protocols.pypi.names import INDEX_PATH, Companion, companion_of, page_path, pattern_of
from app.repository.fetching import UPSTREAM
from app.repository.quarantine import Barred, barred_below
from app.repository.reading import Brought, Shelf
from app.repository.withholding import PUBLISHED_AT, Judge, keeps_out

# From here on a page takes longer to make than the loop may be kept from others.
LONG_PAGE = 200
# The same of the fields of core metadata, in characters.
LONG_FIELDS = 200_000

# Keys of an artifact's metadata: of a file, and (too long to be read with every file) of the `.metadata` beside it.
REQUIRES_PYTHON, YANKED = "requires_python", "yanked"
DETAILS = "details"


@dataclass(frozen=True)
class Part:
    """`tell` is called without the connection, in a greenlet; it asks the judges. Raises NotFound, UpstreamFailed and Unavailable."""

    tell: Callable[[], Project]
    judges: Sequence[Judge] = ()


@dataclass(frozen=True)
class Names:
    """All projects of one repository; both are called as a `Part` is. `whole` gives what is sent (form, coding), where that is quicker."""

    all: Callable[[], Iterable[str]]
    whole: Callable[[str, str], bytes] | None = None


class Holding(Protocol):
    """How a kind of repository tells of a project (normalised). All of it sees the same repeatable-read state."""

    def revision(self, connection: Connection, snapshot: Snapshot, project: str) -> int | None:
        """The number that moves with the project's page (C9); null when there is none."""

    def knows(self, connection: Connection, snapshot: Snapshot, project: str, version: str | None) -> bool:
        """Whether there may be such a release, or any; only the part tells for certain."""

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, project: str) -> Part:
        """All files."""

    def release(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, project: str, version: str | None) -> Part:
        """At least those of one release (PEP 440 equality), with what is known of it; null: all, and what is known of the newest."""

    def index_revision(self, connection: Connection, snapshot: Snapshot) -> int:
        """The number that moves with the index of all projects."""

    def names(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Names: ...


def holding_of(snapshot: Snapshot) -> Holding:
    """By the repository's kind."""
    return _HOLDINGS[snapshot.kind]


class _Hosted:
    def revision(self, connection: Connection, snapshot: Snapshot, project: str) -> int | None:
        revision: int | None = connection.execute(_REVISION, {"id": snapshot.id, "project": project}).scalar()
        return revision

    def knows(self, connection: Connection, snapshot: Snapshot, project: str, version: str | None) -> bool:
        return bool(connection.execute(_RELEASE, _of_release(snapshot.id, project, version)).scalar_one())

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, project: str) -> Part:
        rows, withheld = _rows(connection, snapshot.id, project)
        return Part(lambda: Project(files_of(rows), withheld=withheld))

    def release(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, project: str, version: str | None) -> Part:
        newest = version or _newest(connection, snapshot.id, project)
        told = release_rows(connection, snapshot.id, project, newest) if newest else []
        rows, withheld = _rows(connection, snapshot.id, project)
        rows = told if version else rows
        details = _Details.read(connection, snapshot.id, [row.path for row in told])
        name = connection.execute(_NAME, {"id": snapshot.id, "project": project}).scalar_one()
        return Part(lambda: Project(details.added(files_of(rows)), name=name, withheld=withheld))

    def index_revision(self, connection: Connection, snapshot: Snapshot) -> int:
        return int(connection.execute(_CONTENT_EPOCH, {"id": snapshot.id}).scalar_one())

    def names(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Names:
        return _known_names(connection, snapshot)


class _Proxied:
    """What the upstream's page lists, but for what is held; of copies, what is known of their bytes goes before what the page says."""

    def revision(self, connection: Connection, snapshot: Snapshot, project: str) -> int | None:
        values = {"id": snapshot.id, "project": project, "page": page_path(project)}
        revision: int | None = connection.execute(_PROXIED_REVISION, values).scalar()
        barred = _barred(connection, snapshot, project)
        if revision is None or not barred.stamp:
            return revision
        return int(hashlib.sha256(f"{revision} {barred.stamp}".encode()).hexdigest()[:15], 16)

    def knows(self, connection: Connection, snapshot: Snapshot, project: str, version: str | None) -> bool:
        return True

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, project: str) -> Part:
        copies = {row.path: row for row in _rows(connection, snapshot.id, project)[0]}
        left = _Left(snapshot, project, copies, _barred(connection, snapshot, project), Judge(snapshot))
        try:
            page = shelf.find(connection, snapshot, page_path(project))
        except NotFound:
            # It is asked for what it withholds.
            return Part(lambda: left.project_of(Listing((), (), None)))
        return Part(lambda: left.project_of(_with(page, indexes.listing_of, project)), [left.judge])

    def release(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, project: str, version: str | None) -> Part:
        return self.part(connection, snapshot, shelf, project)

    def index_revision(self, connection: Connection, snapshot: Snapshot) -> int:
        """Even: the blob that the copy of the upstream's index points at; odd: the content epoch, where there is none."""
        copied: int | None = connection.execute(_INDEX_BLOB, {"id": snapshot.id, "path": INDEX_PATH}).scalar()
        return 2 * copied if copied is not None else 2 * int(connection.execute(_CONTENT_EPOCH, {"id": snapshot.id}).scalar_one()) + 1

    def names(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Names:
        """The upstream's, where it has an index; else of the projects that are known from their own pages."""
        try:
            index = shelf.find(connection, snapshot, INDEX_PATH)
        except NotFound:
            return _known_names(connection, snapshot)
        return Names(lambda: _with(index, indexes.names_in), lambda form, coding: _with(index, indexes.index_of, form, coding))


_HOLDINGS: Mapping[str, Holding] = {"hosted": _Hosted(), "proxy": _Proxied()}


# Proxies


def _barred(connection: Connection, snapshot: Snapshot, project: str) -> Barred:
    return barred_below(connection, snapshot.id, f"{project}/", UPSTREAM)


def _with(found: Callable[[], Brought], use: Callable[..., Any], *arguments: str) -> Any:
    with contextlib.closing(found()) as blob:
        return use(blob, *arguments)


@dataclass(frozen=True)
class _Left:
    """What is left of an upstream's page: not what is held, nor too young, nor out of the path rules."""

    snapshot: Snapshot
    project: str
    copies: Mapping[str, Row[Any]]
    barred: Barred
    judge: Judge

    def project_of(self, listing: Listing) -> Project:
        if len(listing.files) >= LONG_PAGE:
            found: Project = gevent.get_hub().threadpool.apply(self._project_of, (listing,))
            return found
        return self._project_of(listing)

    def _project_of(self, listing: Listing) -> Project:
        files = [listed.file for listed in listing.files]
        left = [file for file in files if self._has(file)]
        gone = {file.version for file in files} - {file.version for file in left}
        versions = [each for each in listing.versions if str(parsed_version(each)) not in gone] if gone else listing.versions
        shown = [_with_copy(file, self._path(file), self.copies) for file in left]
        return Project(shown, versions, listing.status, withheld=self._withheld({file.filename for file in files}, left))

    def _withheld(self, names: set[str], left: Sequence[ProjectFile]) -> frozenset[str]:
        """What path rules leave out is not there at all."""
        held = {path.rpartition("/")[2] for path in self.barred.paths}
        gone = (names | held) - {file.filename for file in left}
        return frozenset(name for name in gone if not keeps_out(self.snapshot, f"{self.project}/{name}"))

    def _has(self, file: ProjectFile) -> bool:
        path = self._path(file)
        return not self.barred.holds(path) and not self.judge.leaves_out(path, self._time(file, path), self.project, file.version)

    def _time(self, file: ProjectFile, path: str) -> datetime | None:
        """Where the page tells none, the copy may know."""
        copy = self.copies.get(path)
        if file.uploaded_at is None and copy is not None and copy.published_at is not None:
            return datetime.fromisoformat(copy.published_at)
        return file.uploaded_at

    def _path(self, file: ProjectFile) -> str:
        return f"{self.project}/{file.filename}"


def _with_copy(file: ProjectFile, path: str, copies: Mapping[str, Row[Any]]) -> ProjectFile:
    """A copy never changes, so where an upstream replaced a file its page goes on telling of ours: page and bytes belong together."""
    copy, metadata = copies.get(path), copies.get(path + Companion.METADATA)
    if metadata is not None:
        file = replace(file, core_metadata={"sha256": metadata.digest})
    if copy is None:
        return file
    if file.hashes.get("sha256", copy.digest) == copy.digest:
        return replace(file, size=copy.size, hashes={**file.hashes, "sha256": copy.digest})
    known = None if metadata is None else file.core_metadata
    return replace(file, size=copy.size, hashes={"sha256": copy.digest}, core_metadata=known)


# Hosted repositories


def _known_names(connection: Connection, snapshot: Snapshot) -> Names:
    rows = all_rows(connection.execute(_PACKAGES, {"id": snapshot.id}))
    return Names(lambda: [row.name for row in rows])


@dataclass(frozen=True)
class _Details:
    """What is told of one release: the comment of each file by path, and the fields of the one that tells most, as JSON."""

    comments: dict[str, str]
    path: str = ""
    fields: str = "{}"

    @classmethod
    def read(cls, connection: Connection, repository_id: int, paths: Iterable[str]) -> _Details:
        """Of files at `paths`. The fields may be long, and are as many as the files, so those of one are read."""
        beside = {path + Companion.METADATA: path for path in paths}
        rows = connection.execute(_COMMENTS, {"id": repository_id, "paths": list(beside)}).all()
        comments = {beside[row.path]: row.comment or "" for row in rows}
        if not comments:
            return cls({})
        best = min(comments, key=lambda path: (not path.endswith(".whl"), path))
        fields = connection.execute(_DETAILS, {"id": repository_id, "path": best + Companion.METADATA}).scalar_one()
        return cls(comments, best, fields)

    def added(self, files: Sequence[ProjectFile]) -> list[ProjectFile]:
        """The files, those of the release with what is told of them."""
        if len(self.fields) < LONG_FIELDS:
            return self._added(files)
        return list(gevent.get_hub().threadpool.apply(self._added, (files,)))

    def _added(self, files: Sequence[ProjectFile]) -> list[ProjectFile]:
        named = {path.rpartition("/")[2]: {"comment": comment} for path, comment in self.comments.items()}
        named[self.path.rpartition("/")[2]] = json.loads(self.fields)
        return [replace(file, metadata=named[file.filename]) if file.filename in named else file for file in files]


def _rows(connection: Connection, repository_id: int, project: str) -> tuple[list[Row[Any]], frozenset[str]]:
    """The files and what stands beside them, and the names of those that are withheld."""
    rows = all_rows(connection.execute(_FILES, {"id": repository_id, "project": project}))
    withheld = frozenset(row.path.rpartition("/")[2] for row in rows if row.withheld)
    return [row for row in rows if not row.withheld] if withheld else rows, withheld


def release_rows(connection: Connection, repository_id: int, project: str, version: str) -> list[Row[Any]]:
    """The files of a version in any spelling (PEP 440 equality), and what stands beside them; in no order."""
    endings = {"endings": ["", *Companion]}
    return all_rows(connection.execute(_RELEASE_FILES, _of_release(repository_id, project, version) | endings))


def _of_release(repository_id: int, project: str, version: str | None) -> dict[str, Any]:
    """The statement's parameters; without a version every file is meant."""
    return {"id": repository_id, "project": project, "pattern": "" if version is None else pattern_of(version)}


def _newest(connection: Connection, repository_id: int, project: str) -> str:
    """Empty when all is withheld."""
    rows = all_rows(connection.execute(_VERSIONS, {"id": repository_id, "project": project}))
    if not rows:
        return ""
    yanked = {row.version: row.yanked for row in rows}
    if len(rows) < LONG_PAGE:
        return releases.newest(yanked)
    return str(gevent.get_hub().threadpool.apply(releases.newest, (yanked,)))


def files_of(rows: Sequence[Row[Any]]) -> list[ProjectFile]:
    """The files among the rows, without the details of their metadata, in no order."""
    digests = {row.path: row.digest for row in rows}
    return [_file(row, digests) for row in rows if companion_of(row.path)[1] is None]


def _file(row: Row[Any], digests: dict[str, str]) -> ProjectFile:
    filename = row.path.rpartition("/")[2]
    # A source distribution's metadata may change when it is built, so PEP 658 does not let it be advertised.
    beside = digests.get(row.path + Companion.METADATA) if filename.endswith(".whl") else None
    return ProjectFile(
        filename=filename,
        version=row.version or "",
        size=row.size,
        hashes={"sha256": row.digest},
        uploaded_at=row.updated_at,
        requires_python=row.requires_python,
        yanked=row.yanked,
        core_metadata=None if beside is None else {"sha256": beside},
        has_signature=row.path + Companion.SIGNATURE in digests,
        has_provenance=row.path + Companion.PROVENANCE in digests,
    )


_CONTENT_EPOCH = text("select content_epoch from arkvory_repositories where id = :id")
_INDEX_BLOB = text("select blob_id from arkvory_artifacts where repository_id = :id and path = :path and not withheld")
_PACKAGES = text("select name from arkvory_packages where repository_id = :id and artifacts > 0")
_NAME = text("select display_name from arkvory_packages where repository_id = :id and name = :project")
_REVISION = text("select revision from arkvory_packages where repository_id = :id and name = :project and artifacts > 0")
_PROXIED_REVISION = text(
    "select p.revision from arkvory_packages p where p.repository_id = :id and p.name = :project and exists "
    "(select 1 from arkvory_artifacts a where a.repository_id = :id and a.path = :page and not a.withheld)"
)
_COLUMNS = (
    "a.path, a.version, a.updated_at, a.withheld, b.size, b.digest, "
    f"a.metadata ->> '{REQUIRES_PYTHON}' as requires_python, a.metadata ->> '{YANKED}' as yanked, "
    f"a.metadata ->> '{PUBLISHED_AT}' as published_at"
)
_PROJECT = "arkvory_packages p join arkvory_artifacts a on a.package_id = p.id"
_OF_PROJECT = "p.repository_id = :id and p.name = :project"
_THERE = f"{_OF_PROJECT} and not a.withheld"
_FILES = text(f"select {_COLUMNS} from {_PROJECT} join arkvory_blobs b on b.id = a.blob_id where {_OF_PROJECT}")
# What stands beside a file has no version of its own.
_VERSIONS = text(
    f"select a.version, bool_and(a.metadata ->> '{YANKED}' is not null) as yanked from {_PROJECT} "
    f"where {_THERE} and a.version is not null group by a.version"
)
_RELEASE = text(f"select exists (select 1 from {_PROJECT} where {_THERE} and a.version ~ :pattern)")
_RELEASE_FILES = text(
    f"select {_COLUMNS} from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id where a.repository_id = :id and not a.withheld "
    f"and a.path = any(array(select a.path || ending from {_PROJECT} cross join unnest(cast(:endings as text[])) ending "
    f"where {_THERE} and a.version ~ :pattern))"
)
_COMMENTS = text(
    f"select path, metadata -> '{DETAILS}' ->> 'comment' as comment from arkvory_artifacts "
    f"where repository_id = :id and path = any(:paths) and metadata ? '{DETAILS}'"
)
_DETAILS = text(f"select cast(metadata -> '{DETAILS}' as text) from arkvory_artifacts where repository_id = :id and path = :path")
