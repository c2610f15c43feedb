"""The room's derived documents (see `repository.reading.DocumentSource`), each made of `parts`: one for each repository that has any."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gevent
from sqlalchemy import Connection

from app.cache.snapshots import Snapshot
from app.errors import NotFound
from app.protocols.pypi import metadata, releases
from app.protocols.pypi.metadata import Project, merged
from app.protocols.pypi.negotiation import Representation
from app.protocols.pypi.parts import LONG_PAGE, Names, Part, holding_of
from app.repository.reading import Draft, Merged, Shelf


@dataclass(frozen=True)
class _Page(Merged):
    """`form` and `coding` (`gzip`, or empty) are what the client accepts; both make other bytes."""

    form: Representation
    coding: str

    @property
    def representation(self) -> str:
        return f"{self.form.media_type} {self.coding}"

    @property
    def content_type(self) -> str:
        return self.form.content_type


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
        return holding_of(snapshot).revision(connection, snapshot, self.project)

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Part:
        return holding_of(snapshot).part(connection, snapshot, shelf, self.project)

    def merge(self, repository: Snapshot, parts: Sequence[Part]) -> Draft:
        render = metadata.project_json if self.form.form == "json" else metadata.project_html
        return _draft(parts, lambda project: render(self.project, project, origin=self.origin or None), self.coding)


@dataclass(frozen=True)
class ReleaseDocument(Merged):
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
        holding = holding_of(snapshot)
        known = holding.knows(connection, snapshot, self.project, self.version)
        return holding.revision(connection, snapshot, self.project) if known else None

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Part:
        return holding_of(snapshot).release(connection, snapshot, shelf, self.project, self.version)

    def merge(self, repository: Snapshot, parts: Sequence[Part]) -> Draft:
        return _draft(parts, self._document, self.coding)

    def _document(self, project: Project) -> bytes:
        """Raises NotFound."""
        name = project.name or self.project
        files = [file for file in project.files if file.version]
        if self.version is None and files:
            return releases.project_document(name, self.project, files, self.base)
        found = None if self.version is None else releases.release_document(name, self.project, self.version, files, self.base)
        if found is None:
            raise NotFound(f"there is no version {self.version or ''!r} of {self.project!r}")
        return found


@dataclass(frozen=True)
class ProjectIndex(_Page):
    """`simple/`: every project that has a file. An upstream's may name a million."""

    @property
    def key(self) -> str:
        return "simple"

    @property
    def package(self) -> str:
        return ""

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return holding_of(snapshot).index_revision(connection, snapshot)

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Names:
        return holding_of(snapshot).names(connection, snapshot, shelf)

    def merge(self, repository: Snapshot, parts: Sequence[Names]) -> Draft:
        return Draft(lambda: self._written(parts), long=False)

    def _written(self, parts: Sequence[Names]) -> bytes:
        if len(parts) == 1 and parts[0].whole is not None:
            return parts[0].whole(self.form.form, self.coding)
        names = [list(part.all()) for part in parts]
        render = metadata.index_json if self.form.form == "json" else metadata.index_html
        return _apart(sum(map(len, names)) // 10, lambda: _compressed(render({name for each in names for name in each}), self.coding))


def _draft(parts: Sequence[Part], render: Callable[[Project], bytes], coding: str) -> Draft:
    def write() -> bytes:
        project = merged([part.tell() for part in parts])
        told = sum(len(file.metadata.get("description") or "") for file in project.files if file.metadata)
        return _apart(len(project.files) + told // 1000, lambda: _compressed(render(project), coding))

    return Draft(write, long=False, judges=[judge for part in parts for judge in part.judges])


def _apart(size: int, work: Callable[[], bytes]) -> bytes:
    """In a thread when it is long."""
    return work() if size < LONG_PAGE else bytes(gevent.get_hub().threadpool.apply(work))


def _compressed(body: bytes, coding: str) -> bytes:
    return gzip.compress(body, 5, mtime=0) if coding == "gzip" else body
