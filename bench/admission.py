"""Creating an upload when `arkvory_uploads` has a thousand rows and when it has a million."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import client
from bench.report import Bar, Section, Table, median, percentile

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from app.http.parts import Parts

MOST_TIMES = 1.5
REPOSITORIES = 100
WARM_UP = 20

TEXT = """Two databases of one embedded PostgreSQL, each with {repositories} repositories and their counters, one with {few:,} rows in
`arkvory_uploads` (90 % published, 5 % garbage, the rest released and open), the other with {many:,}, both vacuumed and analysed.
`Admission.open` is called directly, as the owner of the storage, with a quota on the repository and a capacity of the server set, so that
every counter is read; {calls} calls to each database, one here, one there. The new rows are deleted, and the tables vacuumed, between the
rounds. Committing waits for the disk and could hide a cost, so everything is measured again with `synchronous_commit = off`, and the bar
applies to the worse of the two."""


@dataclass
class Found:
    """Milliseconds of each call, by number of rows; `plans` are of the larger database."""

    durable: dict[int, list[float]] = field(default_factory=dict)
    volatile: dict[int, list[float]] = field(default_factory=dict)
    plans: list[tuple[str, str]] = field(default_factory=list)


def run(folder: Path, quick: bool) -> Section:
    few, many = (1_000, 100_000) if quick else (1_000, 1_000_000)
    rounds, calls = (2, 100) if quick else (5, 200)
    with client.workers() as pool:
        found = pool.submit(_measure, folder / "admission", few, many, rounds, calls).result()
    return _section(found, few, many, rounds * calls)


def _section(found: Found, few: int, many: int, calls: int) -> Section:
    table = Table(("creating an upload, ms", f"{few:,} rows", f"{many:,} rows", "ratio of medians", "99th percentiles"))
    ratios = []
    for name, times in (("as it is", found.durable), ("`synchronous_commit = off`", found.volatile)):
        ratios.append(median(times[many]) / median(times[few]))
        ends = f"{percentile(times[few], 0.99):.2f}, {percentile(times[many], 0.99):.2f}"
        table.rows.append((name, f"{median(times[few]):.3f}", f"{median(times[many]):.3f}", f"{ratios[-1]:.2f}", ends))
    promise = f"creating an upload with {many:,} rows in `arkvory_uploads`, beside {few:,}"
    bar = Bar(promise, f"at most {MOST_TIMES} times", f"{max(ratios):.2f}", max(ratios) <= MOST_TIMES)
    plans = "\n\n".join(f"{statement}\n{plan}" for statement, plan in found.plans)
    text = TEXT.format(repositories=REPOSITORIES, few=few, many=many, calls=calls)
    return Section("Creating an upload", text, [bar], [table], [(f"The plans of its statements, with {many:,} rows:", plans)])


# In a process of its own, patched as the server's is


def _measure(folder: Path, few: int, many: int, rounds: int, calls: int) -> Found:
    from gevent import monkey

    monkey.patch_all()
    from app.database import embedded
    from app.database.pools import patch_for_gevent
    from config.settings import Settings

    patch_for_gevent()
    with embedded.start(Settings.from_environment({"ARKVORY_DATA_DIR": str(folder / "data")})) as postgres:
        sides = {rows: _Side(folder, postgres.url, rows) for rows in (few, many)}
        try:
            found = Found({rows: [] for rows in sides}, {rows: [] for rows in sides})
            for times, commit in ((found.durable, "on"), (found.volatile, "off")):
                for side in sides.values():
                    side.restart(commit)
                for _ in range(rounds):
                    _round(sides, times, calls)
            found.plans = sides[many].plans()
            return found
        finally:
            for side in sides.values():
                side.close()


def _round(sides: dict[int, _Side], times: dict[int, list[float]], calls: int) -> None:
    for side in sides.values():
        side.tidy()
        for _ in range(WARM_UP):
            side.open()
    for _ in range(calls):
        for rows, side in sides.items():
            times[rows].append(side.open() * 1000)


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
        self._repository = 1

    def _fill(self, rows: int) -> None:
        self._execute(_REPOSITORIES.format(count=REPOSITORIES))
        self._execute(_UPLOADS.format(rows=rows, repositories=REPOSITORIES))
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

    def open(self) -> float:
        """Create an upload; seconds."""
        self._repository = self._repository % REPOSITORIES + 1
        began = time.perf_counter()
        reservation = self.house.admission.open(self._repository, 1000, "user:1")
        taken = time.perf_counter() - began
        self.house.admission.forget(reservation.id)
        return taken

    def tidy(self) -> None:
        """As many rows as at the beginning, and no dead ones."""
        self._execute("delete from arkvory_uploads where key = 'user:1'")
        self._execute("vacuum arkvory_uploads, arkvory_upload_bytes")

    def plans(self) -> list[tuple[str, str]]:
        """Each statement of `open` with its plan."""
        from sqlalchemy import event

        seen: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            seen.append((statement, parameters))

        engine = self.house.database.request.engine
        event.listen(engine, "after_cursor_execute", note)
        self.open()
        event.remove(engine, "after_cursor_execute", note)
        with engine.connect() as connection:
            return [(statement, _plan(connection, statement, parameters)) for statement, parameters in seen]

    def close(self) -> None:
        if self._house is not None:
            self._house.ownership.release()
            self._house.database.dispose()
            self._house = None

    def _execute(self, statement: str, url: str | None = None) -> None:
        from tests.support.database import execute

        execute(url or self.url, statement)


def _plan(connection: Connection, statement: str, parameters: Any) -> str:
    """Taken while the statement really runs (with its triggers), and undone."""
    if isinstance(parameters, dict) and "ids" in parameters and statement.startswith("insert"):
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

_UPLOADS = """
insert into arkvory_uploads (id, repository_id, status, bytes, key, changed_at, lease_until)
select gen_random_uuid(), 1 + n % {repositories},
       case when n % 1000 = 0 then 'open' when n % 20 = 1 then 'garbage' when n % 20 = 2 then 'released' else 'published' end,
       10000 + n % 1000, 'user:2', now() - n * interval '1 second', case when n % 1000 = 0 then now() + interval '1 hour' end
from generate_series(1, {rows}) n
"""
