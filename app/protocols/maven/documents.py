"""The room's derived documents, made from rows (see `repository.reading.DocumentSource`).

`maven-metadata.xml` of a folder may be an artifact's, a snapshot version's and a group's at once: `org/acme/lib`
is the artifact `org.acme:lib` and the group `org.acme.lib`. Its revision is the highest of all packages that have
a part in it (C9). What a client uploaded as metadata has none. A group repository makes them of what its members
say (`told.py`); a proxy among these says what its upstream does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from app.cache.snapshots import Snapshot
from app.database.engines import all_rows
from app.database.statements import text
from app.protocols.maven.inspection import KIND
from app.protocols.maven.names import CATALOG, METADATA, SIGNATURE, SNAPSHOT, is_snapshot
from app.protocols.maven.told import (
    Archetypes,
    Told,
    archetypes_in,
    archetypes_of,
    merged,
    metadata_in,
    rendered,
    told_by,
    united_archetypes,
)
from app.repository.reading import Draft, Merged, Shelf
from app.storage import OpenBlob

# From here on a document takes longer to write than the loop may be kept from others.
LONG = 500


@dataclass(frozen=True)
class Part:
    """What one repository says, once it is asked; `size` is how many things, at least."""

    told: Callable[[], Any]
    size: int


@dataclass(frozen=True)
class MetadataDocument(Merged):
    """`{folder}/maven-metadata.xml` (repository metadata model 1.1.0)."""

    folder: str
    representation: str = "xml"
    content_type: str = "application/xml"

    @property
    def key(self) -> str:
        return f"maven-metadata {self.folder}"

    @property
    def path(self) -> str:
        return f"{self.folder}/{METADATA}"

    @property
    def package(self) -> str:
        """The artifact's, of which it may be a version's."""
        segments = self.folder.split("/")
        return _package(segments[:-1] if is_snapshot(segments[-1]) else segments)

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        if snapshot.upstream_url is not None:
            return _copy(connection, snapshot, self.path)
        row = connection.execute(_REVISION, self._parameters(snapshot)).one()
        return int(row.revision) if row.filled else None

    def withheld(self, connection: Connection, snapshot: Snapshot) -> int | None:
        """Of all packages that may have a part in it."""
        found: int | None = connection.execute(_WITHHELD, self._parameters(snapshot)).scalar()
        return found

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        return self.merge(snapshot, [self._part(connection, snapshot, ())])

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Part:
        if snapshot.upstream_url is not None:
            return _of_upstream(shelf.find(connection, snapshot, self.path), functools.partial(metadata_in, self.folder))
        return self._part(connection, snapshot, connection.execute(_HELD, self._parameters(snapshot)).all())

    def _part(self, connection: Connection, snapshot: Snapshot, held: Sequence[Row[Any]]) -> Part:
        parameters = self._parameters(snapshot)
        plugins = all_rows(connection.execute(_PLUGINS, parameters))
        builds = all_rows(connection.execute(_BUILDS, parameters)) if parameters["moves"] else []
        versions = [] if builds else all_rows(connection.execute(_VERSIONS, parameters))
        return Part(lambda: told_by(self.folder, versions, builds, plugins, held), len(plugins) + len(builds) + len(versions))

    def merge(self, repository: Snapshot, parts: Sequence[Part]) -> Draft:
        return _draft(parts, self._document)

    def _document(self, parts: Sequence[Told]) -> bytes:
        segments = self.folder.split("/")
        return merged(parts, artifact=_package(segments), owner=_package(segments[:-1]), version=segments[-1])

    def _parameters(self, snapshot: Snapshot) -> dict[str, Any]:
        segments = self.folder.split("/")
        return {
            "id": snapshot.id,
            "artifact": _package(segments),
            "owner": _package(segments[:-1]),
            "version": segments[-1],
            "moves": is_snapshot(segments[-1]),
            "ending": segments[-1][-len(SNAPSHOT) :],
            "stem": f"{self.folder}/{_package(segments[:-1]).partition(':')[2]}-{segments[-1][: -len(SNAPSHOT)]}",
            "group": ".".join(segments) + ":",
            "group_end": ".".join(segments) + ";",
            "folder": self.folder + "/",
            "folder_end": self.folder + "0",
        }


@dataclass(frozen=True)
class ArchetypeCatalog(Merged):
    """`archetype-catalog.xml`: every archetype of the repository, if there is none an empty list."""

    key: str = "archetype-catalog"
    representation: str = "xml"
    content_type: str = "application/xml"

    @property
    def package(self) -> str:
        return ""

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        if snapshot.upstream_url is not None:
            return _copy(connection, snapshot, CATALOG)
        epoch = connection.execute(text("select content_epoch from arkvory_repositories where id = :id"), {"id": snapshot.id})
        return int(epoch.scalar_one())

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Part:
        if snapshot.upstream_url is not None:
            return _of_upstream(shelf.find(connection, snapshot, CATALOG), archetypes_in)
        rows = all_rows(connection.execute(_ARCHETYPES, {"id": snapshot.id}))
        return Part(lambda: archetypes_of(rows), len(rows))

    def merge(self, repository: Snapshot, parts: Sequence[Part]) -> Draft:
        return _draft(parts, self._document)

    def _document(self, parts: Sequence[Archetypes]) -> bytes:
        found = united_archetypes(parts)
        names = ("groupId", "artifactId", "version")
        return rendered("archetype-catalog", [("archetypes", [("archetype", list(zip(names, each, strict=True))) for each in found])])


def _draft(parts: Sequence[Part], write: Callable[[Sequence[Any]], bytes]) -> Draft:
    return Draft(lambda: write([each.told() for each in parts]), sum(each.size for each in parts) >= LONG)


def _of_upstream(stored: Callable[[], OpenBlob], read: Callable[[OpenBlob], Any]) -> Part:
    """What an upstream's own document says; reading it takes as long as it is."""
    return Part(lambda: read(stored()), LONG)


def _copy(connection: Connection, snapshot: Snapshot, path: str) -> int | None:
    """Which bytes a proxy has of its upstream's document."""
    found: int | None = connection.execute(_COPY, {"id": snapshot.id, "path": path}).scalar()
    return found


def _package(segments: Sequence[str]) -> str:
    return f"{'.'.join(segments[:-1])}:{segments[-1]}" if len(segments) > 1 else ""


# A signature alone is nothing to resolve.
_CONTENT = f"not a.withheld and a.path not like '%{SIGNATURE}'"
_PLUGIN_ROWS = (
    "from arkvory_artifacts a where a.repository_id = :id and a.path > :folder and a.path < :folder_end "
    f"and not a.withheld and a.metadata ? '{KIND}' and a.metadata -> '{KIND}' ? 'plugin'"
)
# Revisions of packages without files count too: what went must not leave the same number behind.
_REVISION = text(
    "select (select coalesce(max(p.revision), 0) from arkvory_packages p where p.repository_id = :id "
    "and (p.name in (:artifact, :owner) or p.name > :group and p.name < :group_end)) as revision, "
    "exists (select 1 from arkvory_packages p join arkvory_artifacts a on a.package_id = p.id "
    f"where p.repository_id = :id and {_CONTENT} and (p.name = :artifact or p.name = :owner and a.version = :version "
    f"and :moves)) or exists (select 1 {_PLUGIN_ROWS}) as filled"
)
_FILES = "from arkvory_packages p join arkvory_artifacts a on a.package_id = p.id where p.repository_id = :id"
_VERSIONS = text(f"select a.version, max(a.updated_at) as updated_at {_FILES} and p.name = :artifact and {_CONTENT} group by a.version")
# Of thousands of builds only the newest file of each kind (what stands behind its version) comes over. Behind `stem` stands
# `ending`, or a timestamp of 15 characters, a hyphen and a number; names that begin otherwise are no coordinates.
_BUILDS = text(
    "with files as (select a.path, a.updated_at, substr(a.path, length(:stem) + 1) as tail, not starts_with(a.path, :stem) as other "
    f"{_FILES} and p.name = :owner and a.version = :version and not a.withheld), "
    "split as (select *, left(tail, 8) = :ending as plain, ltrim(substr(tail, 17), '0123456789') as rest from files), "
    "builds as (select *, case when other then path when plain then substr(tail, 9) else rest end as kind, "
    "case when other or plain then to_char(updated_at at time zone 'UTC', 'YYYYMMDDHH24MISS') else left(tail, 8) || substr(tail, 10, 6) "
    "end as moment, case when other or plain then 0 else cast(substr(tail, 17, length(tail) - 16 - length(rest)) as numeric) end as number "
    "from split) select distinct on (kind) path, updated_at from builds order by kind, moment desc, number desc"
)
_PLUGINS = text(f"select a.path, a.metadata -> '{KIND}' -> 'plugin' as plugin {_PLUGIN_ROWS}")
_COPY = text("select blob_id from arkvory_artifacts where repository_id = :id and path = :path and not withheld")
# What a member of a group withholds, no later one shows.
_HELD_FILES = (
    "from arkvory_packages p join arkvory_artifacts a on a.package_id = p.id where p.repository_id = :id and a.withheld "
    "and (p.name in (:artifact, :owner) or p.name > :group and p.name < :group_end)"
)
_HELD = text(f"select a.path, case when p.name in (:artifact, :owner) then a.version end as version {_HELD_FILES}")
_WITHHELD = text(f"select max(p.revision) {_HELD_FILES}")
_ARCHETYPES = text(
    "select path, withheld from arkvory_artifacts where repository_id = :id "
    f"and metadata ? '{KIND}' and metadata -> '{KIND}' ? 'archetype'"
)
