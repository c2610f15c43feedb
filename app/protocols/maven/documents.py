"""The room's derived documents, made from rows (see `repository.reading.DocumentSource`).

`maven-metadata.xml` of a folder may be an artifact's, a snapshot version's and a group's at once: `org/acme/lib`
is the artifact `org.acme:lib` and the group `org.acme.lib`. Its revision is the highest of all packages that have
a part in it (C9). What a client uploaded as metadata has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from xml.sax.saxutils import escape

from sqlalchemy import Connection, Row, text

from app.cache.snapshots import Snapshot
from app.database.engines import all_rows
from app.protocols.maven.inspection import KIND
from app.protocols.maven.names import SIGNATURE, SNAPSHOT, Coordinates, File, is_snapshot, parse
from app.protocols.maven.versions import in_order
from app.repository.reading import Draft, Shelf

# From here on a document takes longer to write than the loop may be kept from others.
LONG = 500
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'

Tree = Iterable[tuple[str, "str | Tree"]]


@dataclass(frozen=True)
class MetadataDocument:
    """`{folder}/maven-metadata.xml` (repository metadata model 1.1.0)."""

    folder: str
    representation: str = "xml"
    content_type: str = "application/xml"

    @property
    def key(self) -> str:
        return f"maven-metadata {self.folder}"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        row = connection.execute(_REVISION, self._parameters(snapshot)).one()
        return int(row.revision) if row.filled else None

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        parameters = self._parameters(snapshot)
        plugins = all_rows(connection.execute(_PLUGINS, parameters))
        builds = all_rows(connection.execute(_BUILDS, parameters)) if parameters["moves"] else []
        versions = [] if builds else all_rows(connection.execute(_VERSIONS, parameters))
        long = len(plugins) + len(builds) + len(versions) >= LONG
        return Draft(lambda: self._document(parameters, builds, versions, _plugins(plugins, self.folder)), long)

    def _document(self, names: dict[str, Any], builds: Sequence[Row[Any]], versions: Sequence[Row[Any]], plugins: Sequence[Tree]) -> bytes:
        tree: list[tuple[str, str | Tree]] = []
        if builds:
            tree += [*_coordinates(names["owner"]), ("version", names["version"]), ("versioning", snapshot_versioning(builds))]
        elif versions:
            tree += [*_coordinates(names["artifact"]), ("versioning", versioning(versions))]
        if plugins:
            tree.append(("plugins", [("plugin", each) for each in plugins]))
        return rendered("metadata", tree, ' modelVersion="1.1.0"')

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
class ArchetypeCatalog:
    """`archetype-catalog.xml`: every archetype of the repository, if there is none an empty list."""

    key: str = "archetype-catalog"
    representation: str = "xml"
    content_type: str = "application/xml"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        epoch = connection.execute(text("select content_epoch from arkvory_repositories where id = :id"), {"id": snapshot.id})
        return int(epoch.scalar_one())

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        rows = all_rows(connection.execute(_ARCHETYPES, {"id": snapshot.id}))
        return Draft(lambda: self._document(rows), len(rows) >= LONG)

    def _document(self, rows: Sequence[Row[Any]]) -> bytes:
        found = sorted({(each.group, each.artifact, each.base_version) for each in _files(row.path for row in rows)})
        return rendered("archetype-catalog", [("archetypes", [("archetype", _archetype(each)) for each in found])])


# What the documents say


def versioning(rows: Sequence[Row[Any]]) -> Tree:
    """An artifact's versions, from rows of `version` and `updated_at`."""
    versions = in_order(row.version for row in rows)
    releases = [each for each in versions if not is_snapshot(each)]
    return [
        ("latest", versions[-1]),
        *([("release", releases[-1])] if releases else []),
        ("versions", [("version", each) for each in versions]),
        ("lastUpdated", _moment(max(row.updated_at for row in rows))),
    ]


@dataclass(frozen=True, order=True)
class _Build:
    """A file of a snapshot version, ordered by what is newer; `updated` in UTC, as Maven writes it."""

    updated: str
    number: int
    file: Coordinates = field(compare=False)


def snapshot_versioning(rows: Iterable[Row[Any]]) -> Tree:
    """The newest file of each classifier and extension of a snapshot version, from rows of `path` and `updated_at`.

    `updated` is the time in the file's name where there is one: copying old builds does not make them new.
    """
    times = {row.path: _moment(row.updated_at) for row in rows}
    builds = sorted(_Build(each.timestamp.replace(".", "") or times[each.path], each.build, each) for each in _files(times))
    newest = {(build.file.extension, build.file.classifier): build for build in builds}
    stamped = [build for build in builds if build.file.timestamp]
    head: list[tuple[str, str | Tree]] = []
    if stamped:
        head = [("snapshot", [("timestamp", stamped[-1].file.timestamp), ("buildNumber", str(stamped[-1].number))])]
    entries = [("snapshotVersion", _snapshot_version(newest[kind])) for kind in sorted(newest)]
    return [*head, ("lastUpdated", builds[-1].updated if builds else max(times.values())), ("snapshotVersions", entries)]


def _snapshot_version(build: _Build) -> Tree:
    classifier = [("classifier", build.file.classifier)] if build.file.classifier else []
    return [*classifier, ("extension", build.file.extension), ("value", build.file.version), ("updated", build.updated)]


def _plugins(rows: Sequence[Row[Any]], folder: str) -> list[Tree]:
    """A group's plugins, each as its highest version says."""
    told = {row.path: row.plugin for row in rows}
    plugins = [each for each in _files(told) if each.group == folder.replace("/", ".")]
    rank = {version: place for place, version in enumerate(in_order({each.base_version for each in plugins}))}
    newest = {each.artifact: told[each.path] for each in sorted(plugins, key=lambda each: (rank[each.base_version], each.path))}
    return [
        [("name", newest[artifact]["name"]), ("prefix", newest[artifact]["prefix"]), ("artifactId", artifact)]
        for artifact in sorted(newest)
    ]


def _archetype(names: tuple[str, str, str]) -> Tree:
    return list(zip(("groupId", "artifactId", "version"), names, strict=True))


def _coordinates(package: str) -> list[tuple[str, str | Tree]]:
    group, _, artifact = package.partition(":")
    return [("groupId", group), ("artifactId", artifact)]


def _package(segments: Sequence[str]) -> str:
    return f"{'.'.join(segments[:-1])}:{segments[-1]}" if len(segments) > 1 else ""


def _files(paths: Iterable[str]) -> list[Coordinates]:
    found = (parse(path) for path in paths)
    return [each.coordinates for each in found if isinstance(each, File) and each.coordinates is not None]


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y%m%d%H%M%S")


# How they are written


def rendered(root: str, tree: Tree, attributes: str = "") -> bytes:
    """An XML document, indented as Maven does it."""
    lines: list[str] = []
    _render(lines, tree, "  ")
    return f"{_XML}<{root}{attributes}>\n{''.join(lines)}</{root}>\n".encode()


def _render(lines: list[str], tree: Tree, indent: str) -> None:
    for name, value in tree:
        if isinstance(value, str):
            lines.append(f"{indent}<{name}>{escape(value)}</{name}>\n")
        else:
            lines.append(f"{indent}<{name}>\n")
            _render(lines, value, indent + "  ")
            lines.append(f"{indent}</{name}>\n")


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
_ARCHETYPES = text(
    "select path from arkvory_artifacts where repository_id = :id and not withheld "
    f"and metadata ? '{KIND}' and metadata -> '{KIND}' ? 'archetype'"
)
