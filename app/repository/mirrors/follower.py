"""The mirrors of this installation, and how one is run. When, and by which process, is for the jobs to say (`app/jobs`).

Each mirror that runs has a lock of its own, a session of the pool `write-lock`, which ends with the process that has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy import Connection

from app.cache.snapshots import Snapshot, Snapshots
from app.database.engines import Database
from app.database.statements import text
from app.database.writelocks import Held
from app.errors import ArkvoryError, Unavailable
from app.repository.fetching import Fetches
from app.repository.mirrors import arkvory
from app.repository.mirrors.copying import Follower, Prefetch, Repositories, Rules
from app.repository.mirrors.documents import Documents
from app.repository.mirrors.guides import LIST, Guide, Item, Trail
from app.repository.mirrors.importing import Import, Imports, Source
from app.repository.mirrors.rereading import FORM, UNKNOWN, Reading, Validators
from app.repository.mirrors.run import Alone, Begun, Run, tell_failure
from app.repository.mirrors.settings import ARKVORY, Mirrors
from app.repository.mirrors.worklist import Copied, Work, WorkList
from app.repository.parts import Kept
from app.repository.withholding import path_rules
from app.upstream.breaker import Line
from app.upstream.client import Client


class Standing(NamedTuple):
    """A mirror as of the last look, and how far it is."""

    id: int
    repository_id: int
    repository: str
    enabled: bool
    every_seconds: int
    todo: int
    done: int
    failed: int
    refused: int
    lag_seconds: int


class Mirroring:
    """Runs mirrors in this process."""

    def __init__(self, database: Database, snapshots: Snapshots, fetches: Fetches, imports: Imports, mirrors: Mirrors) -> None:
        self._database = database
        self._snapshots = snapshots
        self._fetches = fetches
        self._imports = imports
        self._client = Client()
        self._lines: dict[int, Line] = {}
        self._mirrors = mirrors
        self.running = 0
        # Since the start: what was copied, by this process.
        self.files = self.bytes = 0
        # Of all mirrors, as of the last look.
        self.known: Sequence[Standing] = ()

    def look(self, connection: Connection) -> Sequence[Standing]:
        """All mirrors; their locks get room in their pool."""
        self.known = [Standing(*row) for row in connection.execute(_KNOWN)]
        self._database.write_lock.expect(sum(each.enabled for each in self.known))
        return [each for each in self.known if each.enabled]

    def expect(self) -> None:
        """The same before anybody counts connections. Raises ArkvoryError."""
        with self._database.read() as connection:
            self.look(connection)

    def follow(self, mirror_id: int, repository_id: int, alone: Alone) -> str:
        """Run it once; what it did, in words. Raises Unavailable when it was cut off, or another process has it."""
        with self._database.write_lock.hold(f"mirror/{mirror_id}") as held:
            if held is None:
                raise Unavailable("another process still has this mirror's lock; its session ends soon", retry_after=5)
            self.running += 1
            try:
                return self._run(mirror_id, repository_id, _Locked(held, alone))
            finally:
                self.running -= 1

    def _run(self, mirror_id: int, repository_id: int, alone: Alone) -> str:
        repository = Repositories(self._snapshots, repository_id)
        guide = self._mirrors.guides[repository.now().format]
        started = self._begin(mirror_id, guide)
        if started is None:
            return "it was deleted, or switched off"
        row, begun = started
        work = self._list(mirror_id, repository_id, begun.round)
        with contextlib.closing(Documents()) as documents:
            try:
                steps = self._steps(row, repository, guide, documents)
            except ArkvoryError as error:
                tell_failure(self._database, begun, error)
                raise
            return Run(self._database, begun, work, steps, alone, self._count).go()

    def _list(self, mirror_id: int, repository_id: int, round_: int) -> WorkList:
        return WorkList(self._database, mirror_id, repository_id, round_, f"{FORM}.{self._imports.admission.most_bytes}")

    def _count(self, copied: Copied) -> None:
        self.files += copied.received is not None
        self.bytes += copied.received or 0

    def _begin(self, mirror_id: int, guide: Guide) -> tuple[Any, Begun] | None:
        """A new round, or what is left of the last one; null when it is not there any more. Raises ArkvoryError."""
        runner = uuid4().hex
        with self._database.write() as connection:
            row = connection.execute(_BEGIN, {"id": mirror_id, "runner": runner}).first()
            if row is None:
                return None
            roots = [arkvory.ROOT] if row.source == ARKVORY else list(guide.roots(row.names))
            if row.fresh:
                self._list(row.id, row.repository_id, row.round).add_in(connection, roots)
        known = frozenset((each.kind, each.path) for each in roots if each.kind == LIST)
        begun = Begun(row.id, row.repository_id, runner, row.round, row.revision, row.concurrency, row.pause, tuple(row.errors), known)
        return row, begun

    def _steps(self, row: Any, repository: Repositories, guide: Guide, documents: Documents) -> _Steps:
        """Raises Unavailable when the upstream's credentials cannot be read."""
        snapshot = repository.now()
        chosen = repository, row.names, Rules(path_rules(snapshot.format, row.include, row.exclude))
        follower: Prefetch | Import
        if snapshot.kind == "proxy":
            follower = Prefetch(*chosen, self._database, self._fetches)
        else:
            follower = Import(*chosen, self._database, self._imports, self._source(row, snapshot), guide, documents)
        return _Steps(row.source, row.revision, guide, follower)

    def _source(self, row: Any, snapshot: Snapshot) -> Source:
        """Another address is another upstream, as of a proxy."""
        where = self._mirrors.upstream_of(row)
        line = self._lines.get(row.id)
        if line is None or line.address != where.url:
            line = self._lines[row.id] = Line(snapshot.name, where.connections, self._fetches.places, address=where.url)
        line.resize(where.connections)
        return Source(where, self._client, line)


@dataclass(frozen=True)
class _Locked:
    """See `run.Alone`: by its lock too."""

    held: Held
    alone: Alone

    def check(self) -> None:
        self.held.require()
        self.alone.check()

    def tell(self, words: str) -> None:
        self.alone.tell(words)


class _Steps:
    """See `run.Steps`."""

    def __init__(self, source: str, revision: int, guide: Guide, follower: Follower) -> None:
        """`revision` is that of the mirror's settings."""
        self._source = source
        self._revision = revision
        self._guide = guide
        self._follower = follower

    def reading(self, work: Work) -> Reading:
        path = work.item.path
        its_own = self._source != ARKVORY or path.startswith(_LED_TO)
        package = self._guide.speaks_of(path.removeprefix(_LED_TO)) if its_own else None
        # As it is before the upstream is asked: what is changed meanwhile is another basis.
        epoch = self._follower.snapshot.epochs.metadata
        basis = f"{FORM}.{self._revision}.{epoch}.{self._follower.said_of(package)}"
        # What was none is read as a whole once more from time to time.
        known = work.basis == basis and (work.refused or not work.refusals)
        return Reading(basis, Validators(work.etag, work.last_modified) if known else UNKNOWN)

    def items(self, path: str, reading: Reading) -> Iterator[Item]:
        trail = self._follower.read_by(reading)
        kind = trail.snapshot.kind
        listed = self._listed_by_another(trail, kind, path) if self._source == ARKVORY else self._guide.items(trail, path)
        return (each for each in listed if each.kind == LIST or self._guide.takes(kind, each.path))

    def _listed_by_another(self, trail: Trail, kind: str, path: str) -> Iterator[Item]:
        """What its list leads to may be lists of the format, which are called otherwise here than its pages."""
        if path.startswith(_LED_TO):
            found = self._guide.items(trail, path.removeprefix(_LED_TO))
            return (_led_to(each) for each in found)
        pages = arkvory.items(trail, path)
        return (_led_to(each) if each is not one else one for one in pages for each in self._all_of(kind, one))

    def _all_of(self, kind: str, item: Item) -> Iterable[Item]:
        return [item] if item.kind == LIST else self._guide.led_to(kind, item)

    def require_open(self) -> None:
        self._follower.require_open()

    def copy(self, work: Work, kept: Kept) -> Copied:
        return self._follower.copy(work, kept)


# No cursor begins so.
_LED_TO = "\n"


def _led_to(item: Item) -> Item:
    return replace(item, path=_LED_TO + item.path) if item.kind == LIST else item


_KNOWN = text(
    "select m.id, m.repository_id, r.name, m.enabled, m.every_seconds, "
    "coalesce((m.counts ->> 'todo')::bigint, 0) + coalesce((m.counts ->> 'lists')::bigint, 0), "
    "coalesce((m.counts ->> 'done')::bigint, 0), coalesce((m.counts ->> 'failed')::bigint, 0), "
    "coalesce((m.counts ->> 'refused')::bigint, 0), "
    "extract(epoch from now() - coalesce(m.current_at, m.created_at))::bigint "
    "from arkvory_mirrors m join arkvory_repositories r on r.id = m.repository_id and r.deleted_at is null order by r.name"
)
# What the upstream said of a pause is of the same upstream.
_BEGIN = text(
    "update arkvory_mirrors m set state = 'running', runner = :runner, started_at = clock_timestamp(), seen_at = clock_timestamp(), "
    "reason = case when m.not_before > clock_timestamp() and m.walked = m.revision then m.reason end, "
    "walked = m.revision, whole = false, "
    "round = m.round + f.fresh::integer, round_at = case when f.fresh then clock_timestamp() else m.round_at end "
    "from (select id, whole or walked <> revision as fresh, walked <> revision as other from arkvory_mirrors "
    "where id = :id and enabled for update) f where m.id = f.id returning m.id, m.repository_id, m.round, m.revision, m.concurrency, "
    "case when f.other then 0 else greatest(0, coalesce(extract(epoch from m.not_before - clock_timestamp()), 0)) end::float8 as pause, "
    "m.errors, m.source, m.names, m.include, m.exclude, m.upstream_url, m.shown, m.secret, m.may_lie_inside, f.fresh"
)
