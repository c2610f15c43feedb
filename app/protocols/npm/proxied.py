"""What a proxy has of a package: what it keeps of its upstream's packument; see `portions.Holder`.

What is held, or will be when it is fetched, is left out, and so are tags that name such a version.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import Connection

from app.cache.snapshots import Snapshot
from app.errors import NotFound
from app.protocols.npm.fragments import ADDRESS
from app.protocols.npm.hosted import package_row, revision_text
from app.protocols.npm.kept import Kept, Place, index_path, moment_of
from app.protocols.npm.names import highest, tarball_path
from app.protocols.npm.portions import Held, Names, Portion, Read, Wanted, separated
from app.repository.fetching import UPSTREAM
from app.repository.quarantine import Barred, barred_below
from app.repository.reading import Shelf
from app.repository.withholding import Judge

_ADDRESS = ADDRESS.encode()
# Of a hexadecimal number that PostgreSQL's own whole numbers have room for.
_STAMP_DIGITS = 15
_T = TypeVar("_T")
_Opener = Callable[[], contextlib.AbstractContextManager["_Index"]]


@dataclass(frozen=True)
class _Hiding:
    """What is not shown: versions that are held, or will be when they are fetched, and those that the proxy's own settings withhold."""

    package: str
    barred: Barred
    judge: Judge

    def __bool__(self) -> bool:
        return bool(self.barred.stamp) or not self.judge.is_idle

    def hides(self, place: Place) -> bool:
        path = tarball_path(self.package, place.version)
        return self.barred.holds(path) or self.judge.leaves_out(path, moment_of(place.published), self.package, place.version)


@dataclass(frozen=True)
class _Index:
    """See `portions.Opened`."""

    kept: Kept
    wanted: Wanted
    hiding: _Hiding

    @cached_property
    def places(self) -> list[Place]:
        """Of what is shown."""
        return [each for each in self.known if not (self.hiding and self.hiding.hides(each))]

    @cached_property
    def known(self) -> list[Place]:
        return self.kept.places()

    @cached_property
    def names(self) -> Names:
        shown = frozenset(each.version for each in self.places)
        return Names(self._tags(shown), shown, frozenset(each.version for each in self.known) - shown)

    @property
    def times(self) -> Mapping[str, Any]:
        times: Mapping[str, Any] = self.kept.table["times"]
        return times

    @property
    def about(self) -> bytes:
        return self.kept.section("about")

    def _tags(self, shown: AbstractSet[str]) -> dict[str, str]:
        """`latest` is the highest version where the upstream's is not shown."""
        told: dict[str, str] = self.kept.table["tags"]
        found = {tag: version for tag, version in told.items() if version in shown}
        if "latest" in told and "latest" not in found and self.places:
            found["latest"] = highest([each.version for each in self.places])
        return found

    def fragments(self, but: AbstractSet[str]) -> Iterator[bytes]:
        for piece in self._pieces(but):
            yield piece.replace(_ADDRESS, self.wanted.base.encode())

    def published(self, but: AbstractSet[str]) -> Iterator[bytes]:
        times = ((each.version, each.published) for each in self.places if each.published is not None and each.version not in but)
        return iter([b",".join(f"{json.dumps(version)}:{json.dumps(time)}".encode() for version, time in times)])

    def version(self, which: str) -> bytes:
        """Raises NotFound and Held."""
        place = self.kept.place(which) or self.kept.place((self.names.tags if self.hiding else self.kept.table["tags"]).get(which, which))
        if place is None:
            raise NotFound(f"there is no version {which!r} of {self.wanted.package!r}")
        if self.hiding and self.hiding.hides(place):
            raise Held(f"there is no version {which!r} of {self.wanted.package!r}")
        member = b"".join(self.kept.pieces([self._range(place)]))
        return member.partition(b":")[2].replace(_ADDRESS, self.wanted.base.encode())

    def _pieces(self, but: AbstractSet[str]) -> Iterable[bytes]:
        """All at once where nothing is left out."""
        if not but and not self.hiding:
            section: tuple[int, int] = self.kept.table["at"]["abbreviated" if self.wanted.abbreviated else "full"]
            return self.kept.pieces([section])
        return separated(self.kept.pieces([self._range(each)]) for each in self.places if each.version not in but)

    def _range(self, place: Place) -> tuple[int, int]:
        short = self.wanted.abbreviated
        return (place.abbreviated, place.abbreviated_length) if short else (place.full, place.full_length)


class Proxied:
    """See `portions.Holder`."""

    def revision(self, connection: Connection, snapshot: Snapshot, package: str) -> int | None:
        row = package_row(connection, snapshot.id, package)
        if row is None:
            return None
        stamp = _barred(connection, snapshot, package).stamp
        return int(row.revision) ^ int(stamp[:_STAMP_DIGITS] or "0", 16)

    def portion(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, wanted: Wanted, *, alone: bool) -> Portion:
        row = package_row(connection, snapshot.id, wanted.package)
        judge = Judge(snapshot)
        opener = _opener(connection, snapshot, shelf, wanted, judge)
        # Nothing is changed there.
        return Portion(opener, True, revision_text(row) if row is not None and alone else "", (judge,))

    def version(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, wanted: Wanted, which: str) -> Read[bytes]:
        judge = Judge(snapshot)
        return _read(_opener(connection, snapshot, shelf, wanted, judge), lambda index: index.version(which), judge)

    def tags(self, connection: Connection, snapshot: Snapshot, shelf: Shelf, package: str, *, alone: bool) -> Read[Names]:
        judge = Judge(snapshot)
        return _read(_opener(connection, snapshot, shelf, Wanted(package, ""), judge), lambda index: index.names, judge)


def _read(opener: _Opener, look: Callable[[_Index], _T], judge: Judge) -> Read[_T]:
    def read() -> _T:
        with opener() as index:
            return look(index)

    return Read(read, (judge,))


def _opener(connection: Connection, snapshot: Snapshot, shelf: Shelf, wanted: Wanted, judge: Judge) -> _Opener:
    """To be called without the connection."""
    found = shelf.find(connection, snapshot, index_path(wanted.package))
    hiding = _Hiding(wanted.package, _barred(connection, snapshot, wanted.package), judge)

    @contextlib.contextmanager
    def opened() -> Iterator[_Index]:
        with Kept.open(found()) as kept:
            yield _Index(kept, wanted, hiding)

    return opened


def _barred(connection: Connection, snapshot: Snapshot, package: str) -> Barred:
    return barred_below(connection, snapshot.id, f"{package}/-/", UPSTREAM)
