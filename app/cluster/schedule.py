"""The durable list of jobs (`arkvory_jobs`): what runs, how often, who ran it last, how that went, and when it runs next.

Times are the database's. Who may run a job is told by its lease (leases.py) in a cluster, and on a single node by there being one process.
The row says what became of it: a run has a number, and only the latest run writes its end. A row that says `running` while nobody has
the lease is that of a runner that died: the job is due at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gevent.event import Event
from sqlalchemy import Connection

from app.cluster.leases import BEYOND
from app.cluster.mailbox import SILENT_SECONDS
from app.database.engines import Database
from app.database.statements import text

# Of what a run says, in characters.
LONGEST_WORDS = 500
# After a first failure in a row; each further one doubles it, up to the job's own interval.
RETRY_SECONDS = 5.0
# Of its interval, in which a job rests that took longer than that.
LEAST_REST = 0.1


@dataclass(frozen=True)
class Planned:
    """A job as its row describes it."""

    name: str
    every_seconds: float
    description: str


@dataclass(frozen=True)
class Entry:
    """A row. `seconds` is how long the last run took; `outcome` one of done, failed, stopped, lost; `failures` in a row.

    `due_in`: seconds until whoever asked may begin it, zero from then on.
    """

    name: str
    description: str
    every_seconds: float
    running: bool
    runner: str | None
    began_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    outcome: str | None
    said: str | None
    failures: int
    succeeded_at: datetime | None
    next_at: datetime
    due_in: float


@dataclass(frozen=True)
class Begun:
    """A run; `lost` names the runner before, where it died in the middle."""

    number: int
    lost: str | None


class Schedule:
    """One for each process; `latest` is what it read last, `changed` wakes whoever runs jobs in it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.changed = Event()
        self.latest: Mapping[str, Entry] = {}

    def look(self, patience_seconds: float) -> Mapping[str, Entry]:
        """All of it, by name. While a worker lives, a job falls due here only after so many seconds: it is the worker's.

        Raises DatabaseAway.
        """
        with self._database.read() as connection:
            self.latest = {each.name: each for each in entries(connection, patience_seconds)}
        return self.latest

    def plan(self, jobs: Iterable[Planned]) -> None:
        """Make their rows, due at once, or bring them up to date. Raises DatabaseAway."""
        values = sorted(jobs, key=lambda each: each.name)
        with self._database.write() as connection:
            connection.execute(_PLAN, _columns(values))

    def forget(self, names: Sequence[str]) -> None:
        """Of what is gone. Raises DatabaseAway."""
        with self._database.write() as connection:
            for table in ("arkvory_jobs", "arkvory_leases"):
                connection.execute(text(f"delete from {table} where name = any(:names)"), {"names": list(names)})

    def begin(self, name: str, runner: str) -> Begun | None:
        """For who may run it; null when it is not due any more. Raises DatabaseAway."""
        with self._database.write() as connection:
            row = connection.execute(_BEGIN, {"name": name, "runner": runner}).first()
        return None if row is None else Begun(row.run, row.former if row.lost else None)

    def tell(self, name: str, run: int, words: str) -> bool:
        """What it is at; false when it is another one's by now. Raises DatabaseAway."""
        with self._database.write() as connection:
            return connection.execute(_TELL, {"name": name, "run": run, "said": words[:LONGEST_WORDS]}).rowcount == 1

    def end(self, name: str, run: int, outcome: str, words: str | None) -> bool:
        """`done`, `failed` (it is tried again soon) or `stopped` (at once, by whoever comes first).

        False when it is another one's by now, whose row is left alone. Raises DatabaseAway.
        """
        values = {"name": name, "run": run, "outcome": outcome, "said": words and words[:LONGEST_WORDS]}
        with self._database.write() as connection:
            return connection.execute(_END, {**values, "retry": RETRY_SECONDS, "rest": LEAST_REST}).rowcount == 1


def entries(connection: Connection, patience_seconds: float = 0.0) -> list[Entry]:
    """All rows, by name."""
    values = {"patience": patience_seconds, "silent": SILENT_SECONDS}
    return [Entry(*row) for row in connection.execute(_ENTRIES, values)]


def ask(connection: Connection, name: str) -> bool:
    """Let it run now, or once more when it runs already; false when there is no such job."""
    asked = text("update arkvory_jobs set asked_at = clock_timestamp() where name = :name")
    return connection.execute(asked, {"name": name}).rowcount == 1


def _columns(jobs: Sequence[Planned]) -> Mapping[str, list[Any]]:
    return {
        "names": [each.name for each in jobs],
        "seconds": [each.every_seconds for each in jobs],
        "descriptions": [each.description for each in jobs],
    }


# What lies farther ahead than a job ever waits was written before the clock was set back: it is due.
_NEXT_AT = (
    "case when j.asked_at is not null or j.next_at > clock_timestamp() + make_interval(secs => j.every_seconds + 5) "
    "then least(j.next_at, j.asked_at, clock_timestamp()) else j.next_at end"
)
# On a single node nobody has a lease, and whoever runs jobs knows which of them are its own.
_DUE_AT = (
    f"case when j.running then coalesce((select l.until from arkvory_leases l where l.name = j.name and l.until < {BEYOND}), "
    f"least(j.began_at, clock_timestamp())) else {_NEXT_AT} end"
)
_ENTRIES = text(
    "select j.name, j.description, j.every_seconds, j.running, j.runner, j.began_at, j.ended_at, j.seconds, j.outcome, j.said, j.failures, "
    f"j.succeeded_at, j.next_at, greatest(0, extract(epoch from {_DUE_AT} - clock_timestamp()) + w.patience)::float8 "
    "from arkvory_jobs j cross join (select case when exists (select 1 from arkvory_instances where kind = 'worker' "
    "and heartbeat_at > clock_timestamp() - make_interval(secs => :silent)) then cast(:patience as float8) else 0 end as patience) w "
    "order by j.name"
)
_PLAN = text(
    "insert into arkvory_jobs as j (name, every_seconds, description) select * from "
    "unnest(cast(:names as text[]), cast(:seconds as float8[]), cast(:descriptions as text[])) "
    "on conflict (name) do update set every_seconds = excluded.every_seconds, description = excluded.description, "
    "next_at = least(j.next_at, clock_timestamp() + make_interval(secs => excluded.every_seconds)) "
    "where (j.every_seconds, j.description) is distinct from (excluded.every_seconds, excluded.description)"
)
# Who begins it has its lease, so one that is said to run does not.
_BEGIN = text(
    "with former as (select j.name, j.running, j.runner from arkvory_jobs j where j.name = :name "
    f"and (j.running or {_NEXT_AT} <= clock_timestamp()) for update) "
    "update arkvory_jobs j set run = j.run + 1, running = true, runner = :runner, began_at = clock_timestamp(), asked_at = null, "
    "next_at = clock_timestamp() + make_interval(secs => j.every_seconds), "
    "outcome = case when f.running then 'lost' else j.outcome end "
    "from former f where j.name = f.name returning j.run, f.running as lost, f.runner as former"
)
_TELL = text("update arkvory_jobs set said = :said where name = :name and run = :run and running")
_END = text(
    "update arkvory_jobs set running = false, ended_at = clock_timestamp(), outcome = :outcome, said = coalesce(:said, said), "
    "seconds = extract(epoch from clock_timestamp() - began_at)::float8, "
    "failures = case :outcome when 'done' then 0 when 'failed' then failures + 1 else failures end, "
    "succeeded_at = case when :outcome = 'done' then clock_timestamp() else succeeded_at end, "
    "next_at = case :outcome when 'done' then greatest(next_at, clock_timestamp() + make_interval(secs => every_seconds * :rest)) "
    "when 'failed' then clock_timestamp() + make_interval(secs => least(every_seconds, :retry * power(2, least(failures, 20)))) "
    "else clock_timestamp() end "
    "where name = :name and run = :run and running"
)
