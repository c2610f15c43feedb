"""What a mirror of npm packages follows: those that are named, else all that the upstream's search finds; of each all tarballs.

    (empty), {number}    the packages that a search for nothing in particular finds, from that one on
    {package}            its packument

Many registries find nothing unless they are asked for something, the public one among them: of those packages have to be named.

A hosted repository publishes each version with its manifest and the tags that name it; what is said later of versions that it has already
(tags, deprecations, owners) follows when the packument is read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gevent

from app.errors import Invalid, NotFound, UpstreamUnfit
from app.protocols.npm.following import Following, Told
from app.protocols.npm.fragments import fragments
from app.protocols.npm.kept import MOST_BYTES as MOST_PACKUMENT
from app.protocols.npm.kept import Kept, index_path, remake
from app.protocols.npm.names import PROVENANCE, is_name, tarball_path, version_of
from app.protocols.npm.received import DIGESTS, look_into
from app.protocols.npm.sources import ACCEPTED, MOST_JSON, Integrity, attestations_address, is_list_of, tarball_address
from app.protocols.npm.uploads import TARBALL_TYPE, check_tarball, facts_of
from app.repository.formats import package_of
from app.repository.mirrors.guides import FILE, LIST, Index, Item, New, OfFiles, Trail
from app.repository.names import check_path
from app.repository.publishing import NewFile, Session
from app.repository.reading import Brought
from app.upload.receiving import Received
from app.upstream.client import Arrived, Wanted

PAGE = 250
MOST_BYTES = 32 * 1024 * 1024
_JSON: Mapping[str, str] = {"Accept": "application/json", "Accept-Encoding": "gzip"}


class Packages(OfFiles):
    """The guide of this room."""

    checksums: Sequence[str] = DIGESTS

    def check(self, names: Sequence[str]) -> None:
        for each in names:
            if not is_name(each):
                raise Invalid(f"{each!r} is no name of a package", field="names")

    def roots(self, names: Sequence[str]) -> Iterable[Item]:
        return [Item(LIST, each) for each in names] or [Item(LIST, "#0")]

    def items(self, trail: Trail, path: str) -> Iterator[Item]:
        return _packages(trail, int(path[1:])) if path.startswith("#") else _tarballs(trail, path)

    def speaks_of(self, path: str) -> str | None:
        """Tags, deprecations and owners."""
        return None if path.startswith("#") else path

    def takes(self, kind: str, path: str) -> bool:
        """Attestations come with their version where that is published."""
        return kind == "proxy" or not path.endswith(PROVENANCE)

    def led_to(self, kind: str, item: Item) -> Iterable[Item]:
        """A hosted repository needs to know of a version what the packument says."""
        return [item] if kind == "proxy" else [Item(LIST, package_of("npm", item.path))]

    def source(self, trail: Trail, item: Item) -> Wanted | Brought:
        return Wanted(tarball_address(trail.url, item.path, _told(trail, item.path).source))

    def publishable(self, trail: Trail, session: Session, item: Item, received: Received, head: Arrived) -> New:
        told = _told(trail, item.path)
        Integrity.of(told.source).check(item.path, received.path)
        found = look_into(received)
        check_tarball(told.package, told.source.version, told.manifest, found)
        attested = _attestations(trail, told)
        facts = facts_of(told.package, told.source.version, received, found, None if attested is None else _predicate(told))
        files = [NewFile(item.path, received, TARBALL_TYPE, version=told.source.version)]
        if attested is not None:
            files.append(NewFile(item.path + PROVENANCE, session.store(attested), "application/json"))
        return New(files, told.as_package(fragments(told.manifest, facts, None, told.readme)))


def _packages(trail: Trail, first: int) -> Iterator[Item]:
    body = trail.ask(Wanted(f"-/v1/search?text=&size={PAGE}&from={first}", headers=_JSON), MOST_BYTES)
    if body is None:
        raise NotFound("the upstream has no search, by which its packages would be found: name those that are wanted")
    found: tuple[list[str], int] | None = gevent.get_hub().threadpool.apply(_found, (body,))
    if found is None:
        raise UpstreamUnfit("what the upstream answers to a search is no list of packages")
    names, count = found
    if not count and not first:
        raise NotFound("the upstream's search finds nothing unless it is asked for something: name the packages that are wanted")
    for name in names:
        if trail.wants(f"{name}/"):
            yield Item(LIST, name)
    if count:
        yield Item(LIST, f"#{first + count}")


def _found(body: bytes) -> tuple[list[str], int] | None:
    """Names, and how many entries there were."""
    try:
        document: Any = json.loads(body)
        objects = document["objects"]
        names = [each["package"]["name"] for each in objects]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    return [each for each in names if isinstance(each, str) and is_name(each)], len(names)


def _packument(package: str) -> Index:
    where = Wanted(package.replace("/", "%2F"), headers=ACCEPTED)
    return Index(index_path(package), [where], MOST_PACKUMENT, remade=partial(remake, package), alone=True)


def _tarballs(trail: Trail, package: str) -> Iterator[Item]:
    with Kept.open(trail.document(_packument(package))) as kept:
        trail.amend(package, partial(Following.of, kept))
        places, sources = kept.places(), {each.version: each for each in kept.sources()}
    for place in places:
        path, source = tarball_path(package, place.version), sources[place.version]
        try:
            check_path(path)
        except Invalid:
            continue
        if trail.wants(path):
            integrity = Integrity.of(source)
            yield Item(FILE, path, digest=f"{integrity.algorithm}:{integrity.only}" if integrity.only else None, lasting=True)
            if source.attestations:
                yield Item(FILE, path + PROVENANCE)


def _told(trail: Trail, path: str) -> Told:
    """Of the version whose tarball is there."""
    package = package_of("npm", path)
    with Kept.open(trail.document(_packument(package))) as kept:
        return Told.of(kept, package, version_of(package, path) or "")


def _attestations(trail: Trail, told: Told) -> bytes | None:
    """As the upstream has them; null where it has none."""
    where = attestations_address(trail.url, told.source)
    body = None if where is None else trail.ask(Wanted(where, headers=ACCEPTED), MOST_JSON)
    return body if body is not None and is_list_of(body, "attestations") else None


def _predicate(told: Told) -> str:
    """The type of its provenance; empty where the upstream does not say."""
    attestations = told.manifest["dist"].get("attestations")
    provenance = attestations.get("provenance") if isinstance(attestations, dict) else None
    kind = provenance.get("predicateType") if isinstance(provenance, dict) else None
    return kind if isinstance(kind, str) else ""
