"""How the cluster is doing, as administrators see it: the tables, and beside them what this process believes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from app.access.authority import Authority
from app.access.decision import find_repository
from app.access.identity import Caller, Identities
from app.cache.snapshots import Snapshots
from app.cache.store import Cache
from app.cache.view import NO_EPOCHS, Epochs
from app.cluster import inspection
from app.cluster.inspection import DeadLetters, Instance, Lease
from app.cluster.loop import Loop
from app.database.clock import now
from app.database.engines import Database


@dataclass(frozen=True)
class Process:
    """The one that answers. Ages are seconds; null for what does not happen on a single node, or has not happened yet."""

    instance: str | None
    instance_id: int | None
    host: str
    pid: int
    online: bool | None
    last_poll_age: float | None
    last_probe_age: float | None
    corrections: int
    dead_letters: int


@dataclass(frozen=True)
class Belief:
    """A repository as this process and the database have it; `believed` is null where this process knows nothing of it yet."""

    name: str
    believed: Epochs | None
    database: Epochs
    snapshot_kept: bool

    @property
    def behind(self) -> bool:
        """A message is under way, or was lost and the next probe will tell."""
        return self.believed is not None and self.believed.joined(self.database) != self.believed


@dataclass(frozen=True)
class Report:
    """All of it; on a single node `instances` is empty unless the database was a cluster's just now."""

    process: Process
    instances: Sequence[Instance]
    dead_letters: DeadLetters
    leases: Sequence[Lease]
    repository: Belief | None


class Inspection:
    """For administrators. `loop` gives the process's own part in the cluster, null on a single node."""

    def __init__(
        self, database: Database, identities: Identities, cache: Cache, snapshots: Snapshots, loop: Callable[[], Loop | None]
    ) -> None:
        self._database = database
        self._authority = Authority(identities)
        self._cache = cache
        self._snapshots = snapshots
        self._loop = loop

    def report(self, caller: Caller, repository: str | None = None) -> Report:
        """Raises Forbidden, Unauthenticated, or NotFound for a repository that is not there."""
        # Before the database is asked: what is read later can only be newer.
        kept = repository is not None and self._snapshots.keeps("default", repository)
        with self._database.consistent() as connection:
            self._authority.administrator(connection, caller)
            found = inspection.instances(connection)
            return Report(
                process=self._process(found),
                instances=found,
                dead_letters=inspection.dead_letters(connection),
                leases=inspection.leases(connection),
                repository=None if repository is None else self._belief(connection, caller, repository, kept),
            )

    def delete_dead_letters(self, caller: Caller, up_to: int | None) -> int:
        """How many went. Raises Forbidden or Unauthenticated."""
        with self._database.write() as connection:
            self._authority.administrator(connection, caller)
            return inspection.delete_dead_letters(connection, up_to)

    def _process(self, found: Sequence[Instance]) -> Process:
        loop = self._loop()
        here = (socket.gethostname(), os.getpid())
        if loop is None:
            return Process(None, None, *here, None, None, None, 0, 0)
        mine = next((each.label for each in found if each.id == loop.instance_id), None)
        return Process(
            mine, loop.instance_id, *here, loop.online, _age(loop.last_poll), _age(loop.last_probe), loop.corrections, loop.dead_letters
        )

    def _belief(self, connection: Connection, caller: Caller, name: str, kept: bool) -> Belief:
        current = find_repository(connection, caller, name)
        believed = self._cache.view.repository(current.id)
        return Belief(current.name, None if believed == NO_EPOCHS else believed, current.epochs, kept)


def _age(moment: float) -> float | None:
    """Of a moment by the clock that counts suspension (M6)."""
    return now() - moment if moment else None
