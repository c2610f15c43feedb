"""What a mirror of npm packages follows: those that are named, else all that the upstream's search finds; of each all tarballs.

    (empty), {number}    the packages that a search for nothing in particular finds, from that one on
    {package}            its packument

Many registries find nothing unless they are asked for something, the public one among them: of those packages have to be named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gevent

from app.errors import Invalid, NotFound, UpstreamUnfit
from app.protocols.npm.kept import Kept, index_path
from app.protocols.npm.names import PROVENANCE, is_name, tarball_path
from app.repository.mirrors.guides import FILE, LIST, Item, ProxiesOnly, Trail
from app.repository.names import check_path
from app.upstream.client import Wanted

PAGE = 250
MOST_BYTES = 32 * 1024 * 1024
_JSON: Mapping[str, str] = {"Accept": "application/json", "Accept-Encoding": "gzip"}


class Packages(ProxiesOnly):
    """The guide of this room."""

    def check(self, names: Sequence[str]) -> None:
        for each in names:
            if not is_name(each):
                raise Invalid(f"{each!r} is no name of a package", field="names")

    def roots(self, names: Sequence[str]) -> Iterable[Item]:
        return [Item(LIST, each) for each in names] or [Item(LIST, "#0")]

    def items(self, trail: Trail, path: str) -> Iterator[Item]:
        return _packages(trail, int(path[1:])) if path.startswith("#") else _tarballs(trail, path)


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


def _tarballs(trail: Trail, package: str) -> Iterator[Item]:
    with Kept.open(trail.document(index_path(package), (), 0)) as kept:
        places = kept.places()
        attested = {each.version for each in kept.sources() if each.attestations}
    for place in places:
        path = tarball_path(package, place.version)
        try:
            check_path(path)
        except Invalid:
            continue
        if trail.wants(path):
            yield Item(FILE, path, lasting=True)
            if place.version in attested:
                yield Item(FILE, path + PROVENANCE)
