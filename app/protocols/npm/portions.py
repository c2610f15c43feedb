"""What one repository has of a package: its portion of the package's documents, which are written of one portion or of several.

`hosted` has it from rows, `proxied` from what is kept of the upstream's packument. Both are read in the transaction that a document is
made in, and opened when it is written, without the database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Connection

from app.cache.snapshots import Snapshot
from app.errors import NotFound
from app.repository.reading import Shelf
from app.repository.withholding import Judge

T = TypeVar("T")


@dataclass(frozen=True)
class Wanted:
    """A package, for installers (`abbreviated`) or with all that is known; `base` is the address that its own ones begin with."""

    package: str
    base: str
    abbreviated: bool = False


@dataclass(frozen=True)
class Names:
    """Versions by tag; those that are shown, and those that are withheld, of which of what stands alone nobody may ask.

    What a repository withholds, none behind it shows.
    """

    tags: Mapping[str, str]
    shown: AbstractSet[str] = frozenset()
    withheld: AbstractSet[str] = frozenset()


class Held(NotFound):
    """There is such a version, and it is withheld."""


class Opened(Protocol):
    """What is written of it. `times` are `created`, `modified` and `unpublished`, as far as they are known; `about` are members of JSON."""

    @property
    def times(self) -> Mapping[str, Any]: ...

    @property
    def about(self) -> bytes: ...

    @property
    def names(self) -> Names: ...

    def fragments(self, but: AbstractSet[str]) -> Iterator[bytes]:
        """Members of a JSON object with commas between them, in pieces: all versions but those."""

    def published(self, but: AbstractSet[str]) -> Iterator[bytes]:
        """The same, when each of them was published."""


@dataclass(frozen=True)
class Portion:
    """`long`: to write it takes longer than the loop may be kept from others.

    `revision` is that of the package's row, as text; empty where a client that has read all changes nothing.
    """

    open: Callable[[], AbstractContextManager[Opened]]
    long: bool
    revision: str
    judges: Sequence[Judge] = ()


@dataclass(frozen=True)
class Read(Generic[T]):
    """The same of what is small: `get` without the connection."""

    get: Callable[[], T]
    judges: Sequence[Judge] = ()


class Holder(Protocol):
    """What there is of each kind of repository."""

    def revision(self, connection: Connection, snapshot: Snapshot, package: str) -> int | None:
        """The number that moves with all documents of the package; null when there is none."""

    def portion(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, wanted: Wanted, *, alone: bool) -> Portion:
        """`alone`: no other one is written behind it."""

    def version(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, wanted: Wanted, which: str) -> Read[bytes]:
        """One version, by its number or a tag; to get it raises NotFound or Held."""

    def tags(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, package: str, *, alone: bool) -> Read[Names]:
        """The same of its names alone."""


def dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def members(value: Mapping[str, Any]) -> bytes:
    """Those of a JSON object, without its braces."""
    return dumps(value)[1:-1]


def separated(parts: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """The pieces of all, with a comma between those parts that have any."""
    begun = False
    for part in parts:
        comma = begun
        for piece in filter(None, part):
            if comma:
                yield b","
            begun, comma = True, False
            yield piece


def of_each(opened: Sequence[Opened], part_of: Callable[[Opened, AbstractSet[str]], Iterator[bytes]]) -> Iterator[Iterator[bytes]]:
    """That part of each, without the versions that those before it have."""
    known: AbstractSet[str] = frozenset()
    for each in opened:
        yield part_of(each, known)
        known |= each.names.shown | each.names.withheld


def merged_revision(opened: Sequence[Opened], portions: Sequence[Portion]) -> str:
    """Of those of which a client has seen all: whoever takes versions back sends what is to be left."""
    told: list[str] = []
    withheld: set[str] = set()
    for each, portion in zip(opened, portions, strict=True):
        if portion.revision and withheld.isdisjoint(each.names.shown):
            told.append(portion.revision)
        withheld |= each.names.withheld
    return ".".join(told)


def merged_tags(names: Sequence[Names]) -> dict[str, str]:
    """Of each tag what the first says that has it, but for those that name what a former one withholds."""
    found: dict[str, str] = {}
    withheld: set[str] = set()
    for each in names:
        found = {tag: version for tag, version in each.tags.items() if version not in withheld} | found
        withheld |= each.withheld
    return dict(sorted(found.items()))
