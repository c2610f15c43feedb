"""The room's derived documents, made from rows (see `repository.reading.DocumentSource`).

A project's documents have the revision of its package, the index of all projects the content epoch of the
repository. What stands beside a file (metadata, signature, provenance) is read from the rows too, so that
nothing is advertised that is not there.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gevent
from sqlalchemy import Connection, Row, text

from app.cache.snapshots import Snapshot
from app.database.engines import all_rows
from app.protocols.pypi import metadata, releases
from app.protocols.pypi.metadata import ProjectFile
from app.protocols.pypi.names import Companion, companion_of, pattern_of
from app.protocols.pypi.negotiation import Representation
from app.repository.reading import Draft, Shelf

# From here on a page takes longer to write than the loop may be kept from others.
LONG_PAGE = 200

# Keys of an artifact's metadata: of a file, and (too long to be read with every file) of the `.metadata` beside it.
REQUIRES_PYTHON, YANKED = "requires_python", "yanked"
DETAILS = "details"


@dataclass(frozen=True)
class _Page:
    """`form` and `coding` (`gzip`, or empty) are what the client accepts; both make other bytes."""

    form: Representation
    coding: str

    @property
    def representation(self) -> str:
        return f"{self.form.media_type} {self.coding}"

    @property
    def content_type(self) -> str:
        return self.form.content_type

    def _draft(self, entries: int, write: Callable[[], bytes]) -> Draft:
        return draft(entries, write, self.coding)


@dataclass(frozen=True)
class ProjectPage(_Page):
    """`simple/{project}/`; `origin` is the repository's absolute address, or empty where it is not https."""

    project: str
    origin: str

    @property
    def key(self) -> str:
        return f"simple {self.project}"

    @property
    def package(self) -> str:
        return self.project

    @property
    def representation(self) -> str:
        return f"{super().representation} {self.origin}"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return project_revision(connection, snapshot.id, self.project)

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        rows = all_rows(connection.execute(_FILES, {"id": snapshot.id, "project": self.project}))
        render = metadata.project_json if self.form.form == "json" else metadata.project_html
        return self._draft(len(rows), lambda: render(self.project, files_of(rows), origin=self.origin or None))


@dataclass(frozen=True)
class ProjectIndex(_Page):
    """`simple/`: every project that has a file."""

    package = ""

    @property
    def key(self) -> str:
        return "simple"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return int(
            connection.execute(text("select content_epoch from arkvory_repositories where id = :id"), {"id": snapshot.id}).scalar_one()
        )

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        statement = text("select name from arkvory_packages where repository_id = :id and artifacts > 0")
        rows = all_rows(connection.execute(statement, {"id": snapshot.id}))
        render = metadata.index_json if self.form.form == "json" else metadata.index_html
        return self._draft(len(rows) // 10, lambda: render(row.name for row in rows))


@dataclass(frozen=True)
class ReleaseDocument:
    """`pypi/{project}/json`, or of one version; `base` is the repository's absolute address with a slash at its end."""

    project: str
    version: str | None
    base: str
    coding: str
    content_type: str = "application/json"

    @property
    def key(self) -> str:
        return f"json {self.project} {self.version or ''}"

    @property
    def package(self) -> str:
        return self.project

    @property
    def representation(self) -> str:
        return f"json {self.coding} {self.base}"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        revision = project_revision(connection, snapshot.id, self.project)
        if revision is None:
            return None
        known = connection.execute(_RELEASE, _of_release(snapshot.id, self.project, self.version)).scalar_one()
        return revision if known else None

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        told = release_rows(connection, snapshot.id, self.project, self.version or _newest(connection, snapshot.id, self.project))
        rows = told if self.version else all_rows(connection.execute(_FILES, {"id": snapshot.id, "project": self.project}))
        details = _Details.read(connection, snapshot.id, [row.path for row in told])
        name = connection.execute(_NAME, {"id": snapshot.id, "project": self.project}).scalar_one()
        return draft(len(rows) + details.size // 1000, lambda: self._document(name, details.added(files_of(rows))), self.coding)

    def _document(self, name: str, files: Sequence[ProjectFile]) -> bytes:
        if self.version is None:
            return releases.project_document(name, self.project, files, self.base)
        return releases.release_document(name, self.project, self.version, files, self.base) or b""


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

    @property
    def size(self) -> int:
        return len(self.fields)

    def added(self, files: Sequence[ProjectFile]) -> list[ProjectFile]:
        """The files, those of the release with what is told of them."""
        named = {path.rpartition("/")[2]: {"comment": comment} for path, comment in self.comments.items()}
        named[self.path.rpartition("/")[2]] = json.loads(self.fields)
        return [replace(file, metadata=named[file.filename]) if file.filename in named else file for file in files]


_NAME = text("select display_name from arkvory_packages where repository_id = :id and name = :project")
_REVISION = text("select revision from arkvory_packages where repository_id = :id and name = :project and artifacts > 0")
_COLUMNS = (
    "a.path, a.version, a.updated_at, b.size, b.digest, "
    f"a.metadata ->> '{REQUIRES_PYTHON}' as requires_python, a.metadata ->> '{YANKED}' as yanked"
)
_PROJECT = "arkvory_packages p join arkvory_artifacts a on a.package_id = p.id"
_THERE = "p.repository_id = :id and p.name = :project and not a.withheld"
_FILES = text(f"select {_COLUMNS} from {_PROJECT} join arkvory_blobs b on b.id = a.blob_id where {_THERE}")
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


def draft(entries: int, write: Callable[[], bytes], coding: str) -> Draft:
    """The bytes that `write` makes, compressed as asked."""

    def work() -> bytes:
        body = write()
        return gzip.compress(body, 5, mtime=0) if coding == "gzip" else body

    return Draft(work, entries >= LONG_PAGE)


def project_revision(connection: Connection, repository_id: int, project: str) -> int | None:
    """The number that moves with a project's files (C9); None when it has none."""
    revision: int | None = connection.execute(_REVISION, {"id": repository_id, "project": project}).scalar()
    return revision


def release_rows(connection: Connection, repository_id: int, project: str, version: str) -> list[Row[Any]]:
    """The files of a version in any spelling (PEP 440 equality), and what stands beside them; in no order."""
    endings = {"endings": ["", *Companion]}
    return all_rows(connection.execute(_RELEASE_FILES, _of_release(repository_id, project, version) | endings))


def _of_release(repository_id: int, project: str, version: str | None) -> dict[str, Any]:
    """The statement's parameters; without a version every file is meant."""
    return {"id": repository_id, "project": project, "pattern": "" if version is None else pattern_of(version)}


def _newest(connection: Connection, repository_id: int, project: str) -> str:
    rows = all_rows(connection.execute(_VERSIONS, {"id": repository_id, "project": project}))
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
    return ProjectFile(
        filename=filename,
        version=row.version or "",
        size=row.size,
        sha256=row.digest,
        uploaded_at=row.updated_at,
        requires_python=row.requires_python,
        yanked=row.yanked,
        # A source distribution's metadata may change when it is built, so PEP 658 does not let it be advertised.
        core_metadata_sha256=digests.get(row.path + Companion.METADATA) if filename.endswith(".whl") else None,
        has_signature=row.path + Companion.SIGNATURE in digests,
        has_provenance=row.path + Companion.PROVENANCE in digests,
    )
