"""How the lists of a format are read: each room has a guide, `Mirrors.guides` keeps them.

A list names files, and other lists: an index names projects, whose pages name files. Each is a row of the work list under a path of its own
kind, which means nothing outside of its guide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.cache.snapshots import Snapshot
from app.errors import NotAllowedHere
from app.repository.publishing import NewFile, Package, Session
from app.repository.reading import Brought
from app.upload.receiving import Received
from app.upstream.client import Arrived, Wanted

LIST, FILE = "list", "file"


@dataclass(frozen=True, slots=True)
class Item:
    """A list or a file that a list names.

    Of a file `path` is where it is kept here, `address` where the upstream has it (encoded below its address, or whole; null: at the path),
    `size` (bytes) and `digest` (`sha256:hex`) as far as the list tells. What is `lasting` never changes once it is there.
    """

    kind: str
    path: str
    size: int | None = None
    digest: str | None = None
    address: str | None = None
    lasting: bool = False


class Trail(Protocol):
    """What a guide may look up while it reads a list."""

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

    def document(self, path: str, ways: Sequence[Wanted], at_most: int) -> Brought:
        """An index of the upstream: what a proxy keeps at `path`, compared first where it is due; else the first of `ways` that is there.

        Close it. Raises NotFound, Quarantined, and UpstreamFailed.
        """

    def ask(self, wanted: Wanted, at_most: int) -> bytes | None:
        """What the upstream answers, which is not stored; null where it has no such thing. Raises UpstreamFailed."""


@dataclass(frozen=True)
class New:
    """What becomes of one file in a hosted repository."""

    files: Sequence[NewFile]
    package: Package | None = None


class ProxiesOnly:
    """Of formats whose hosted repositories follow nothing yet."""

    publishes = False
    checksums: Sequence[str] = ()

    def takes(self, kind: str, path: str) -> bool:
        return True

    def publishable(self, trail: Trail, session: Session, item: Item, received: Received, head: Arrived) -> New:
        raise NotAllowedHere("hosted repositories of this format follow nothing yet")


class Guide(Protocol):
    """Called in a greenlet that holds neither a connection nor a place; what takes long goes to a thread."""

    # Whether hosted repositories of the format may follow something, and the digests that they keep of each file.
    publishes: bool
    checksums: Sequence[str]

    def check(self, names: Sequence[str]) -> None:
        """Raises Invalid for a name that can be none, and where some are needed and there are none."""

    def takes(self, kind: str, path: str) -> bool:
        """Whether a repository of that kind (`proxy`, `hosted`) copies such a file by itself; what is made of others it does not."""

    def roots(self, names: Sequence[str]) -> Iterable[Item]:
        """Where a round begins."""

    def items(self, trail: Trail, path: str) -> Iterator[Item]:
        """What a list names. Raises NotFound where it is not there, UpstreamFailed, and UpstreamUnfit for what is none."""

    def publishable(self, trail: Trail, session: Session, item: Item, received: Received, head: Arrived) -> New:
        """What arrived for a hosted repository, by the rules of the format. Raises Invalid, UpstreamUnfit."""
