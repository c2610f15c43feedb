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
from app.protocols.pypi import metadata, releases
from app.protocols.pypi.metadata import ProjectFile
from app.protocols.pypi.names import Companion, companion_of
from app.protocols.pypi.negotiation import Representation

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

    def _written(self, entries: int, write: Callable[[], bytes]) -> bytes:
        return written(entries, write, self.coding)


@dataclass(frozen=True)
class ProjectPage(_Page):
    """`simple/{project}/`; `origin` is the repository's absolute address, or empty where it is not https."""

    project: str
    origin: str

    @property
    def key(self) -> str:
        return f"simple {self.project}"

    @property
    def representation(self) -> str:
        return f"{super().representation} {self.origin}"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return project_revision(connection, snapshot.id, self.project)

    def render(self, connection: Connection, snapshot: Snapshot) -> bytes:
        files = files_of(connection, snapshot.id, self.project)
        render = metadata.project_json if self.form.form == "json" else metadata.project_html
        return self._written(len(files), lambda: render(self.project, files, origin=self.origin or None))


@dataclass(frozen=True)
class ProjectIndex(_Page):
    """`simple/`: every project that has a file."""

    @property
    def key(self) -> str:
        return "simple"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return int(
            connection.execute(text("select content_epoch from arkvory_repositories where id = :id"), {"id": snapshot.id}).scalar_one()
        )

    def render(self, connection: Connection, snapshot: Snapshot) -> bytes:
        statement = text("select name from arkvory_packages where repository_id = :id and artifacts > 0")
        names = list(connection.execute(statement, {"id": snapshot.id}).scalars())
        render = metadata.index_json if self.form.form == "json" else metadata.index_html
        return self._written(len(names) // 10, lambda: render(names))


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
    def representation(self) -> str:
        return f"json {self.coding} {self.base}"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        revision = project_revision(connection, snapshot.id, self.project)
        if revision is None or self.version is None:
            return revision
        known = releases.find_release(files_of(connection, snapshot.id, self.project), self.version)
        return revision if known else None

    def render(self, connection: Connection, snapshot: Snapshot) -> bytes:
        files = files_of(connection, snapshot.id, self.project)
        told = releases.find_release(files, self.version)
        details = _details(connection, snapshot.id, self.project, told)
        files = [replace(file, metadata=details.get(file.filename, {})) for file in files]
        name = connection.execute(_NAME, {"id": snapshot.id, "project": self.project}).scalar_one()
        return written(len(files), lambda: self._document(name, files), self.coding)

    def _document(self, name: str, files: Sequence[ProjectFile]) -> bytes:
        if self.version is None:
            return releases.project_document(name, self.project, files, self.base)
        return releases.release_document(name, self.project, self.version, files, self.base) or b""


_NAME = text("select display_name from arkvory_packages where repository_id = :id and name = :project")
_REVISION = text("select revision from arkvory_packages where repository_id = :id and name = :project and artifacts > 0")
_FILES = text(
    "select a.path, a.version, a.updated_at, b.size, b.digest, "
    f"a.metadata ->> '{REQUIRES_PYTHON}' as requires_python, a.metadata ->> '{YANKED}' as yanked "
    "from arkvory_packages p join arkvory_artifacts a on a.package_id = p.id join arkvory_blobs b on b.id = a.blob_id "
    "where p.repository_id = :id and p.name = :project and not a.withheld"
)
_DETAILS = text(f"select path, metadata -> '{DETAILS}' as details from arkvory_artifacts where repository_id = :id and path = any(:paths)")


def written(entries: int, write: Callable[[], bytes], coding: str) -> bytes:
    """The bytes that `write` makes, compressed as asked; long ones are made in a thread, so that the loop goes on."""

    def work() -> bytes:
        body = write()
        return gzip.compress(body, 5, mtime=0) if coding == "gzip" else body

    made: bytes = work() if entries < LONG_PAGE else gevent.get_hub().threadpool.apply(work)
    return made


def project_revision(connection: Connection, repository_id: int, project: str) -> int | None:
    """The number that moves with a project's files (C9); None when it has none."""
    revision: int | None = connection.execute(_REVISION, {"id": repository_id, "project": project}).scalar()
    return revision


def files_of(connection: Connection, repository_id: int, project: str) -> list[ProjectFile]:
    """All files of a project, without the details of their metadata, in no order."""
    rows = connection.execute(_FILES, {"id": repository_id, "project": project}).all()
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


def _details(connection: Connection, repository_id: int, project: str, files: Iterable[ProjectFile]) -> dict[str, dict[str, Any]]:
    paths = {f"{project}/{file.filename}{Companion.METADATA}": file.filename for file in files}
    rows = connection.execute(_DETAILS, {"id": repository_id, "paths": list(paths)}).all()
    return {paths[row.path]: _mapping(row.details) for row in rows if row.details}


def _mapping(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return found
