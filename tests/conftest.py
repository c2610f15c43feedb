"""What tests are given: databases on one real PostgreSQL, and whole servers.

    postgres             the PostgreSQL of the test run (EmbeddedPostgres)
    database_url         a fresh, migrated database, for the test alone
    empty_database_url   the same without tables
    private_postgres     a PostgreSQL that the test may stop and kill (tests.support.database)
    house                the core of one process over a database of its own, without HTTP (tests.support.house.House)
    make_house           more of them: make_house(owns=False) is a second process over the same database and folder
    passing              time that passes when the test lets it: passing.let(60) (tests.support.passing.Passing)
    pause                stops whoever calls a function: pause(house.parts.blobs, "place") (tests.support.pauses.Pause)
    server               a whole Arkvory for the tests of one file (tests.support.server.Server)
    make_server          makes one for this test: make_server(ARKVORY_MAX_UPLOADS="2"), make_server(embedded=True)
    upstream             what a proxy fetches from, and does what the test says (tests.support.upstreams.FakeUpstream)
    make_cluster         several gunicorn masters over one database and folder: make_cluster(masters=2, workers=2)
"""

# ruff: noqa: E402  # the patches come first
from __future__ import annotations

from gevent import monkey

# Tests run as the server does: what waits lets other greenlets run. Programs are waited for in threads, which gevent's own cannot.
monkey.patch_all(subprocess=False, os=False, signal=False)

import contextlib
import gc
import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import ProgrammingError

from app.database import embedded, migrate, pools
from tests.support.database import administration, run, start, take_down
from tests.support.house import House
from tests.support.memory import folder_in_memory
from tests.support.passing import Passing
from tests.support.pauses import Pause
from tests.support.proxy import Wire
from tests.support.server import Cluster, Server
from tests.support.upstreams import FakeUpstream

pools.patch_for_gevent()

TEMPLATE = "arkvory_template"
NewDatabase = Callable[[str | None], str]
MakeServer = Callable[..., Server]
MakeCluster = Callable[..., Cluster]
MakeHouse = Callable[..., House]
MakePause = Callable[..., Pause]

# Long runs look at more of them (`make soak`). How long anything takes is the machine's affair.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("arkvory", deadline=None, max_examples=40, suppress_health_check=SLOW)
hypothesis.settings.load_profile("arkvory")


@contextlib.contextmanager
def postgres_of_its_own() -> Iterator[embedded.EmbeddedPostgres]:
    """In memory where that can be: what is killed here are processes, and what they have written outlives them there too."""
    folder = Path(tempfile.mkdtemp(prefix="arkvory-tests-", dir=folder_in_memory()))
    # open to be passed through, so that root's PostgreSQL needs no capability
    folder.chmod(0o711)
    try:
        running = start(folder / "data")
        yield running
        running.leave()
        # whoever brought it back in a test holds a share of it
        if running.pid is not None:
            take_down(running)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[embedded.EmbeddedPostgres]:
    """For all tests that do not stop it. Nothing here need outlive the machine: in memory, or at least without fsync."""
    with postgres_of_its_own() as running:
        assert running.pid is not None
        with (running.data / "postgres" / "postgresql.auto.conf").open("a") as settings:
            settings.write("fsync = off\nfull_page_writes = off\n")
        os.kill(running.pid, signal.SIGHUP)
        yield running
        administration(running.url).dispose()


@pytest.fixture
def private_postgres() -> Iterator[embedded.EmbeddedPostgres]:
    with postgres_of_its_own() as running:
        yield running


@pytest.fixture(scope="session")
def new_database(postgres: embedded.EmbeddedPostgres) -> NewDatabase:
    """Makes databases that last as long as the test run, as copies of a template (or empty, from None)."""
    numbers = itertools.count(1)

    def make(template: str | None) -> str:
        name = f"test_{next(numbers)}"
        run(administration(postgres.url), f"create database {name} template {template or 'template1'} strategy file_copy")
        return make_url(postgres.url).set(database=name).render_as_string(hide_password=False)

    return make


@pytest.fixture(scope="session")
def template(postgres: embedded.EmbeddedPostgres) -> str:
    """Name of a database with Arkvory's tables and no rows, migrated once."""
    run(administration(postgres.url), f"create database {TEMPLATE}")
    migrate.upgrade(make_url(postgres.url).set(database=TEMPLATE).render_as_string(hide_password=False))
    return TEMPLATE


def drop(postgres: embedded.EmbeddedPostgres, url: str) -> None:
    """Again when an autovacuum worker is at it, which only a superuser may end."""
    for last in (*[False] * 9, True):
        try:
            run(administration(postgres.url), f"drop database if exists {make_url(url).database} with (force)")
            return
        except ProgrammingError:
            if last:
                raise
            time.sleep(1)


@pytest.fixture
def database_url(postgres: embedded.EmbeddedPostgres, new_database: NewDatabase, template: str) -> Iterator[str]:
    url = new_database(template)
    yield url
    drop(postgres, url)


@pytest.fixture
def empty_database_url(postgres: embedded.EmbeddedPostgres, new_database: NewDatabase) -> Iterator[str]:
    url = new_database(None)
    yield url
    drop(postgres, url)


@pytest.fixture
def make_house(database_url: str, tmp_path: Path) -> Iterator[MakeHouse]:
    made: list[House] = []

    def make(*, owns: bool = True, **environment: str) -> House:
        made.append(House(database_url, tmp_path / "data", owns=owns, **environment))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def house(make_house: MakeHouse) -> House:
    return make_house()


@pytest.fixture
def wire(database_url: str) -> Iterator[Wire]:
    """Between a house and its database; it can break."""
    made = Wire(database_url)
    yield made
    made.close()


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Passing:
    return Passing(monkeypatch)


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> MakePause:
    def make(owner: object, name: str, *, before: bool = False) -> Pause:
        made = Pause(getattr(owner, name), before=before)
        monkeypatch.setattr(owner, name, made)
        return made

    return make


@pytest.fixture(scope="module")
def server(
    postgres: embedded.EmbeddedPostgres, new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"), {}, database_url=new_database(template))
    try:
        yield running.start()
    finally:
        running.close()
        drop(postgres, str(running.database_url))


@pytest.fixture
def make_server(
    postgres: embedded.EmbeddedPostgres, new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeServer]:
    made: list[Server] = []
    databases: list[str] = []

    def make(*, embedded: bool = False, start: bool = True, ready: bool = True, **environment: str) -> Server:
        """A server with these variables; `embedded`: with a PostgreSQL of its own; without `start` it is only prepared."""
        url = environment.pop("ARKVORY_DATABASE_URL", None)
        if url is None and not embedded:
            url = new_database(template)
            databases.append(url)
        made.append(Server(tmp_path_factory.mktemp("server"), environment, database_url=url))
        return made[-1].start(ready=ready) if start else made[-1]

    yield make
    for running in made:
        running.close()
    for url in databases:
        drop(postgres, url)


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    running = FakeUpstream().start()
    yield running
    running.stop()


@pytest.fixture
def make_cluster(
    postgres: embedded.EmbeddedPostgres, new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeCluster]:
    made: list[Cluster] = []
    databases: list[str] = []

    def make(masters: int = 2, workers: int = 2, *, start: bool = True, database_url: str | None = None, **environment: str) -> Cluster:
        """Masters `vm1`, `vm2`... with these variables; without `start` they are only prepared."""
        if database_url is None:
            databases.append(new_database(template))
        made.append(Cluster(tmp_path_factory.mktemp("cluster"), database_url or databases[-1], masters, workers, **environment))
        return made[-1].start() if start else made[-1]

    yield make
    for each in made:
        each.close()
    for url in databases:
        drop(postgres, url)


def pytest_collection_finish() -> None:
    """What was collected lasts: not to be looked through again with every test."""
    gc.collect()
    gc.freeze()
