"""PgBouncer in transaction mode under the request pool; under the session pool it is refused (DESIGN 2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import gevent
import pytest
import sqlalchemy
from gevent.pool import Pool
from sqlalchemy import text
from sqlalchemy.pool import NullPool

from app.database import migrate
from app.database.sessions import require_sessions
from app.errors import Unavailable
from tests.conftest import MakeCluster, MakeHouse, MakeServer
from tests.support import clients
from tests.support.house import House, eventually
from tests.support.pgbouncer import PgBouncer
from tests.support.upstreams import FakeUpstream

MakePooler = Callable[..., PgBouncer]


@pytest.fixture
def make_pooler(database_url: str) -> Iterator[MakePooler]:
    clients.require_packages("pgbouncer")
    made: list[PgBouncer] = []

    def make(**changes: str) -> PgBouncer:
        made.append(PgBouncer(database_url, **changes))
        return made[-1].start()

    yield make
    for each in made:
        each.stop()


def try_sessions(url: str) -> None:
    require_sessions(sqlalchemy.create_engine(url, poolclass=NullPool))


def traffic(url: str) -> None:
    """Of somebody else through the same pooler, for ever."""
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    while True:
        with engine.connect() as connection:
            for _ in range(50):
                connection.execute(text("select pg_sleep(random() * 0.01)"))
                connection.rollback()


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"default_pool_size": "1"},
        {"server_round_robin": "1"},
        {"server_reset_query_always": "1"},
    ],
    ids=["as documented", "one connection", "round robin", "reset each time"],
)
def test_a_transaction_pooler_under_the_sessions_is_refused(
    make_pooler: MakePooler, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], busy: bool
) -> None:
    """Whoever else uses it, or nobody: also with one client, whose statements all come to the same session of the pooler's."""
    monkeypatch.setattr("app.database.sessions.OVER_SECONDS", 0.3)
    pooler = make_pooler(**settings)
    others = [gevent.spawn(traffic, pooler.url) for _ in range(4 if busy else 0)]
    gevent.sleep(0.3 if busy else 0)
    try:
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"transaction pooler .*: set ARKVORY_DATABASE_SESSION_URL"):
                try_sessions(pooler.url)
        # Nothing that a pooler would keep for ever was taken.
        with pytest.raises(Unavailable, match="transaction pooler"):
            migrate.upgrade(pooler.url)
    finally:
        gevent.killall(others)


def test_a_direct_address_and_a_session_pooler_are_taken(make_pooler: MakePooler, database_url: str) -> None:
    try_sessions(database_url)
    try_sessions(make_pooler(pool_mode="session").url)


@pytest.fixture
def make_pooled_house(make_pooler: MakePooler, make_house: MakeHouse, database_url: str) -> Callable[..., House]:
    def make(pooler: PgBouncer, **environment: str) -> House:
        return make_house(ARKVORY_DATABASE_URL=pooler.url, ARKVORY_DATABASE_SESSION_URL=database_url, **environment)

    return make


# Two sessions of the pooler's for twelve connections of ours: what one leaves in them, the next would find.
TIGHT = {"default_pool_size": "2"}


def test_writers_and_readers_share_the_poolers_sessions_and_leave_nothing_in_them(
    make_pooler: MakePooler, make_pooled_house: Callable[..., House]
) -> None:
    """Locks are those of transactions, limits too; isolation and read-only are said with each BEGIN."""
    house = make_pooled_house(make_pooler(**TIGHT))
    house.repository("files", public=True)
    before = house.epochs()[2]

    def work(number: int) -> None:
        for turn in range(4):
            house.publish(f"{number}/{turn}", b"%d %d" % (number, turn))
            with house.parts.database.consistent() as connection:
                assert connection.execute(text("select current_setting('transaction_isolation')")).scalar() == "repeatable read"
                gevent.sleep(0)
                assert connection.execute(text("select current_setting('transaction_read_only')")).scalar() == "on"
            assert house.read(f"{number}/{turn}") == b"%d %d" % (number, turn)

    gevent.joinall([gevent.spawn(work, number) for number in range(6)], raise_error=True)
    assert house.epochs()[2] == before + 24
    house.delete("0/0")
    house.clean()
    house.assert_counted()
    assert house.value("select count(*) from pg_locks where locktype = 'advisory' and classid = 18472") == 0
    with house.parts.database.read() as connection:
        told = {row[0]: row[1] for row in connection.execute(text("select name, setting from pg_settings where source = 'session'"))}
    # The query of the configuration says these, the pooler itself the rest; nothing is a client's.
    assert (told.pop("idle_in_transaction_session_timeout"), told.pop("statement_timeout")) == ("60000", "31000")
    assert told.pop("client_connection_check_interval") == "2000"
    assert told.keys() <= {"application_name", "client_encoding", "DateStyle", "standard_conforming_strings", "TimeZone"}


# Whole servers


def test_a_cluster_works_through_the_pooler(
    make_pooler: MakePooler, make_cluster: MakeCluster, database_url: str, upstream: FakeUpstream
) -> None:
    """Publish, read, rights and their withdrawal from one server to the other, fetches by a proxy; no error in any log."""
    through = make_pooler(**TIGHT)
    first, second = make_cluster(masters=2, workers=1, database_url=through.url, ARKVORY_DATABASE_SESSION_URL=database_url)
    first.repository("files", public=True)
    upstream.put("/x", b"from afar", etag='"1"')
    proxy = {"kind": "proxy", "upstream_url": upstream.url, "public": True}
    first.repository("far", **proxy)
    for number in range(5):
        assert first.put(f"/raw/files/{number}", b"%d" % number).status_code == 201
        assert second.get(f"/raw/files/{number}", auth=None).content == b"%d" % number
    together = Pool(12)
    puts = [together.spawn(server.put, f"/raw/files/many/{number}", b"%d" % number) for number in range(12) for server in (first, second)]
    gevent.joinall(puts, timeout=60, raise_error=True)
    assert {each.value.status_code for each in puts} == {201, 204}
    assert second.get("/raw/files/many/7").content == first.get("/raw/files/many/7").content == b"7"
    assert (first.get("/raw/far/x", auth=None).content, second.get("/raw/far/x", auth=None).content) == (b"from afar", b"from afar")
    assert second.patch("/api/v1/repositories/files", json={"public": False}).status_code == 200
    eventually(lambda: first.get("/raw/files/0", auth=None).status_code == 401)
    assert first.delete("/raw/files/1").status_code in (200, 204)
    eventually(lambda: second.get("/raw/files/1").status_code == 404)
    for server in (first, second):
        assert server.get("/health/ready", auth=None).ok
        assert server.get("/metrics", auth=None).text.count("arkvory_cache_probe_corrections_total 0.0") == 1
        assert not re.search("Traceback|ERROR|failed", server.log()), server.log()


def test_a_server_whose_sessions_go_through_the_pooler_does_not_start(make_pooler: MakePooler, make_server: MakeServer) -> None:
    server = make_server(start=False, ARKVORY_DATABASE_URL=make_pooler().url)
    server.start(ready=False)
    assert server.process is not None
    assert server.process.wait(60) != 0
    assert re.search("cannot start: the address for sessions .* set ARKVORY_DATABASE_SESSION_URL to the address", server.log())


def test_a_pooler_that_does_not_take_what_is_said_at_the_start_ends_it_with_its_own_words(
    make_pooler: MakePooler, make_server: MakeServer, database_url: str
) -> None:
    through = make_pooler(ignore_startup_parameters="extra_float_digits")
    server = make_server(start=False, ARKVORY_DATABASE_URL=through.url, ARKVORY_DATABASE_SESSION_URL=database_url)
    server.start(ready=False)
    assert server.process is not None
    assert server.process.wait(60) != 0
    assert re.search("cannot start: .*unsupported startup parameter: options", server.log())
