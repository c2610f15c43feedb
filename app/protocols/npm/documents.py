"""The room's derived documents, written of what one repository has of a package, or several (see `repository.reading.DocumentSource`).

All documents of a package have the revision of its row.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from app.cache.snapshots import Snapshot
from app.errors import NotFound
from app.protocols.npm.hosted import Hosted
from app.protocols.npm.names import parsed_version
from app.protocols.npm.portions import (
    Held,
    Holder,
    Names,
    Opened,
    Portion,
    Read,
    Wanted,
    dumps,
    members,
    merged_revision,
    merged_tags,
    of_each,
    separated,
)
from app.protocols.npm.proxied import Proxied
from app.repository.reading import Draft, Merged, Shelf

FULL_TYPE = "application/json"
ABBREVIATED_TYPE = "application/vnd.npm.install-v1+json"

# Of long documents the time to compress them would be most of the time to send them.
_LEVEL, _LONG_LEVEL, _LONG = 6, 1, 256 * 1024
# By kind of repository.
_HOLDERS: Mapping[str, Holder] = {"hosted": Hosted(), "proxy": Proxied()}


@dataclass(frozen=True)
class _OfPackage(Merged):
    """`base` is the repository's absolute address with a slash at its end, `coding` is `gzip` or empty."""

    package: str = ""
    base: str = ""
    coding: str = ""

    @property
    def representation(self) -> str:
        return f"{self.content_type} {self.coding} {self.base}"

    @property
    def content_type(self) -> str:
        return FULL_TYPE

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        return _HOLDERS[snapshot.kind].revision(connection, snapshot, self.package)

    def _draft(self, pieces: Callable[[], Iterator[bytes]], parts: Sequence[Portion] | Sequence[Read[Any]], *, long: bool = False) -> Draft:
        write = (lambda: _compressed(pieces())) if self.coding else (lambda: b"".join(pieces()))
        return Draft(write, long, judges=[judge for each in parts for judge in each.judges])


@dataclass(frozen=True)
class PackumentDocument(_OfPackage):
    """All versions: everything that is known, or abbreviated for installers."""

    abbreviated: bool = False

    @property
    def key(self) -> str:
        return f"packument {self.package}"

    @property
    def content_type(self) -> str:
        return ABBREVIATED_TYPE if self.abbreviated else FULL_TYPE

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        return self.merge(snapshot, [self._portion(connection, snapshot, shelf, alone=True)])

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Portion:
        """What one of several repositories has of it."""
        return self._portion(connection, snapshot, shelf, alone=False)

    def merge(self, repository: Snapshot, portions: Sequence[Portion]) -> Draft:
        """Of each version what the first of them says that has it."""

        def pieces() -> Iterator[bytes]:
            with contextlib.ExitStack() as held:
                opened = [held.enter_context(each.open()) for each in portions]
                yield from self._written(opened, merged_revision(opened, portions))

        return self._draft(pieces, portions, long=any(each.long for each in portions))

    def _portion(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, *, alone: bool) -> Portion:
        wanted = Wanted(self.package, self.base, self.abbreviated)
        return _HOLDERS[snapshot.kind].portion(connection, snapshot, shelf, wanted, alone=alone)

    def _written(self, opened: Sequence[Opened], revision: str) -> Iterator[bytes]:
        times = _times(opened)
        around = {"name": self.package, "dist-tags": merged_tags([each.names for each in opened])}
        head = around if self.abbreviated else {"_id": self.package, **({"_rev": revision} if revision else {}), **around}
        yield dumps(head)[:-1] + b',"versions":{'
        yield from separated(of_each(opened, lambda each, but: each.fragments(but)))
        yield b'},"time":{'
        yield from separated(itertools.chain([[members(times)]], of_each(opened, lambda each, but: each.published(but))))
        modified = {"modified": times["modified"]} if "modified" in times else {}
        yield from separated([[b"}"], [members(modified) if self.abbreviated else opened[0].about]])
        yield b"}"


@dataclass(frozen=True)
class VersionDocument(_OfPackage):
    """One version, by its number or a tag."""

    wanted: str = ""

    @property
    def key(self) -> str:
        return f"version {self.wanted} {self.package}"

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        found = self._version(connection, snapshot, shelf)
        return self._draft(lambda: iter([found.get()]), [found])

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Read[bytes] | Portion:
        """What one of several repositories has of it. Of a tag all of the package: only the tags of all tell its version."""
        if parsed_version(self.wanted) is not None:
            return self._version(connection, snapshot, shelf)
        return _HOLDERS[snapshot.kind].portion(connection, snapshot, shelf, Wanted(self.package, self.base), alone=False)

    def merge(self, repository: Snapshot, parts: Sequence[Read[bytes]] | Sequence[Portion]) -> Draft:
        """What the first of them says that has it. To write it raises NotFound where none has."""
        portions, reads = [each for each in parts if isinstance(each, Portion)], [each for each in parts if isinstance(each, Read)]
        if portions:
            return self._draft(lambda: iter([self._tagged(portions)]), portions)
        return self._draft(lambda: iter([_first(reads)]), reads)

    def _version(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Read[bytes]:
        return _HOLDERS[snapshot.kind].version(connection, snapshot, shelf, Wanted(self.package, self.base), self.wanted)

    def _tagged(self, portions: Sequence[Portion]) -> bytes:
        """Of the version that the packument's tag names what its packument says."""
        with contextlib.ExitStack() as held:
            opened = [held.enter_context(each.open()) for each in portions]
            version = merged_tags([each.names for each in opened]).get(self.wanted, self.wanted)
            first = next((each for each in opened if version in each.names.shown | each.names.withheld), None)
            if first is None or version in first.names.withheld:
                raise NotFound(f"there is no version {self.wanted!r} of {self.package!r}")
            member = b"".join(first.fragments(first.names.shown - {version}))
        return member.partition(b":")[2]


@dataclass(frozen=True)
class TagsDocument(_OfPackage):
    """`-/package/{package}/dist-tags`."""

    @property
    def key(self) -> str:
        return f"tags {self.package}"

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        return self.merge(snapshot, [_HOLDERS[snapshot.kind].tags(connection, snapshot, shelf, self.package, alone=True)])

    def part(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Read[Names]:
        """What one of several repositories has of it."""
        return _HOLDERS[snapshot.kind].tags(connection, snapshot, shelf, self.package, alone=False)

    def merge(self, repository: Snapshot, parts: Sequence[Read[Names]]) -> Draft:
        """Of each tag what the first of them says that has it."""
        return self._draft(lambda: iter([dumps(merged_tags([each.get() for each in parts]))]), parts)


def _first(parts: Sequence[Read[bytes]]) -> bytes:
    """What the first withholds that has it, none behind it shows."""
    for each in parts[:-1]:
        try:
            return each.get()
        except Held:
            raise
        except NotFound:
            continue
    return parts[-1].get()


def _times(opened: Sequence[Opened]) -> dict[str, Any]:
    """From the first that was created to the last that was changed; `unpublished` only where nothing is left anywhere."""
    created, modified = ([each.times[key] for each in opened if each.times.get(key)] for key in ("created", "modified"))
    found = {"created": min(created)} if created else {}
    found |= {"modified": max(modified)} if modified else {}
    gone = [each.times["unpublished"] for each in opened if each.times.get("unpublished")]
    return found | ({"unpublished": gone[0]} if len(gone) == len(opened) else {})


def _compressed(pieces: Iterable[bytes]) -> bytes:
    """One after the other, so that what is long is never in memory as a whole."""
    rest = iter(pieces)
    head: list[bytes] = []
    while sum(map(len, head)) <= _LONG and (piece := next(rest, None)) is not None:
        head.append(piece)
    squeeze = zlib.compressobj(_LEVEL if sum(map(len, head)) <= _LONG else _LONG_LEVEL, wbits=31)
    return b"".join([*(squeeze.compress(each) for each in itertools.chain(head, rest)), squeeze.flush()])
