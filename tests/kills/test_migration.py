"""`arkvory db upgrade` ended at each statement of each migration, or its database (W1; docs/kills.md)."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gevent
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

import migrations
from app.database import embedded, migrate
from tests.conftest import NewDatabase
from tests.support import kills_page
from tests.support.database import start, take_down
from tests.support.migrations_check import differences
from tests.support.proxy import Wire
from tests.support.server import ROOT

Blow = Callable[[int], None]
KINDS = ("statement", "revision", "commit")
FIRST = "0001"
# What says how the tables are: columns, indexes, constraints, functions, triggers, views.
SHAPE = """
select table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || coalesce(column_default, '')
from information_schema.columns where table_schema = 'public'
union all select indexdef from pg_indexes where schemaname = 'public'
union all select conrelid::regclass || ' ' || pg_get_constraintdef(oid) from pg_constraint where connamespace = 'public'::regnamespace
union all select proname || prosrc from pg_proc where pronamespace = 'public'::regnamespace
union all select tgrelid::regclass || tgname from pg_trigger where not tgisinternal
union all select viewname || definition from pg_views where schemaname = 'public'
"""
UPLOADS = "insert into arkvory_uploads (id, repository_id, status, bytes) values (cast(:id as uuid), :repository, :status, :bytes)"
NOT_AS_COUNTED = """
select 1 from (select repository_id, status, sum(bytes) as bytes from arkvory_uploads where status <> 'released' group by 1, 2) s
full join arkvory_upload_bytes c using (repository_id, status) where s.bytes is distinct from c.bytes
"""


@dataclass(frozen=True)
class Step:
    """A place to stop at; the database stands at `former` until `revision` is through."""

    name: str
    former: str | None
    revision: str

    @property
    def kind(self) -> str:
        return self.name.partition(": ")[2].split()[0]


@dataclass
class Ended:
    """How an upgrade ended, and what it said."""

    code: int
    log: str


class Upgrader:
    """Starts upgrades of one database, one after the other."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.through = url
        self._file = folder / "upgrade"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.upgrader"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)

    def run(self, stop: str | None = None, blow: Blow = lambda pid: None) -> Ended:
        """To the end, or to that step, then `blow` with its process id, and on from there."""
        for ending in ("steps", "there", "go", "log"):
            self._file.with_suffix(f".{ending}").unlink(missing_ok=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"url": self.through, "file": str(self._file), "stop": stop}) + "\n")
        self._process.stdin.flush()
        pid = int(self._answer())
        if stop is not None:
            self._wait_until_there(stop)
            blow(pid)
            self._file.with_suffix(".go").touch()
        code = int(self._answer())
        return Ended(code, self._file.with_suffix(".log").read_text())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        # In a thread: a wire of this process may have to forward what the upgrade sends.
        return str(gevent.get_hub().threadpool.apply(self._process.stdout.readline))

    def _wait_until_there(self, stop: str) -> None:
        with gevent.Timeout(60, AssertionError(f"nobody came to: {stop}")):
            while not self._file.with_suffix(".there").exists():
                gevent.sleep(0.003)

    def steps(self) -> list[str]:
        return self._file.with_suffix(".steps").read_text().splitlines()

    # -- looking

    def rows(self, statement: str, **values: object) -> list[tuple[object, ...]]:
        with create_engine(self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
            result = connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    def revision(self) -> str | None:
        if self.rows("select to_regclass('alembic_version')") == [(None,)]:
            return None
        found = self.rows("select version_num from alembic_version")
        return str(found[0][0]) if found else None

    def shape(self) -> frozenset[object]:
        return frozenset(row[0] for row in self.rows(SHAPE) if "alembic_version" not in str(row[0]))

    def add_uploads(self) -> None:
        for number, status in enumerate(("open", "published", "garbage", "released")):
            self.rows(UPLOADS, id=str(uuid.uuid4()), repository=number % 2, status=status, bytes=10 + number)


@dataclass
class Known:
    """All steps in their order, and the shape of the tables at each revision."""

    steps: list[Step]
    shapes: dict[str | None, frozenset[object]]

    @property
    def head(self) -> str:
        return self.steps[-1].revision

    def chosen(self, *kinds: str) -> list[Step]:
        """All of the newest migration, of the others the last of these kinds."""
        last = {(step.revision, step.kind): step for step in self.steps}
        return [step for step in self.steps if step.revision == self.head or (step.kind in kinds and step in last.values())]


def revisions() -> list[str]:
    script = ScriptDirectory(str(Path(migrations.__file__).parent))
    return [each.revision for each in reversed(list(script.walk_revisions()))]


@pytest.fixture(scope="module")
def known(new_database: NewDatabase, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """From upgrades that nobody disturbs: one at once, one revision by revision."""
    upgrader = Upgrader(tmp_path_factory.mktemp("known"), new_database(None))
    assert upgrader.run().code == 0
    steps = upgrader.steps()
    upgrader.close()
    upgrader.url = new_database(None)
    shapes = {None: upgrader.shape()}
    for revision in revisions():
        migrate.upgrade(upgrader.url, revision)
        shapes[revision] = upgrader.shape()
    formers = dict(zip(revisions(), [None, *revisions()], strict=False))
    return Known([Step(each, formers[each[:4]], each[:4]) for each in steps], shapes)


@contextlib.contextmanager
def upgrading(folder: Path, url: str) -> Iterator[Upgrader]:
    upgrader = Upgrader(folder, url)
    try:
        yield upgrader
    finally:
        upgrader.close()


def strike(upgrader: Upgrader, known: Known, step: Step, blow: Blow) -> str:
    """A cell of the page: how the command ends, and where the tables stand, which is before or after a migration and never in between."""
    ended = upgrader.run(step.name, blow)
    now = upgrader.revision()
    assert upgrader.shape() == known.shapes[now], f"{step.name}: the tables are not those of {now}"
    if now == FIRST and not upgrader.rows("select 1 from arkvory_uploads limit 1"):
        upgrader.add_uploads()
    assert ended.code in {-signal.SIGKILL, 1}, ended.log
    if ended.code == 1:
        assert ended.log.startswith("arkvory: "), ended.log
    return f"{'breaks' if ended.code < 0 else 'fails'}, {({step.former: 'before', step.revision: 'after'})[now]}"


def assert_goes_on(upgrader: Upgrader, known: Known) -> None:
    """The same command once more does the rest, and once more does nothing (W4); what was there is there, and counted."""
    ended = upgrader.run()
    assert ended.code == 0, ended.log
    assert upgrader.run().log == f"The tables are at {known.head}.\n"
    assert upgrader.shape() == known.shapes[known.head]
    assert differences(upgrader.url) == []
    assert len(upgrader.rows("select 1 from arkvory_uploads")) == 4
    assert not upgrader.rows(NOT_AS_COUNTED)


def check_page(column: str, cells: dict[Step, str]) -> None:
    kinds = {kind: sorted({cell for step, cell in cells.items() if step.kind == kind}) for kind in KINDS}
    kills_page.check("Migration", list(KINDS), column, {kind: " or ".join(found) for kind, found in kinds.items() if found})


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["newest", "every"])
def test_w1_w4_the_process_killed_at_each_statement(known: Known, new_database: NewDatabase, tmp_path: Path, every: bool) -> None:
    """Of the newest migration; of the others at the last one, at that of the revision and at the COMMIT, in a long run at each."""
    steps = known.steps if every else known.chosen(*KINDS)
    with upgrading(tmp_path, new_database(None)) as upgrader:
        cells = {step: strike(upgrader, known, step, lambda pid: os.kill(pid, signal.SIGKILL)) for step in steps}
        assert_goes_on(upgrader, known)
    check_page("process killed", cells)


@pytest.mark.soak
def test_w1_w4_postgresql_killed_at_each_migration(
    known: Known, private_postgres: embedded.EmbeddedPostgres, tmp_path: Path
) -> None:
    """At its COMMIT, when all is done and nothing is kept yet; once at each kind of step."""
    hows = itertools.cycle((signal.SIGQUIT, signal.SIGKILL))

    def crash(_pid: int) -> None:
        take_down(private_postgres, next(hows))
        start(private_postgres.data)

    steps = [step for step in known.chosen("commit") if step.kind != "statement" or step.name.endswith(" 1")]
    with upgrading(tmp_path, private_postgres.url) as upgrader:
        cells = {step: strike(upgrader, known, step, crash) for step in steps}
        assert_goes_on(upgrader, known)
    check_page("PostgreSQL killed", cells)


@pytest.mark.parametrize(("how", "column"), [("lost", "COMMIT lost"), pytest.param("unheard", "its answer lost", marks=pytest.mark.soak)])
def test_w1_w4_each_commit_lost_and_its_answer_lost(
    known: Known, new_database: NewDatabase, tmp_path: Path, how: str, column: str
) -> None:
    with upgrading(tmp_path, new_database(None)) as upgrader:
        wire = Wire(upgrader.url)
        upgrader.through = wire.url
        commits = [step for step in known.steps if step.kind == "commit"]
        cells = {step: strike(upgrader, known, step, lambda _pid: setattr(wire, "at_commit", how)) for step in commits}
        upgrader.through = upgrader.url
        wire.close()
        assert_goes_on(upgrader, known)
    check_page(column, cells)
