"""How a format speaks with its upstreams: what is to be asked for a path, and what is made of the answer.

Each room has one, `Fetches.dialects` keeps them. A format without one asks for the path as the client spelled it, and stores what comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from app.cache.snapshots import Snapshot
from app.repository.publishing import NewFile
from app.storage import OpenBlob
from app.upload.receiving import Received
from app.upstream.client import Arrived


@dataclass(frozen=True)
class Order:
    """A path of a proxy, as a client spelled it."""

    snapshot: Snapshot
    path: str
    spelling: str


# What is kept in place of what arrived: reads its file, and hands on the other bytes. Raises UpstreamWrong when that is not what was asked
# for.
Remake = Callable[[Path, Callable[[bytes], object]], None]
# What arrived, and the head that it came with, as the artifact it is to be. Raises UpstreamWrong when it is not what was asked for.
Accept = Callable[[Received, Arrived], NewFile]


@dataclass(frozen=True)
class Plan:
    """What is to be asked for a path.

    `where` is encoded, below the upstream's address, or a whole address: of another origin it is asked without credentials.
    `digests` (hex by algorithm) and `size` (bytes) are those that the bytes must have, as far as they are known beforehand; `told` are
    those that the answer's head adds. `lasting`: a copy is never compared again.
    `published_at`: when the upstream published it (null: it does not say so beforehand), as which version of what; indexes and the like are
    `ageless`, and never too young.
    What is to be `remade` is not handed on while it comes, and the same again must make the same bytes; `accept` gets those.
    """

    where: str
    headers: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    size: int | None = None
    lasting: bool = False
    published_at: datetime | None = None
    name: str = ""
    version: str = ""
    ageless: bool = False
    remade: Remake | None = None
    told: Callable[[Arrived], Mapping[str, str]] | None = None
    accept: Accept | None = None


class Library(Protocol):
    """What a plan may look up: other paths of the same proxy, fetched or compared first where they are due."""

    def open(self, path: str) -> OpenBlob:
        """The bytes; close them. Raises NotFound, Quarantined, and UpstreamFailed when there is no copy either."""


class Dialect(Protocol):
    """Called in a greenlet that holds neither a connection nor a place; what takes long goes to a thread."""

    def plan(self, library: Library, order: Order) -> Plan:
        """Raises NotFound where the upstream's own index names no such file, and InvalidPath."""
