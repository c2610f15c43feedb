"""What admission and the sums cost when `arkvory_uploads` has a thousand rows, a million, and ten million."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import client
from bench.report import Bar, Section, Table, median, percentile

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from app.http.parts import Parts
    from app.upload.sessions import Address

MOST_TIMES = 1.5
KEY = "user:1"
# Of one user, beside the bound of a thousand.
OPEN_IN_PARTS = 800
REPOSITORIES = 100
WARM_UP = 20

CREATING, PARTS, CHUNK = "creating an upload", "beginning an upload in parts", "a chunk of a container upload"
CHECK, USAGE = "the quota check", "the usage summary"

TEXT = """Databases of one embedded PostgreSQL, each with {repositories} repositories and their counters, with {sizes} rows in
`arkvory_uploads` (90 % published, 5 % garbage, the rest released and open), all vacuumed and analysed. The core is called directly, as the
owner of the storage, with a quota on every repository and a capacity of the server set, so that every counter is read: `Admission.open`;
the same for an upload in parts, of a user who has {parts} of them open; a chunk as a request holds the upload, has it grow, and lets go of
it (without its bytes); the check of all quotas that runs each minute; a repository's usage summary. {calls} calls of each to each database
in turn. The new rows are deleted, and the tables vacuumed, between the rounds. Committing waits for the disk and could hide a cost, so
everything is measured again with `synchronous_commit = off`, and the bars apply to the worst ratio."""


@dataclass
class Found:
    """Milliseconds of each call, by operation and number of rows; `plans` are of the largest database, by operation."""

    durable: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    volatile: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    plans: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


def run(folder: Path, quick: bool) -> Section:
    sizes = (1_000, 100_000) if quick else (1_000, 1_000_000, 10_000_000)
    rounds, calls = (2, 50) if quick else (4, 100)
    with client.workers() as pool:
        found = pool.submit(_measure, folder / "admission", sizes, rounds, calls).result()
    return _section(found, sizes, rounds * calls)


def _section(found: Found, sizes: Sequence[int], calls: int) -> Section:
    few, *more = sizes
    columns = ["median, ms", *(f"{size:,} rows" for size in sizes), *(f"{size:,} beside {few:,}" for size in more)]
    tables = Table(columns)
    bars = []
    for operation in OPERATIONS:
        worst = dict.fromkeys(more, 0.0)
        for how, times in (("", found.durable), (", `synchronous_commit = off`", found.volatile)):
            medians = {size: median(times[operation, size]) for size in sizes}
            ratios = {size: medians[size] / medians[few] for size in more}
            worst = {size: max(worst[size], ratios[size]) for size in more}
            row = [operation + how, *(f"{each:.3f}" for each in medians.values()), *(f"{each:.2f}" for each in ratios.values())]
            tables.rows.append(row)
        bars += [_bar(operation, few, size, worst[size]) for size in more]
    ends = Table(("99th percentile, ms", *(f"{size:,} rows" for size in sizes)))
    for operation in OPERATIONS:
        ends.rows.append((operation, *(f"{percentile(found.durable[operation, size], 0.99):.2f}" for size in sizes)))
    text = TEXT.format(repositories=REPOSITORIES, parts=OPEN_IN_PARTS, sizes=" and ".join(f"{size:,}" for size in sizes), calls=calls)
    listings = [(f"The plans of {operation}, with {sizes[-1]:,} rows:", _listed(plans)) for operation, plans in found.plans.items()]
    return Section("Uploads beside millions of rows", text, bars, [tables, ends], listings)


def _bar(operation: str, few: int, size: int, ratio: float) -> Bar:
    promise = f"{operation} with {size:,} rows in `arkvory_uploads`, beside {few:,}"
    return Bar(promise, f"at most {MOST_TIMES} times", f"{ratio:.2f}", ratio <= MOST_TIMES)


def _listed(plans: Sequence[tuple[str, str]]) -> str:
    return "\n\n".join(f"{statement}\n{plan}" for statement, plan in plans)


# In a process of its own, patched as the server's is


def _measure(folder: Path, sizes: Sequence[int], rounds: int, calls: int) -> Found:
    from gevent import monkey

    monkey.patch_all()
    from app.database import embedded
    from app.database.pools import patch_for_gevent
    from config.settings import Settings

    patch_for_gevent()
    with embedded.start(Settings.from_environment({"ARKVORY_DATA_DIR": str(folder / "data")})) as postgres:
        sides = {rows: _Side(folder, postgres.url, rows) for rows in sizes}
        every = [(operation, rows) for operation in OPERATIONS for rows in sides]
        try:
            found = Found({each: [] for each in every}, {each: [] for each in every})
            for times, commit in ((found.durable, "on"), (found.volatile, "off")):
                for side in sides.values():
                    side.restart(commit)
                for _ in range(rounds):
                    _round(sides, times, calls)
            found.plans = {operation: sides[sizes[-1]].plans(operation) for operation in OPERATIONS}
            return found
        finally:
            for side in sides.values():
                side.close()


def _round(sides: dict[int, _Side], times: dict[tuple[str, int], list[float]], calls: int) -> None:
    for side in sides.values():
        side.tidy()
        for operation in OPERATIONS.values():
            for _ in range(WARM_UP):
                operation(side)
    for name, operation in OPERATIONS.items():
        for _ in range(calls):
            for rows, side in sides.items():
                began = time.perf_counter()
                operation(side)
                times[name, rows].append((time.perf_counter() - began) * 1000)


class _Side:
    """One database with its rows, and the parts of an application that owns it."""

    def __init__(self, folder: Path, url: str, rows: int) -> None:
        from sqlalchemy import make_url

        from app.database import migrate

        self._admin_url, self._name = url, f"rows_{rows}"
        self._folder = folder / self._name
        self._execute(f"create database {self._name}", url)
        self.url = make_url(url).set(database=self._name).render_as_string(hide_password=False)
        migrate.upgrade(self.url)
        self._fill(rows)
        self._house: Parts | None = None
        self._address: Address | None = None
        self._repository = 1

    def _fill(self, rows: int) -> None:
        from app.database.pools import without_limit

        self._execute(_REPOSITORIES.format(count=REPOSITORIES))
        with without_limit():
            # The indexes are made behind the rows: ten million random keys would take minutes to put in.
            self._execute(_WITHOUT_INDEXES)
            self._execute(_UPLOADS.format(rows=rows, repositories=REPOSITORIES))
            self._execute(_WITH_INDEXES)
            self._execute("vacuum analyze")

    def restart(self, synchronous_commit: str) -> None:
        """Fresh connections, which commit in that way."""
        from app.http.parts import build_parts
        from config.settings import Settings

        self.close()
        self._execute(f"alter database {self._name} set synchronous_commit = {synchronous_commit}", self._admin_url)
        environment = {"ARKVORY_DATA_DIR": str(self._folder), "ARKVORY_DATABASE_URL": self.url, "ARKVORY_CAPACITY_BYTES": "1000T"}
        self._house = build_parts(Settings.from_environment(environment))
        self._house.ownership.acquire(5.0)

    @property
    def house(self) -> Parts:
        assert self._house is not None
        return self._house

    def _next(self) -> int:
        """Each repository in turn."""
        self._repository = self._repository % REPOSITORIES + 1
        return self._repository

    def create(self) -> None:
        reservation = self.house.admission.open(self._next(), 1000, KEY)
        self.house.admission.forget(reservation.id)

    def begin_in_parts(self) -> None:
        """Without what is told of it beside its row of `arkvory_uploads`."""
        self.house.admission.open_parts(self._next(), 1000, KEY, lambda _transaction, _id: ("path", KEY))

    def chunk(self) -> None:
        """Of the one upload that a client goes on with."""
        from app.upload.sessions import Address

        sessions = self.house.sessions
        if self._address is None:
            self._address = Address(1, "image", KEY, sessions.begin(1, "image", KEY, KEY))
        held = sessions.hold(self._address)
        try:
            self.house.admission.grow(held.reservation, held.reservation.reserved + 1, exactly=True)
        finally:
            held.incoming.close()
            sessions.pause(held.reservation, held.progress)

    def check(self) -> None:
        self.house.quotas.check()

    def usage(self) -> None:
        from app.access.identity import LOCAL, Caller

        self.house.listing.usage(Caller(LOCAL, "127.0.0.1"), f"repository-{self._next()}")

    def tidy(self) -> None:
        """As many rows as at the beginning, and no dead ones."""
        self._execute(f"delete from arkvory_uploads where key = '{KEY}'")
        self._address = None
        self._execute(_IN_PARTS.format(count=OPEN_IN_PARTS, repositories=REPOSITORIES, key=KEY))
        self._execute("vacuum arkvory_uploads, arkvory_upload_bytes")

    def plans(self, operation: str) -> list[tuple[str, str]]:
        """Each statement of it with its plan."""
        from sqlalchemy import event

        seen: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            seen.append((statement, parameters))

        engine = self.house.database.request.engine
        event.listen(engine, "after_cursor_execute", note)
        OPERATIONS[operation](self)
        event.remove(engine, "after_cursor_execute", note)
        with engine.connect() as connection:
            return [(statement, _plan(connection, statement, parameters)) for statement, parameters in seen if _has_plan(statement)]

    def close(self) -> None:
        if self._house is not None:
            self._house.ownership.release()
            self._house.database.dispose()
            self._house = None

    def _execute(self, statement: str, url: str | None = None) -> None:
        from tests.support.database import execute

        execute(url or self.url, statement)


OPERATIONS: dict[str, Callable[[_Side], None]] = {
    CREATING: _Side.create, PARTS: _Side.begin_in_parts, CHUNK: _Side.chunk, CHECK: _Side.check, USAGE: _Side.usage
}  # fmt: skip


def _has_plan(statement: str) -> bool:
    return statement.split(None, 1)[0] in {"select", "insert", "update", "delete", "with"}


def _plan(connection: Connection, statement: str, parameters: Any) -> str:
    """Taken while the statement really runs (with its triggers), and undone."""
    if statement.startswith("insert into arkvory_uploads "):
        parameters = parameters | {"ids": ["00000000-0000-4000-8000-000000000000"]}
    try:
        lines = connection.exec_driver_sql(f"explain (analyze, costs off, timing off, summary off, buffers off) {statement}", parameters)
        return "\n".join(f"    {line}" for (line,) in lines)
    finally:
        connection.rollback()


_REPOSITORIES = """
insert into arkvory_repositories (tenant, name, format, kind, quota_bytes)
select 'default', 'repository-' || n, 'raw', 'hosted', 1000000000000000 from generate_series(1, {count}) n
"""

_WITHOUT_INDEXES = """
create table bench_indexes as select indexdef from pg_indexes where tablename = 'arkvory_uploads' and indexname <> 'pk_arkvory_uploads';
do $$ declare one text; begin
  for one in select indexname from pg_indexes where tablename = 'arkvory_uploads' and indexname <> 'pk_arkvory_uploads' loop
    execute format('drop index %I', one);
  end loop;
end $$;
alter table arkvory_uploads drop constraint pk_arkvory_uploads
"""

_WITH_INDEXES = """
alter table arkvory_uploads add constraint pk_arkvory_uploads primary key (id);
do $$ declare one text; begin
  for one in select indexdef from bench_indexes loop
    execute one;
  end loop;
end $$;
drop table bench_indexes
"""

_IN_PARTS = """
insert into arkvory_uploads (id, repository_id, status, bytes, key, lease_until, target, owner, received)
select gen_random_uuid(), 1 + n % {repositories}, 'open', 1000, '{key}', now() + interval '1 hour', 'path', '{key}', 0
from generate_series(1, {count}) n
"""

_UPLOADS = """
insert into arkvory_uploads (id, repository_id, status, bytes, key, changed_at, lease_until, target, owner, received)
select gen_random_uuid(), 1 + n % {repositories},
       case when n % 1000 = 0 then 'open' when n % 20 = 1 then 'garbage' when n % 20 = 2 then 'released' else 'published' end,
       10000 + n % 1000, 'user:2', now() - n * interval '1 second', case when n % 1000 = 0 then now() + interval '1 hour' end,
       case when n % 1000 = 0 then 'path' end, case when n % 1000 = 0 then 'user:' || 2 + n / 1000 % 50 end,
       case when n % 1000 = 0 then 0 end
from generate_series(1, {rows}) n
"""
