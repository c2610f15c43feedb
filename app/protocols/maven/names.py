"""Paths of layout 2 and what they mean. Pure functions.

    {group, dots as slashes}/{artifact}/{base version}/{artifact}-{version}[-{classifier}].{extension}
    {group}[/{artifact}[/{snapshot version}]]/maven-metadata.xml
    archetype-catalog.xml
    each of these + .md5 | .sha1 | .sha256 | .sha512 (Ivy writes .SHA-256)

The version in a file's name is its folder's, or for a snapshot the one with a timestamp and a build number:
`1.0-20200513.061306-4` lies in the folder `1.0-SNAPSHOT`.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from app.errors import InvalidPath

METADATA = "maven-metadata.xml"
CATALOG = "archetype-catalog.xml"
ALGORITHMS = ("md5", "sha1", "sha256", "sha512")
SIGNATURE = ".asc"
SNAPSHOT = "SNAPSHOT"

_SIDECAR = re.compile(r"(.+)\.(md5|sha1|sha-?256|sha-?512)", re.IGNORECASE)
_BUILD = re.compile(r"([0-9]{8}\.[0-9]{6})-([0-9]{1,18})(?=[-.])")
_LOCKED = re.compile(r"(?:.*-)?[0-9]{8}\.[0-9]{6}-[0-9]+")
# A first part of digits alone is the rest of another version: `a-1.0.1.jar` in the folder `1.0`.
_EXTENSION = re.compile(r"\.(?![0-9]+(?:\.|$))([\w+~]+(?:\.[\w+~]+)*)")
# Which dot ends a classifier cannot be known; endings of two parts that are in use are.
_CLASSIFIED = re.compile(r"-(.+?)\.((?:(?:tar|cpio)\.)?\w+(?:\.(?:asc|sig|sigstore|sigstore\.json))?)")
_PLAIN = re.compile(r"[A-Za-z0-9._+~-]+")
# What separates coordinates for some client or file system, and what looks like it.
_SEPARATORS = frozenset('/\\:"<>|?*[](){},;\u2044\u2215\u2216\u29f5\u29f8\u29f9\ua789\u2236')
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})


@dataclass(frozen=True)
class Coordinates:
    """What a file is; `version` with timestamp and build number where it has them, `extension` whole (`tar.gz`, `jar.asc`)."""

    group: str
    artifact: str
    base_version: str
    version: str
    extension: str
    classifier: str = ""
    timestamp: str = ""
    build: int = 0

    @property
    def path(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        folder = f"{self.group.replace('.', '/')}/{self.artifact}/{self.base_version}"
        return f"{folder}/{self.artifact}-{self.version}{classifier}.{self.extension}"


@dataclass(frozen=True)
class File:
    """A file of a version. `package` is `group:artifact`; `coordinates` null for a descriptor with a name of its own (Ivy, sbt)."""

    path: str
    package: str
    base_version: str
    coordinates: Coordinates | None


@dataclass(frozen=True)
class Metadata:
    """`maven-metadata.xml` of a folder: a group's, an artifact's or a snapshot version's; the path does not say which."""

    folder: str

    @property
    def path(self) -> str:
        return f"{self.folder}/{METADATA}"


@dataclass(frozen=True)
class Catalog:
    """`archetype-catalog.xml` of the repository."""

    path = CATALOG


@dataclass(frozen=True)
class Sidecar:
    """The checksum of something, in a file beside it."""

    algorithm: str
    of: File | Metadata | Catalog | Other
    path: str


@dataclass(frozen=True)
class Other:
    """What no client means by layout 2, and why: only a proxy's upstream may have it all the same."""

    path: str
    reason: str


Address = File | Metadata | Catalog | Sidecar


def parse(path: str) -> Address:
    """What a client means by this path. Raises InvalidPath when no client of Maven repositories can mean anything by it."""
    sidecar = _SIDECAR.fullmatch(path)
    if sidecar is None:
        return _main(path)
    if is_sidecar(sidecar.group(1)):
        raise InvalidPath(f"{path!r} is the checksum of a checksum")
    return Sidecar(_algorithm(sidecar), _main(sidecar.group(1)), sidecar.group(1))


def parse_any(path: str) -> Address | Other:
    """The same for whoever only reads. Never raises."""
    sidecar = _SIDECAR.fullmatch(path)
    try:
        return parse(path)
    except InvalidPath as error:
        if sidecar is None or is_sidecar(sidecar.group(1)):
            return Other(path, error.message)
        return Sidecar(_algorithm(sidecar), Other(sidecar.group(1), error.message), sidecar.group(1))


def is_sidecar(path: str) -> bool:
    """Whether the path is one of a checksum."""
    return _SIDECAR.fullmatch(path) is not None


def _algorithm(sidecar: re.Match[str]) -> str:
    return sidecar.group(2).lower().replace("-", "")


def is_snapshot(base_version: str) -> bool:
    """Whether a version is one that moves. Of ASCII alone: elsewhere capitals are other letters, or more of them."""
    ending = base_version[-len(SNAPSHOT) :]
    return ending.isascii() and ending.upper() == SNAPSHOT


def _main(path: str) -> File | Metadata | Catalog:
    folder, _, name = path.rpartition("/")
    if name == METADATA and folder:
        for segment in folder.split("/"):
            _check(segment, path)
        return Metadata(folder)
    return Catalog() if path == CATALOG else _file(path)


def _file(path: str) -> File:
    segments = path.split("/")
    if len(segments) < 4:
        raise InvalidPath(f"{path!r} is no Maven path; they are group/artifact/version/artifact-version.extension")
    *groups, artifact, version, name = segments
    for segment in segments:
        _check(segment, path)
    if any("." in each for each in groups):
        raise InvalidPath(f"the group in {path!r} has dots, which are slashes in a path (Ivy: m2compatible)")
    if _LOCKED.fullmatch(version):
        raise InvalidPath(f"{version!r} is one build of a snapshot; its folder is named after the snapshot, as in 1.0-{SNAPSHOT}")
    group = ".".join(groups)
    coordinates = _coordinates(group, artifact, version, name)
    if coordinates is None and not _is_descriptor(artifact, version, name):
        raise InvalidPath(f"{name!r} is no file of version {version!r} of {artifact!r}; those are named {artifact}-{version}.extension")
    return File(path, f"{group}:{artifact}", version, coordinates)


def _check(segment: str, path: str) -> None:
    if set(segment) <= {"."}:
        raise InvalidPath(f"{path!r} has a name of dots alone")
    if _PLAIN.fullmatch(segment):
        return
    # Compatibility forms too: a full-width slash is a slash to whoever normalises.
    for char in segment + unicodedata.normalize("NFKC", segment):
        if char in _SEPARATORS or unicodedata.category(char) in _UNSEEN:
            raise InvalidPath(f"{char!a} in {path!r} cannot be part of Maven coordinates")


def _coordinates(group: str, artifact: str, version: str, name: str) -> Coordinates | None:
    prefix = f"{artifact}-"
    if not name.startswith(prefix):
        return None
    full, timestamp, build = _full_version(version, name[len(prefix) :])
    tail = name[len(prefix) + len(full) :]
    if not full or (kind := _kind(tail)) is None:
        return None
    return Coordinates(group, artifact, version, full, kind[1], kind[0], timestamp, build)


def _full_version(version: str, rest: str) -> tuple[str, str, int]:
    """The version that a file's name holds, with timestamp and build number where it has them; empty when it is another one."""
    if rest.startswith(version):
        return version, "", 0
    stem = version[: -len(SNAPSHOT)]
    if is_snapshot(version) and rest.startswith(stem) and (match := _BUILD.match(rest, len(stem))):
        return rest[: match.end()], match.group(1), int(match.group(2))
    return "", "", 0


def _kind(tail: str) -> tuple[str, str] | None:
    """Classifier and extension."""
    if match := _EXTENSION.fullmatch(tail):
        return "", match.group(1)
    if match := _CLASSIFIED.fullmatch(tail):
        return match.group(1), match.group(2)
    return None


def _is_descriptor(artifact: str, version: str, name: str) -> bool:
    """`ivy-1.0.xml`, which Ivy and Gradle write; and sbt's older plugins, whose file names lack their folder's Scala and sbt versions."""
    if name in {f"ivy-{version}.xml", f"ivy-{version}.xml{SIGNATURE}"}:
        return True
    stem = artifact.rsplit("_", 2)
    return len(stem) == 3 and _coordinates("", stem[0], version, name) is not None
