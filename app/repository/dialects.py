"""How a format speaks with its upstreams: what is to be asked for a path, and what is made of the answer.

Each room has one, `Fetches.dialects` keeps them. A format without one asks for the path as the client spelled it, and stores what comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from app.cache.snapshots import Snapshot
from app.repository.parts import Kept
from app.repository.publishing import NewFile
from app.repository.reading import Brought
from app.upload.receiving import Received
from app.upstream.client import Arrived


@dataclass(frozen=True)
class Order:
    """A path of a proxy, as a client spelled it."""

    snapshot: Snapshot
    path: str
    spelling: str
    # Of whoever may come back for the rest; null: it comes as a whole.
    kept: Kept | None = field(default=None, compare=False)
    # Of whoever wants to know what the upstream has now: a copy is compared before it is due, too.
    anew: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, snapshot: Snapshot, path: str, spelling: str = "", kept: Kept | None = None, *, anew: bool = False) -> Order:
        """Without a spelling, what would mean something else in an address is encoded (another path, a query, another escape)."""
        return cls(snapshot, path, spelling or quote(path, safe=_AS_IT_IS), kept, anew)


# Of the characters that clients send as they are.
_AS_IT_IS = "!\"$&'()*+,/:;<=>@[]^`{|}~"


# What is kept in place of what arrived: reads its file, and hands on the other bytes. Raises UpstreamUnfit when that is not what was asked
# for.
Remake = Callable[[Path, Callable[[bytes], object]], None]
# What arrived, and the head that it came with, as the artifact it is to be. Raises UpstreamUnfit when it is not what was asked for.
Accept = Callable[[Received, Arrived], NewFile]

# Made here of other paths, where the upstream has no such file: gets what keeps bytes. Raises NotFound and UpstreamFailed.
Instead = Callable[[Callable[[bytes], Received]], NewFile]


@dataclass(frozen=True)
class Plan:
    """What is to be asked for a path.

    `where` is encoded, below the upstream's address, or a whole address: of another origin it is asked without credentials.
    `or_else` are asked in turn where that one is absent. `scope`: how to log in (`upstream/logins.py`).
    `content_type`: what its bytes are called, whatever the upstream says. `checksums`: those that are kept of it, however long it is.
    `digests` (hex by algorithm) and `size` (bytes) are those that the bytes must have, as far as they are known beforehand; `told` are
    those that the answer's head adds; more bytes than `at_most` are none. `whole`: nothing of it is handed on before it was accepted.
    `lasting`: a copy is never compared again. `published_at`: when the upstream published it (null: it does not say so beforehand), as
    which version of what; indexes and the like are `ageless`, and never too young.
    What is to be `remade` is not handed on while it comes, and the same again must make the same bytes; `accept` gets those.
    """

    where: str
    or_else: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    size: int | None = None
    whole: bool = False
    lasting: bool = False
    content_type: str | None = None
    checksums: Sequence[str] = ()
    published_at: datetime | None = None
    name: str = ""
    version: str = ""
    ageless: bool = False
    remade: Remake | None = None
    told: Callable[[Arrived], Mapping[str, str]] | None = None
    accept: Accept | None = None
    # What else these bytes are, for good: paths of the same proxy whose copies are never compared.
    beside: Callable[[Received, Arrived], Sequence[NewFile]] | None = None
    # Whether the answer to HEAD says that a copy of this SHA-256 is what is there still; without it only GET tells.
    same: Callable[[Arrived, str], bool] | None = None
    # Where the rest of it is, one page after the other, which are stored with a line feed between them.
    further: Callable[[Arrived], str | None] | None = None
    at_most: int | None = None
    scope: str = ""
    instead: Instead | None = None
    # False: it is handed on and never stored.
    kept: bool = True
    # The path that this is another name of, which holds and rules speak of: it leaves where that may.
    alias_of: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it is a file that may come in parts: however long, kept as it comes, under this path alone."""
        return not self.whole and self.remade is None and self.beside is None and self.further is None and self.at_most is None


class Library(Protocol):
    """What a plan may look up: the proxy's settings; other paths of it, fetched or compared first where they are due."""

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def open(self, path: str) -> Brought:
        """The bytes; close them. Raises NotFound, Quarantined, and UpstreamFailed when there is no copy either."""

    def peek(self, where: str, most: int) -> bytes | None:
        """A small file of the upstream that belongs to the one that was just read, for `accept` to look at; it is not stored.

        Null when there is none to be had, or it has more than `most` bytes. Raises UpstreamFailed.
        """


class Dialect(Protocol):
    """Called in a greenlet that holds neither a connection nor a place; what takes long goes to a thread."""

    def plan(self, library: Library, order: Order) -> Plan:
        """Raises NotFound where the upstream's own index names no such file, and InvalidPath."""
