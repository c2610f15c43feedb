"""Downloads: how often each artifact was fetched, and when last.

Counted in memory, by a few steps without SQL on the way of each answer; written in batches every half a minute and at a stop. So a process
that is killed loses half a minute of counts, and nothing else. The numbers stand in a table of their own: the artifacts' rows stay as
they are, and no epoch moves.

Writing waits for nobody who changes artifacts, since it locks rows in an order of its own: what somebody else has locked is counted the
next time. What was deleted meanwhile, or never stored, is counted for its repository alone.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gevent
from sqlalchemy import Connection

from app.database.engines import Database
from app.database.statements import text
from app.errors import ArkvoryError

FLUSH_SECONDS = 30.0
# Paths that are remembered between two writes: of many they are written sooner, of more none is counted.
EARLY = 5_000
MOST = 20_000
BATCH = 500

Key = tuple[int, str]
# How often, and when last (seconds of a clock that only counts).
Noted = dict[Key, list[float]]


class Downloads:
    """Those that this process sent; `dropped` were too many to remember while the database was away."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._noted: Noted = {}
        self._writing = False
        self.dropped = 0

    def note(self, repository_id: int, path: str) -> None:
        """One more; called for each answer that brings an artifact's first byte."""
        seen = self._noted.get((repository_id, path))
        if seen is None:
            self._note_first((repository_id, path))
        else:
            seen[0] += 1
            seen[1] = time.monotonic()

    def _note_first(self, key: Key) -> None:
        if len(self._noted) >= MOST:
            self.dropped += 1
            return
        self._noted[key] = [1, time.monotonic()]
        if len(self._noted) == EARLY:
            gevent.spawn(self._flush_early)

    def _flush_early(self) -> None:
        # What it was is noted again; the next regular one says why.
        with contextlib.suppress(ArkvoryError):
            self.flush()

    def flush(self) -> None:
        """Write what was noted. Raises DatabaseAway or Unavailable; then it is noted still."""
        if self._writing:
            return
        self._writing = True
        noted, self._noted = self._noted, {}
        try:
            while noted:
                self._write(noted)
        finally:
            self._writing = False
            self._note_again(noted)

    def _write(self, noted: Noted) -> None:
        """A batch of it, which is taken out, but for what somebody else had locked.

        One whose COMMIT was not answered is not written again: rather too few than twice.
        """
        batch = dict(itertools.islice(noted.items(), BATCH))
        added = False
        try:
            with self._database.write() as connection:
                left = _add(connection, batch)
                added = True
        except ArkvoryError:
            if not added:
                raise
        finally:
            if added:
                for key in batch:
                    del noted[key]
                self._note_again(left)

    def _note_again(self, noted: Noted) -> None:
        for key, (count, at) in noted.items():
            seen = self._noted.get(key)
            if seen is not None:
                seen[0] += count
            elif len(self._noted) < MOST:
                self._noted[key] = [count, at]
            else:
                self.dropped += int(count)


def _add(connection: Connection, batch: Noted) -> Noted:
    """To the tables; what has to wait."""
    keys = list(batch)
    found = connection.execute(_FOUND, {"repositories": [key[0] for key in keys], "paths": [key[1] for key in keys]})
    ids = {int(row.id): keys[row.number - 1] for row in found}
    done = set(connection.execute(_ADD, _values(ids, batch)).scalars())
    fresh = {each: key for each, key in ids.items() if each not in done}
    if fresh:
        done |= set(connection.execute(_BEGIN, _values(fresh, batch)).scalars())
    left = {key: batch[key] for each, key in ids.items() if each not in done}
    counted = {key: noted for key, noted in batch.items() if key not in left}
    connection.execute(_ADD_TO_REPOSITORIES, dict(_by_repository(counted)))
    return left


def _values(ids: Mapping[int, Key], batch: Noted) -> Mapping[str, Sequence[Any]]:
    now = time.monotonic()
    return {
        "ids": list(ids),
        "counts": [int(batch[key][0]) for key in ids.values()],
        "ages": [now - batch[key][1] for key in ids.values()],
    }


def _by_repository(counted: Noted) -> Iterator[tuple[str, Sequence[Any]]]:
    now = time.monotonic()
    counts: Counter[int] = Counter()
    ages: dict[int, float] = {}
    for (repository_id, _), (count, at) in counted.items():
        counts[repository_id] += int(count)
        ages[repository_id] = min(ages.get(repository_id, now), now - at)
    yield "ids", list(counts)
    yield "counts", list(counts.values())
    yield "ages", [ages[each] for each in counts]


_NOTED = "unnest(cast(:ids as bigint[]), cast(:counts as bigint[]), cast(:ages as float8[])) as n(id, count, age)"
_LAST = "clock_timestamp() - make_interval(secs => n.age)"
_FOUND = text(
    "select n.number::int, a.id from unnest(cast(:repositories as bigint[]), cast(:paths as text[])) with ordinality "
    "as n(repository_id, path, number) join arkvory_artifacts a on a.repository_id = n.repository_id and a.path = n.path"
)
_ADD = text(
    "with free as materialized (select artifact_id from arkvory_downloads where artifact_id = any(cast(:ids as bigint[])) "
    "order by artifact_id for update skip locked) "
    f"update arkvory_downloads d set count = d.count + n.count, last_at = greatest(d.last_at, {_LAST}) "
    f"from free join {_NOTED} on n.id = free.artifact_id where d.artifact_id = free.artifact_id returning d.artifact_id"
)
# Who inserts the same at this moment does so in the same order. Whoever deletes the artifact is not waited for.
_BEGIN = text(
    "insert into arkvory_downloads (artifact_id, count, last_at) select a.id, a.count, a.last_at from "
    f"(select a.id, n.count, {_LAST} as last_at from {_NOTED} join arkvory_artifacts a on a.id = n.id "
    "where not exists (select 1 from arkvory_downloads d where d.artifact_id = a.id) order by a.id for key share of a skip locked) a "
    "on conflict (artifact_id) do nothing returning artifact_id"
)
# Without a foreign key: cleanup takes what is of no repository.
_ADD_TO_REPOSITORIES = text(
    "insert into arkvory_repository_downloads as d (repository_id, count, last_at) select r.id, n.count, "
    f"{_LAST} from {_NOTED} join arkvory_repositories r on r.id = n.id where r.deleted_at is null order by r.id "
    "on conflict (repository_id) do update set count = d.count + excluded.count, last_at = greatest(d.last_at, excluded.last_at)"
)
