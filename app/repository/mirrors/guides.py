"""How the lists of a format are read: each room has a guide, `Mirrors.guides` keeps them.

A list names files, and other lists: an index names projects, whose pages name files. Each is a row of the work list under a path of its own
kind, which means nothing outside of its guide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection

from app.cache.snapshots import Snapshot
from app.repository.blobs import Linked
from app.repository.dialects import Remake
from app.repository.publishing import NewFile, Package, Session
from app.repository.reading import Brought
from app.upload.receiving import Received
from app.upstream.client import Arrived, Wanted

LIST, FILE = "list", "file"
_LINE = "\n"


@dataclass(frozen=True, slots=True)
class Item:
    """A list or a file that a list names.

    Of a file `path` is where it is kept here, `address` where the upstream has it (encoded below its address, or whole; null: at the path),
    `size` (bytes) and `digest` (`algorithm:hex`) as far as the list tells. What is `lasting` never changes once it is there. What it
    `needs` (the paths of other files, each in a line) is done first.
    """

    kind: str
    path: str
    size: int | None = None
    digest: str | None = None
    address: str | None = None
    lasting: bool = False
    needs: str | None = None


def lines(paths: Iterable[str]) -> str | None:
    """What an item needs."""
    return _LINE.join(dict.fromkeys(paths)) or None


@dataclass(frozen=True)
class Index:
    """A document of the upstream that a guide reads: what a proxy keeps at `path`; else the first of `ways` that is there.

    More than `at_most` bytes are none. `remade` and `further` are those of a `dialects.Plan`. `names`: HEAD is asked first, whose answer
    says by which path its bytes are known for good; those that are at hand are not fetched. A list that is made of it `alone` is asked for
    by the validators that it had (`rereading`).
    """

    path: str
    ways: Sequence[Wanted]
    at_most: int
    remade: Remake | None = None
    further: Callable[[Arrived], str | None] | None = None
    names: Callable[[Arrived], str | None] | None = None
    alone: bool = False


class Amendment(Protocol):
    """What an upstream says by now of a package that is here already, for the format's own tables."""

    def is_due(self, connection: Connection, package_id: int) -> bool:
        """Whether something else is said here."""

    def make(self, connection: Connection, package_id: int) -> None:
        """Under the repository's lock."""


class Trail(Protocol):
    """What a guide may look up while it reads a list, or makes something of a file."""

    @property
    def snapshot(self) -> Snapshot:
        """Of the repository that follows."""

    @property
    def url(self) -> str:
        """The upstream's address."""

    @property
    def names(self) -> Sequence[str]:
        """Those that are followed; none: all that the upstream has."""

    def wants(self, path: str) -> bool:
        """Whether the patterns of the mirror and the rules of the repository let a path in; a folder ends in a slash."""

    def document(self, index: Index) -> Brought:
        """Compared first where a proxy's copy is due, at hand where this run has read it a moment ago.

        Close it. Raises NotFound, Quarantined, and UpstreamFailed.
        """

    def ask(self, wanted: Wanted, at_most: int) -> bytes | None:
        """What the upstream answers, which is not stored; null where it has no such thing. Raises UpstreamFailed."""

    def ask_list(self, wanted: Wanted, at_most: int) -> bytes | None:
        """The same for what a list is made of, by the validators that it had. Raises Unchanged too."""

    def amend(self, package: str, told: Callable[[], Amendment]) -> None:
        """Let a hosted repository that has such a package say what its upstream has `told` of it; a proxy does so anyway."""


@dataclass(frozen=True)
class New:
    """What becomes of one file in a hosted repository."""

    files: Sequence[NewFile]
    package: Package | None = None


ByLink = Callable[[Linked], New]


class Guide(Protocol):
    """Called in a greenlet that holds neither a connection nor a place; what takes long goes to a thread."""

    # The digests that hosted repositories of the format keep of each file.
    checksums: Sequence[str]

    def check(self, names: Sequence[str]) -> None:
        """Raises Invalid for a name that can be none, and where some are needed and there are none."""

    def takes(self, kind: str, path: str) -> bool:
        """Whether a repository of that kind (`proxy`, `hosted`) copies such a file by itself; what is made of others it does not."""

    def roots(self, names: Sequence[str]) -> Iterable[Item]:
        """Where a round begins."""

    def items(self, trail: Trail, path: str) -> Iterator[Item]:
        """What a list names. Raises NotFound where it is not there, UpstreamFailed, and UpstreamUnfit for what is none; Unchanged."""

    def speaks_of(self, path: str) -> str | None:
        """The package of which a list says more than which files there are: what is said here of it counts for its reading."""

    def led_to(self, kind: str, item: Item) -> Iterable[Item]:
        """What comes of a file that another Arkvory lists: itself, or the list by which a repository of that kind gets it."""

    def source(self, trail: Trail, item: Item) -> Wanted | Brought:
        """How a hosted repository asks for a file; or its bytes, to be closed, where they are at hand. Raises as `Trail.document`."""

    def by_link(self, path: str) -> ByLink | None:
        """What becomes of bytes that a hosted repository has at another path; null where they are to be looked into."""

    def publishable(self, trail: Trail, session: Session, item: Item, received: Received, head: Arrived) -> New:
        """What arrived for a hosted repository, by the rules of the format. Raises Invalid, UpstreamUnfit."""


class OfFiles:
    """Of a guide whose lists tell all that is to be known of a file."""

    checksums: Sequence[str] = ()

    def takes(self, kind: str, path: str) -> bool:
        return True

    def speaks_of(self, path: str) -> str | None:
        return None

    def led_to(self, kind: str, item: Item) -> Iterable[Item]:
        return [item]

    def source(self, trail: Trail, item: Item) -> Wanted | Brought:
        return Wanted(item.address or item.path)

    def by_link(self, path: str) -> ByLink | None:
        return None
