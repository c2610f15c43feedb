"""Names of packages, versions and tags, and where things are.

Below the address of a repository, `/npm/{repository}/`, a package's name being `{name}` or `@{scope}/{name}`; the slash of a scope
may also come as `%2f`, as npm sends it where the name is one thing:

    {package}                            the packument, full or abbreviated; published, amended and unpublished there too
    {package}/{version or tag}           the document of one version
    {package}/-/{name}-{version}.tgz     the tarball; the scope may stand before the file's name again
    {package}/-rev/{revision}            what npm sends a change to that it made of a document that it read
    -/package/{package}/dist-tags        the tags
    -/...                                everything that is no package

A tarball is the artifact at its own address, a provenance bundle (`.sigstore`) the one beside it.

The rules for names are those of `validate-npm-package-name`: reads know what was ever allowed, publishing what is allowed today.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from semver import Version

from app.errors import Invalid, NotFound

LONGEST_NAME = 214
LONGEST_VERSION = 256
LONGEST_TAG = 214
MOST_TAGS = 200
PROVENANCE = ".sigstore"
_LARGEST_NUMBER = 2**53 - 1

# What `encodeURIComponent` leaves as it is.
_PLAIN = re.compile(r"[A-Za-z0-9\-_.!~*'()]+")
_NO_LONGER = frozenset("~'!()*")
_NEVER = frozenset({"node_modules", "favicon.ico"})
# Modules that Node.js itself has; `http2/x` and its like are refused as paths are.
_CORE = frozenset(
    """
    _http_agent _http_client _http_common _http_incoming _http_outgoing _http_server _stream_duplex _stream_passthrough _stream_readable
    _stream_transform _stream_wrap _stream_writable _tls_common _tls_wrap assert async_hooks buffer child_process cluster console
    constants crypto dgram diagnostics_channel dns domain events fs http http2 https inspector module net os path perf_hooks process
    punycode querystring readline repl stream string_decoder sys timers tls trace_events tty url util v8 vm wasi worker_threads zlib
    """.split()  # noqa: SIM905  # a list of seventy words is longer
)


@dataclass(frozen=True, slots=True)
class Packument:
    """All versions of a package."""

    package: str


@dataclass(frozen=True, slots=True)
class OneVersion:
    """One version of a package, by its number or a tag."""

    package: str
    wanted: str


@dataclass(frozen=True, slots=True)
class Tarball:
    """The file of one version; `path` is the artifact's."""

    package: str
    path: str


@dataclass(frozen=True, slots=True)
class Revision:
    """What npm wants to do to something that it read as `revision`."""

    of: Packument | Tarball
    revision: str


Address = Packument | OneVersion | Tarball | Revision


def parse(path: str) -> Address:
    """What a decoded path below the repository stands for. Raises NotFound."""
    package, rest = _take_package(path.rstrip("/").split("/"))
    if not is_name(package):
        raise NotFound(f"there is no {path!r}: that is no package's name")
    if len(rest) >= 2 and rest[-2] == "-rev":
        return Revision(_thing(path, package, rest[:-2]), rest[-1])
    if len(rest) == 1 and rest[0] != "-":
        return OneVersion(package, rest[0])
    return _thing(path, package, rest)


def _thing(path: str, package: str, rest: list[str]) -> Packument | Tarball:
    if not rest:
        return Packument(package)
    if rest[0] == "-" and len(rest) in (2, 3):
        # The file's name may carry the scope.
        if len(rest) == 3 and not package.startswith(f"{rest[1]}/"):
            raise NotFound(f"there is no {path!r}")
        return Tarball(package, f"{package}/-/{rest[-1]}")
    raise NotFound(f"there is no {path!r}")


def _take_package(segments: list[str]) -> tuple[str, list[str]]:
    """The name, of two segments when it has a scope, and what follows."""
    count = 2 if segments[0].startswith("@") else 1
    return "/".join(segments[:count]), segments[count:]


def package_of(path: str) -> str:
    """A path that is a package's name and nothing else. Raises NotFound."""
    address = parse(path)
    if not isinstance(address, Packument):
        raise NotFound(f"{path!r} is no package's name")
    return address.package


def bare(package: str) -> str:
    """The name without its scope."""
    return package.rpartition("/")[2]


def scope_of(package: str) -> str:
    """Without the `@`; empty where there is none."""
    return package.partition("/")[0].removeprefix("@") if "/" in package else ""


def tarball_path(package: str, version: str) -> str:
    """Where the artifact of a version lies."""
    return f"{package}/-/{bare(package)}-{version}.tgz"


def tarball_reference(package: str, version: str) -> str:
    """Its address below the repository's, encoded."""
    return quote(tarball_path(package, version), safe="/@!~*'()")


def attestations_reference(package: str, version: str) -> str:
    """The same of what was attested of it."""
    return f"-/npm/v1/attestations/{package}@{version}"


def version_of(package: str, file: str) -> str | None:
    """The version that the tarball of that path is of, if it is called as tarballs are here."""
    start, end = f"{package}/-/{bare(package)}-", ".tgz"
    return file[len(start) : -len(end)] if file.startswith(start) and file.endswith(end) and len(file) > len(start) + len(end) else None


def is_name(name: str) -> bool:
    """Whether it was ever allowed (`validForOldPackages`)."""
    return _fault(name) is None


def check_new_name(name: object) -> str:
    """A name that may be published (`validForNewPackages`). Raises Invalid."""
    if not isinstance(name, str):
        raise Invalid("the document has no name", "name")
    fault = _fault(name) or _new_fault(name)
    if fault is not None:
        raise Invalid(f"{name!r} cannot be published: the name {fault}", "name")
    return name


def _fault(name: str) -> str | None:
    if not name or name != name.strip():
        return "is empty or has spaces around it"
    if name[0] in ".-_":
        return f"begins with {name[0]!r}"
    if name.lower() in _NEVER:
        return "is one that no package may have"
    scope, slash, rest = name.partition("/")
    parts = [scope[1:], rest] if slash and scope.startswith("@") else [name]
    if any(not _PLAIN.fullmatch(part) for part in parts):
        return "has characters that an address would have to encode"
    return "has a part that begins with a period" if parts[-1].startswith(".") else None


def _new_fault(name: str) -> str | None:
    if len(name) > LONGEST_NAME:
        return f"has more than {LONGEST_NAME} characters"
    if name != name.lower():
        return "has capital letters"
    if not _NO_LONGER.isdisjoint(bare(name)):
        return "has one of ~'!()* in it"
    return "is that of a module of Node.js" if name in _CORE else None


def check_version(version: object) -> str:
    """A version as npm publishes it (semver 2, no `v` before it). Raises Invalid."""
    if not isinstance(version, str) or len(version) > LONGEST_VERSION:
        raise Invalid(f"a version is a text of at most {LONGEST_VERSION} characters", "version")
    parsed = parsed_version(version)
    if parsed is None or max(parsed.major, parsed.minor, parsed.patch) > _LARGEST_NUMBER:
        raise Invalid(f"{version!r} is no semantic version, such as 1.0.0 or 2.0.0-rc.1", "version")
    return version


def parsed_version(version: str) -> Version | None:
    """None for what is no semantic version."""
    try:
        return Version.parse(version)
    except ValueError:
        return None


def check_tag(tag: str) -> str:
    """A tag that can be asked for. npm's own client makes none that could be a range, such as `v1`; others do. Raises Invalid."""
    if not 0 < len(tag) <= LONGEST_TAG or not _PLAIN.fullmatch(tag):
        raise Invalid(f"{tag!r} cannot be a tag: it has 1 to {LONGEST_TAG} characters that an address needs not encode", "tag")
    if parsed_version(tag) is not None:
        raise Invalid(f"{tag!r} cannot be a tag: it is a version", "tag")
    return tag


def check_number_of_tags(tags: Mapping[str, Any]) -> Mapping[str, Any]:
    """As many as are written at once, since others wait meanwhile. Raises Invalid."""
    if len(tags) > MOST_TAGS:
        raise Invalid(f"at most {MOST_TAGS} tags are changed at once", "dist-tags")
    return tags


def highest(versions: list[str]) -> str:
    """The highest of some versions, one that is no pre-release where there is any; build metadata does not count."""
    parsed = {version: found for version in versions if (found := parsed_version(version)) is not None}
    if not parsed:
        return versions[-1]
    releases = [version for version, found in parsed.items() if found.prerelease is None]
    return max(releases or parsed, key=lambda version: parsed[version])
