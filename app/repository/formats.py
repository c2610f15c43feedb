"""What the house needs to know of each format; everything else about it is in its own room below `protocols`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import Conflict, NotFound
from app.repository.names import INTERNAL

WRITE_POLICIES = ("once", "replace", "read_only")
VERSION_POLICIES = ("release", "snapshot", "mixed")
# Of groups: whether a name that a hosted member holds may come from a proxy too.
NAME_POLICIES = SHIELD, MERGE = ("shield", "merge")


@dataclass(frozen=True)
class Format:
    """`write_policy` is the default; `companions` are endings of files that come and go with the file before them."""

    name: str
    write_policy: str
    # A path that was used once is never used again, even after it was deleted.
    names_are_for_ever: bool = False
    companions: tuple[str, ...] = ()
    # The folder of the repository's address below which artifacts lie at their paths.
    files: str = ""
    # Paths of versions that move: `once` does not bind them, and `version_policy` tells them from releases.
    snapshots: re.Pattern[str] | None = None
    # Paths of what is made from what is stored: no artifact ever lies there.
    made: re.Pattern[str] | None = None
    # Under `once` the same bytes again are no conflict, for clients that repeat what they got no answer to.
    repeatable: bool = False
    # The first segment of its addresses, where that is not its name.
    prefix: str = ""
    # Paths that name their own bytes: whatever the policy, nothing else ever goes there.
    fixed: re.Pattern[str] | None = None
    # Paths of tags, the tag as the first group: `immutable_tags` speaks of them.
    tags: re.Pattern[str] | None = None
    # Its artifacts refer to each other (`references.py`).
    references: bool = False
    # A table with a row for artifacts of its own, by `artifact_id`, which goes along when one is copied.
    rows: str = ""
    # Paths of what never changes once an upstream has it.
    lasting: re.Pattern[str] | None = None
    # Its proxies keep their upstreams' indexes below `INTERNAL`.
    indexes: bool = False
    # A host name may mean one of its repositories.
    hosts: bool = False
    # The name of the package that a path belongs to, empty for what belongs to none; null: it knows no packages.
    package_of: Callable[[str], str] | None = None
    # Groups shield the names of their hosted members.
    shields: bool = False
    # An upstream may have names of one segment below another one (a proxy's setting of that name).
    short_names: bool = False
    # A PUT to a path is all that there is to an upload, so that it may come in parts.
    in_parts: bool = False

    def address(self, repository: str) -> str:
        """The path below the server's address that clients are pointed at."""
        return f"/{self.prefix or self.name}/{repository}/" + ("simple/" if self.name == "pypi" else "")

    def file_address(self, repository: str) -> str:
        """The path below the server's address that the path of an artifact follows."""
        return f"/{self.prefix or self.name}/{repository}/{self.files}"


def _maven_package(path: str) -> str:
    *folders, name = path.split("/")
    # A version's folder, but for the metadata of all versions, which lies above it.
    if not name.startswith("maven-metadata.xml") or (folders and folders[-1].upper().endswith("SNAPSHOT")):
        folders = folders[:-1]
    return f"{'.'.join(folders[:-1])}:{folders[-1]}" if len(folders) > 1 else ""


def _pypi_package(path: str) -> str:
    return path.partition("/")[0]


def _npm_package(path: str) -> str:
    return path.partition("/-/")[0].rstrip("/")


def _oci_package(path: str) -> str:
    return path.rsplit("/", 2)[0]


FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format("raw", write_policy="replace", in_parts=True),
        Format(
            "maven",
            write_policy="once",
            companions=(".asc",),
            snapshots=re.compile(r".*SNAPSHOT/[^/]*", re.IGNORECASE | re.ASCII),
            made=re.compile(r"(?:.+/maven-metadata\.xml|archetype-catalog\.xml|.+\.(?:md5|sha1|sha-?256|sha-?512))", re.IGNORECASE),
            repeatable=True,
            package_of=_maven_package,
        ),
        Format(
            "oci",
            write_policy="replace",
            repeatable=True,
            prefix="v2",
            fixed=re.compile(r".*/(?:manifests|blobs)/[a-z0-9]+:[0-9a-f]+"),
            tags=re.compile(r".*/manifests/([^/:]+)"),
            references=True,
            hosts=True,
            package_of=_oci_package,
            short_names=True,
        ),
        Format(
            "npm",
            write_policy="once",
            companions=(".sigstore",),
            rows="arkvory_npm_versions",
            indexes=True,
            package_of=_npm_package,
            shields=True,
        ),
        Format(
            "pypi",
            write_policy="once",
            names_are_for_ever=True,
            companions=(".metadata", ".asc", ".provenance"),
            files="files/",
            indexes=True,
            package_of=_pypi_package,
            shields=True,
        ),
    )
}


def is_made(format_name: str, path: str) -> bool:
    """Whether what is served at the path is made from artifacts, so that none is there."""
    made = FORMATS[format_name].made
    return made is not None and made.fullmatch(path) is not None


def is_internal(format_name: str, path: str) -> bool:
    """Whether a proxy keeps an index of its upstream there: nobody reads, lists or holds it as a file."""
    return FORMATS[format_name].indexes and path.startswith(INTERNAL)


def absent(format_name: str, path: str, repository: str) -> NotFound:
    """In the words of who asked: an upstream's index is the package's, or the project's, that it is of."""
    told = path.split("/", 2)[2] if is_internal(format_name, path) and path.count("/") > 1 else path
    if FORMATS[format_name].indexes and (told != path or (path.endswith("/") and path.strip("/"))):
        return NotFound(f"there is no package {told.rstrip('/')!r} in repository {repository!r}")
    return NotFound(f"there is no {told!r} in repository {repository!r}")


def package_of(format_name: str, path: str) -> str:
    """The name of the package that a path belongs to; empty where there is none."""
    name_of = FORMATS[format_name].package_of
    return "" if name_of is None else name_of(path)


def main_path(format_name: str, path: str) -> str:
    """The path of the file that the one at this path stands beside; its own when it stands for itself."""
    ending = next((each for each in FORMATS[format_name].companions if path.endswith(each)), "")
    return path.removesuffix(ending)


def write_policy(format_name: str, settings: Mapping[str, Any]) -> str:
    """The policy in force: the repository's own, else its format's default."""
    return str(settings.get("write_policy") or FORMATS[format_name].write_policy)


def is_written_once(format_name: str, settings: Mapping[str, Any], path: str) -> bool:
    """Whether what is published at this path stays as it is."""
    if is_fixed(format_name, path) or immutable_tag(format_name, settings, path) is not None:
        return True
    return write_policy(format_name, settings) == "once" and not _is_snapshot(format_name, path)


def is_fixed(format_name: str, path: str) -> bool:
    """Whether the path names its own bytes."""
    fixed = FORMATS[format_name].fixed
    return fixed is not None and fixed.fullmatch(path) is not None


def is_lasting(format_name: str, path: str) -> bool:
    """Whether a copy of what an upstream has at the path never needs to be compared again."""
    lasting = FORMATS[format_name].lasting
    return is_fixed(format_name, path) or (lasting is not None and lasting.fullmatch(path) is not None)


def immutable_tag(format_name: str, settings: Mapping[str, Any], path: str) -> str | None:
    """Why the tag at a path stays what it is, in words: the pattern of `immutable_tags` that names it; null when none does."""
    tags, patterns = FORMATS[format_name].tags, settings.get("immutable_tags")
    found = tags.fullmatch(path) if tags is not None and patterns else None
    if found is None:
        return None
    pattern = next((each for each in patterns or () if fnmatch.fnmatchcase(found.group(1), each)), None)
    return None if pattern is None else f"the tag {found.group(1)!r} stays what it is (immutable_tags: {pattern!r})"


def check_version_policy(format_name: str, settings: Mapping[str, Any], path: str) -> None:
    """Raises Conflict for a snapshot where only releases belong, and the other way round."""
    policy = settings.get("version_policy", "mixed")
    if FORMATS[format_name].snapshots is None or policy == "mixed":
        return
    snapshot = _is_snapshot(format_name, path)
    if snapshot and policy == "release":
        raise Conflict(f"this repository takes releases, and {path!r} is a snapshot (version_policy)")
    if not snapshot and policy == "snapshot":
        raise Conflict(f"this repository takes snapshots, and {path!r} is a release (version_policy)")


def is_of_other_kind(format_name: str, policy: str, path: str) -> bool:
    """Whether the path is of a version that a proxy with this `version_policy` does not have. An index names both kinds."""
    if policy == "release":
        return _is_snapshot(format_name, path)
    return policy == "snapshot" and not (path.endswith("/") or _is_snapshot(format_name, path) or is_made(format_name, path))


def _is_snapshot(format_name: str, path: str) -> bool:
    snapshots = FORMATS[format_name].snapshots
    return snapshots is not None and snapshots.fullmatch(path) is not None
