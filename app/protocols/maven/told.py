"""What repositories say of artifacts, snapshots, plugins and archetypes, and what a group makes of what its members say.

Merged, versions and archetypes are the union, of a snapshot the newest file of each classifier and extension counts, and what is at a
path is the first member's. Of a version or a file that one member withholds, no later member says anything: the group has the first one's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, Any
from xml.etree.ElementTree import Element, ParseError
from xml.sax.saxutils import escape

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring, iterparse
from sqlalchemy import Row

from app.protocols.maven.names import Coordinates, File, is_snapshot, parse
from app.protocols.maven.versions import in_order
from app.repository.names import PATH_BYTES
from app.storage import OpenBlob

log = logging.getLogger(__name__)

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_STAMPED = re.compile(r"(.*-)?([0-9]{8}\.[0-9]{6})-([0-9]{1,18})")

Tree = Iterable[tuple[str, "str | Tree"]]


@dataclass(frozen=True, order=True)
class Build:
    """A file of a snapshot version, ordered by what is newer; `updated` in UTC, as Maven writes it."""

    updated: str
    number: int
    file: Coordinates = field(compare=False)


@dataclass(frozen=True)
class Plugin:
    """What a group says of one of its plugins; `version` is empty where only an upstream says so."""

    artifact: str
    name: str
    prefix: str
    version: str = ""
    path: str = ""


@dataclass(frozen=True)
class Told:
    """What one repository says in `maven-metadata.xml`; times as Maven writes them, empty where none is known.

    `stamp` is the newest build of a snapshot version: timestamp and number. `held` are paths, and versions with such a path.
    """

    versions: Sequence[str] = ()
    builds: Sequence[Build] = ()
    plugins: Sequence[Plugin] = ()
    is_snapshot: bool = False
    stamp: tuple[str, int] | None = None
    updated: str = ""
    held: frozenset[str] = frozenset()
    held_versions: frozenset[str] = frozenset()
    # An upstream's own bytes.
    raw: bytes | None = None


def told_by(
    folder: str, versions: Sequence[Row[Any]], builds: Sequence[Row[Any]], plugins: Sequence[Row[Any]], held: Sequence[Row[Any]]
) -> Told:
    """From rows: of `version` and `updated_at`, `path` and `updated_at`, `path` and `plugin`, `path` and `version` of what is held.

    A build's `updated` is the time in the file's name where there is one: copying old builds does not make them new.
    """
    times = {row.path: _moment(row.updated_at) for row in builds}
    files = [Build(each.timestamp.replace(".", "") or times[each.path], each.build, each) for each in _files(times)]
    newest = max((each.updated for each in files), default=max(times.values(), default=""))
    return Told(
        versions=[row.version for row in versions],
        builds=files,
        plugins=_plugins(plugins, folder),
        is_snapshot=bool(builds),
        updated=newest or max((_moment(row.updated_at) for row in versions), default=""),
        held=frozenset(row.path for row in held),
        held_versions=frozenset(row.version for row in held if row.version is not None),
    )


def _plugins(rows: Sequence[Row[Any]], folder: str) -> list[Plugin]:
    told = {row.path: row.plugin for row in rows}
    found = [each for each in _files(told) if each.group == folder.replace("/", ".")]
    return [Plugin(each.artifact, told[each.path]["name"], told[each.path]["prefix"], each.base_version, each.path) for each in found]


def _files(paths: Iterable[str]) -> list[Coordinates]:
    found = (parse(path) for path in paths)
    return [each.coordinates for each in found if isinstance(each, File) and each.coordinates is not None]


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y%m%d%H%M%S")


# What upstreams say


def metadata_in(folder: str, blob: OpenBlob) -> Told:
    """Of an upstream's `{folder}/maven-metadata.xml`; nothing where that cannot be read."""
    with _reading(blob) as file:
        raw = file.read()
    try:
        return _metadata(folder, fromstring(raw, forbid_dtd=True), raw)
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        log.warning("an upstream's metadata of %s cannot be read: %s", folder, error)
        return Told()


def _metadata(folder: str, root: Element, raw: bytes) -> Told:
    versioning = _child(root, "versioning")
    snapshot, builds = _child(versioning, "snapshot"), _child(versioning, "snapshotVersions")
    stamp = _text(snapshot, "timestamp"), _text(snapshot, "buildNumber")
    return Told(
        versions=[text for each in _children(_child(versioning, "versions"), "version") if (text := _usable(each))],
        builds=[build for each in _children(builds, "snapshotVersion") if (build := _build(folder, each)) is not None],
        plugins=[
            Plugin(_text(each, "artifactId"), _text(each, "name"), _text(each, "prefix"))
            for each in _children(_child(root, "plugins"), "plugin")
        ],
        is_snapshot=snapshot is not None or builds is not None,
        stamp=(stamp[0], int(stamp[1])) if stamp[0] and stamp[1].isdecimal() else None,
        updated=_text(versioning, "lastUpdated"),
        raw=raw,
    )


def _build(folder: str, element: Element) -> Build | None:
    *groups, artifact, version = folder.split("/")
    value, extension = _text(element, "value"), _text(element, "extension")
    stamped = _STAMPED.fullmatch(value)
    if not value or not extension:
        return None
    timestamp, number = (stamped.group(2), int(stamped.group(3))) if stamped else ("", 0)
    file = Coordinates(".".join(groups), artifact, version, value, extension, _text(element, "classifier"), timestamp, number)
    return Build(timestamp.replace(".", "") or _text(element, "updated"), number, file)


@contextlib.contextmanager
def _reading(blob: OpenBlob) -> Iterator[IO[bytes]]:
    try:
        with open(os.dup(blob.fd), "rb") as file:
            file.seek(0)
            yield file
    finally:
        blob.close()


def _tag(element: Element) -> str:
    """Without its namespace, which metadata has or has not."""
    return str(element.tag).rpartition("}")[2]


def _children(element: Element | None, name: str) -> list[Element]:
    return [] if element is None else [each for each in element if _tag(each) == name]


def _child(element: Element | None, name: str) -> Element | None:
    found = _children(element, name)
    return found[0] if found else None


def _text(element: Element | None, name: str) -> str:
    found = _child(element, name)
    return "" if found is None else _usable(found)


def _usable(element: Element) -> str:
    """Its text; empty where it is longer than any path, and so of nothing that there is."""
    text = (element.text or "").strip()
    return text if len(text) <= PATH_BYTES else ""


# What is made of it


def merged(parts: Sequence[Told], *, artifact: str, owner: str, version: str) -> bytes:
    """`maven-metadata.xml`, of the package `artifact`, or of one `version` of the package `owner`; alone an upstream's stays as it is."""
    if len(parts) == 1 and parts[0].raw is not None:
        return parts[0].raw
    tree: list[tuple[str, str | Tree]] = []
    versions = _versions(parts)
    if any(each.is_snapshot for each in parts):
        tree += [*_coordinates(owner), ("version", version), ("versioning", _snapshot_versioning(parts))]
    elif versions:
        tree += [*_coordinates(artifact), ("versioning", _versioning(versions, parts))]
    plugins = _merged_plugins(parts)
    if plugins:
        tree.append(("plugins", [("plugin", each) for each in plugins]))
    return rendered("metadata", tree, ' modelVersion="1.1.0"')


def _versions(parts: Sequence[Told]) -> list[str]:
    """In Maven's order."""
    found: set[str] = set()
    held: set[str] = set()
    for each in parts:
        found |= set(each.versions) - held
        held |= each.held_versions
    return in_order(found)


def _versioning(versions: Sequence[str], parts: Sequence[Told]) -> Tree:
    releases = [each for each in versions if not is_snapshot(each)]
    updated = max(each.updated for each in parts)
    return [
        ("latest", versions[-1]),
        *([("release", releases[-1])] if releases else []),
        ("versions", [("version", each) for each in versions]),
        *([("lastUpdated", updated)] if updated else []),
    ]


def _snapshot_versioning(parts: Sequence[Told]) -> Tree:
    """The newest file of each classifier and extension, and the newest build of all."""
    builds = sorted(_builds(parts))
    newest = {(build.file.extension, build.file.classifier): build for build in builds}
    stamps = [(build.file.timestamp, build.number) for build in builds if build.file.timestamp]
    stamp = max([*stamps, *(each.stamp for each in parts if each.stamp is not None)], default=None)
    head: list[tuple[str, str | Tree]] = []
    if stamp is not None:
        head = [("snapshot", [("timestamp", stamp[0]), ("buildNumber", str(stamp[1]))])]
    updated = max(each.updated for each in parts)
    entries = [("snapshotVersion", _snapshot_version(newest[kind])) for kind in sorted(newest)]
    return [*head, ("lastUpdated", updated), ("snapshotVersions", entries)]


def _builds(parts: Sequence[Told]) -> list[Build]:
    found: dict[str, Build] = {}
    held: set[str] = set()
    for each in parts:
        found |= {build.file.path: build for build in each.builds if build.file.path not in found and build.file.path not in held}
        held |= each.held
    return list(found.values())


def _snapshot_version(build: Build) -> Tree:
    classifier = [("classifier", build.file.classifier)] if build.file.classifier else []
    return [*classifier, ("extension", build.file.extension), ("value", build.file.version), ("updated", build.updated)]


def _merged_plugins(parts: Sequence[Told]) -> list[Tree]:
    """Each as its highest version says, in the first member that has it."""
    plugins: list[Plugin] = []
    held: set[str] = set()
    for each in parts:
        plugins = [*(plugin for plugin in each.plugins if plugin.path not in held), *plugins]
        held |= each.held
    rank = {version: place for place, version in enumerate(in_order({each.version for each in plugins if each.version}))}
    newest = {each.artifact: each for each in sorted(plugins, key=lambda each: rank.get(each.version, -1))}
    return [[("name", each.name), ("prefix", each.prefix), ("artifactId", artifact)] for artifact, each in sorted(newest.items())]


def _coordinates(package: str) -> list[tuple[str, str | Tree]]:
    group, _, artifact = package.partition(":")
    return [("groupId", group), ("artifactId", artifact)]


# Archetypes


@dataclass(frozen=True)
class Archetypes:
    """Those that one repository has, as group, artifact and version, and those that it withholds."""

    shown: frozenset[tuple[str, str, str]]
    held: frozenset[tuple[str, str, str]] = frozenset()


def archetypes_of(rows: Sequence[Row[Any]]) -> Archetypes:
    """From rows of `path` and `withheld`."""
    shown, held = (_names(row.path for row in rows if row.withheld is withheld) for withheld in (False, True))
    return Archetypes(shown, held)


def _names(paths: Iterable[str]) -> frozenset[tuple[str, str, str]]:
    return frozenset((each.group, each.artifact, each.base_version) for each in _files(paths))


def archetypes_in(blob: OpenBlob) -> Archetypes:
    """Of an upstream's catalog, which may be long; as much as can be read of it."""
    found: set[tuple[str, str, str]] = set()
    with _reading(blob) as file, contextlib.suppress(ParseError, DefusedXmlException, ValueError, LookupError):
        for _, element in iterparse(file, forbid_dtd=True):
            if _tag(element) == "archetype":
                found.add((_text(element, "groupId"), _text(element, "artifactId"), _text(element, "version")))
                element.clear()
    return Archetypes(frozenset(found))


def united_archetypes(parts: Sequence[Archetypes]) -> list[tuple[str, str, str]]:
    """In order."""
    found: set[tuple[str, str, str]] = set()
    held: set[tuple[str, str, str]] = set()
    for each in parts:
        found |= each.shown - held
        held |= each.held
    return sorted(found)


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
