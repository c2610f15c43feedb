"""Pools: what each connection is told, what becomes of one that was interrupted, and the write locks (DESIGN 2)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace

import gevent
import pytest
from sqlalchemy import Connection, text

from app.database import pools, writelocks
from app.database.pools import Pool, destroy
from app.errors import DatabaseAway, LockLost, Unavailable
from app.jobs.lifecycle import Lifecycle
from tests.conftest import MakeHouse
from tests.support.house import House, eventually

LOCKS_OF_OURS = (
    "from pg_locks l where l.locktype = 'advisory' and l.objsubid = 1 and l.granted "
    "and l.database = (select oid from pg_database where datname = current_database())"
)


def locks(house: House) -> int:
    """Write locks that somebody has."""
    return int(house.value(f"select count(*) {LOCKS_OF_OURS}"))


def open_backends(house: House, pids: list[int]) -> int:
    return int(house.value("select count(*) from pg_stat_activity where pid = any(:pids)", pids=pids))


def backend(pool: Pool) -> int:
    with pool.connect() as connection:
        return int(connection.execute(text("select pg_backend_pid()")).scalar_one())


# What each connection is told


@pytest.mark.parametrize("name", ["request", "session", "write-lock"])
def test_a_connection_of_each_pool_is_told_when_it_ends(house: House, name: str) -> None:
    pool = next(each for each in house.parts.database.pools if each.name == name)
    with pool.connect() as connection:
        told = {row.name: row.setting for row in connection.execute(text("select name, setting from pg_settings"))}
        parameters = connection.connection.dbapi_connection.get_dsn_parameters()  # type: ignore[union-attr]  # psycopg2's own
    assert told["idle_in_transaction_session_timeout"] == "60000"
    # It would act on advisory locks too.
    assert told["lock_timeout"] == "0"
    assert told["statement_timeout"] == ("31000" if name == "request" else "0")
    assert parameters["keepalives_idle"] == "10"
    assert "tcp_keepalives_idle=10" in parameters["options"]


class Waiting:
    """Greenlets that want a connection of a pool that has none left, one after the other."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.served: list[int] = []
        self.greenlets: list[gevent.Greenlet] = []

    def come(self, number: int) -> None:
        self.greenlets.append(gevent.spawn(self._want, number))
        gevent.sleep(0)

    def _want(self, number: int) -> None:
        with self._pool.connect():
            self.served.append(number)
            gevent.sleep(0.01)

    def served_all(self) -> list[int]:
        gevent.joinall(self.greenlets, timeout=10)
        return self.served


def test_a_connection_goes_to_who_waited_longest_and_not_to_who_comes_next(make_house: MakeHouse) -> None:
    pool = make_house(ARKVORY_DATABASE_POOL_SIZE="4").parts.database.request
    held = [pool.connect() for _ in range(4)]
    waiting = Waiting(pool)
    for number in range(12):
        waiting.come(number)
    for each in held:
        each.close()
        # Here a moment before the one that it was given to.
        waiting.come(100)
    assert waiting.served_all() == [*range(12), *[100] * 4]


def test_who_stops_waiting_keeps_nothing_of_what_it_was_given(make_house: MakeHouse) -> None:
    pool = make_house(ARKVORY_DATABASE_POOL_SIZE="4").parts.database.request
    held = [pool.connect() for _ in range(4)]
    waiting = Waiting(pool)
    waiting.come(0)
    waiting.come(1)
    waiting.come(2)
    waiting.greenlets[1].kill()
    # It is given one, and ends before it has taken it.
    waiting.greenlets[0].kill(block=False)
    held.pop().close()
    assert waiting.served_all() == [2]
    for each in held:
        each.close()
    assert pool.waiting == 0
    with pool.connect(), pool.connect(), pool.connect(), pool.connect():
        pass


def test_the_request_pool_alone_works_in_transactions(house: House) -> None:
    last_for_a_transaction = {}
    for pool in house.parts.database.pools:
        with pool.connect() as connection:
            connection.execute(text("select set_config('arkvory.test', 'set', true)"))
            last_for_a_transaction[pool.name] = connection.execute(text("select current_setting('arkvory.test', true)")).scalar() == "set"
    assert last_for_a_transaction == {"request": True, "session": False, "write-lock": False}


def test_isolation_costs_no_round_trip_neither_when_it_is_taken_nor_when_it_is_given_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also because SQLAlchemy loses a connection of which that is broken off."""
    waits: list[object] = []
    wait = pools.gevent_wait_callback
    monkeypatch.setattr(pools, "gevent_wait_callback", lambda connection: (waits.append(connection), wait(connection)))
    database = house.parts.database
    shown = text("select current_setting('transaction_isolation') || ' ' || current_setting('transaction_read_only')")

    def ask(kind: Callable[[], AbstractContextManager[Connection]]) -> tuple[str, int]:
        waits.clear()
        with kind() as connection:
            told = str(connection.execute(shown).scalar_one())
        return told, len(waits)

    ask(database.read)
    for _ in range(2):
        assert ask(database.read) == ("read committed off", 1)
        # BEGIN, the statement, ROLLBACK or COMMIT.
        assert ask(database.consistent) == ("repeatable read on", 3)
        assert ask(database.write) == ("read committed off", 3)


def test_pools_open_lazily_and_their_gauges_know_what_was_destroyed(house: House) -> None:
    pool = house.parts.database.write_lock
    assert (pool.connections, pool.idle, pool.waiting) == (0, 0, 0)
    with pool.connect():
        assert (pool.connections, pool.idle) == (1, 0)
    assert (pool.connections, pool.idle) == (1, 1)
    destroy(pool.connect(), "it")
    assert (pool.connections, pool.idle) == (0, 0)


def test_a_statement_that_was_given_up_ends_at_the_server_too(house: House) -> None:
    """It waits for a lock: when it is given up, it must not get that lock, nor do its work, when everybody has gone on."""
    session = house.parts.database.session
    with session.connect() as first:
        first.execute(text("select pg_advisory_lock(99)"))
        second = session.connect()
        pid = int(second.execute(text("select pg_backend_pid()")).scalar_one())
        with pytest.raises(DatabaseAway), gevent.Timeout(0.1, DatabaseAway("given up")):
            second.execute(text("select pg_advisory_lock(99)"))
        destroy(second, "it")
        eventually(lambda: not open_backends(house, [pid]), 30)
        first.execute(text("select pg_advisory_unlock(99)"))


# Write locks


def test_one_at_a_time_has_a_name_to_itself(house: House, make_house: MakeHouse) -> None:
    """The others are told so at once, and get it when the first is done."""
    ours, theirs = house.parts.database.write_lock, make_house(owns=False).parts.database.write_lock
    with ours.hold("mirror/1") as held:
        assert held is not None
        held.require()
        with theirs.hold("mirror/1") as second, theirs.hold("mirror/2") as other:
            assert (second, other is not None) == (None, True)
    with theirs.hold("mirror/1") as second:
        assert second is not None
    assert locks(house) == 0


def test_whoever_waits_gets_it_within_the_wait_and_holds_no_connection_meanwhile(house: House, make_house: MakeHouse) -> None:
    waiting = make_house(owns=False).parts.database.write_lock
    got = gevent.event.Event()

    def wait() -> None:
        with waiting.hold("mirror/1", wait_seconds=20) as held:
            assert held is not None
            got.set()

    with house.parts.database.write_lock.hold("mirror/1"):
        greenlet = gevent.spawn(wait)
        eventually(lambda: (waiting.connections, waiting.idle) == (1, 1))
        assert not got.is_set()
    greenlet.get(timeout=20)


def test_a_connection_that_held_a_lock_is_destroyed_and_one_that_did_not_is_kept(house: House, make_house: MakeHouse) -> None:
    pool, other = house.parts.database.write_lock, make_house(owns=False).parts.database.write_lock
    with pool.hold("mirror/1"):
        with other.hold("mirror/1") as refused:
            assert refused is None
        pids = [row[0] for row in house.rows(f"select l.pid {LOCKS_OF_OURS}")]
        assert len(pids) == 1
    assert (pool.connections, other.connections, other.idle) == (0, 1, 1)
    eventually(lambda: not open_backends(house, pids))


def test_a_lock_goes_with_what_raised_inside_it(house: House) -> None:
    pool = house.parts.database.write_lock
    with pytest.raises(ZeroDivisionError), pool.hold("mirror/1"):
        raise ZeroDivisionError
    working = gevent.spawn(hold_for_ever, pool)
    eventually(lambda: locks(house) == 1)
    working.kill()
    eventually(lambda: locks(house) == 0)
    assert (pool.connections, pool._used) == (0, 0)


def hold_for_ever(pool: writelocks.WriteLocks) -> None:
    with pool.hold("mirror/1"):
        gevent.sleep(3600)


def test_whoever_holds_a_lock_hears_that_its_session_was_lost(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writelocks, "CHECK_SECONDS", 0.1)
    pool = house.parts.database.write_lock
    with pool.hold("mirror/1") as held:
        assert held is not None
        house.rows(f"select pg_terminate_backend(l.pid) {LOCKS_OF_OURS}")
        eventually(lambda: held.lost)
        with pytest.raises(LockLost, match="mirror/1"):
            held.require()
        with pool.hold("mirror/1") as successor:
            assert successor is not None
            successor.require()
    assert (pool.connections, pool._used) == (0, 0)


def test_a_process_that_stood_still_asks_before_it_believes_in_its_lock(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writelocks, "OLDEST_CHECK_SECONDS", -1.0)
    with house.parts.database.write_lock.hold("mirror/1") as held:
        assert held is not None
        held.require()
        house.rows(f"select pg_terminate_backend(l.pid) {LOCKS_OF_OURS}")
        with pytest.raises(LockLost):
            held.require()


def test_a_lock_is_let_go_while_somebody_asks_about_it(house: House) -> None:
    """psycopg2 holds a mutex while a greenlet waits in a connection: closing it from another one would be the end of everything."""
    asking: list[gevent.Greenlet] = []

    def ask(held: writelocks.Held) -> None:
        with held.use() as session:
            session.execute(text("select pg_sleep(1)"))

    with house.parts.database.write_lock.hold("mirror/1") as held:
        assert held is not None
        asking += [gevent.spawn(ask, held) for _ in range(2)]
        eventually(lambda: house.rows("select 1 from pg_stat_activity where query = 'select pg_sleep(1)' and state = 'active'"))
    asking[0].get(timeout=30)
    with pytest.raises(LockLost):
        asking[1].get(timeout=30)


def test_there_are_two_and_one_for_each_mirror_and_the_next_one_waits(house: House, make_house: MakeHouse) -> None:
    pool = make_house(owns=False, ARKVORY_DATABASE_WAIT_SECONDS="0.3").parts.database.write_lock
    assert pool.size == 2
    with pool.hold("a"), pool.hold("b"):
        with pytest.raises(DatabaseAway, match="all 2 connections"), pool.hold("c"):
            raise AssertionError
        pool.expect(1)
        with pool.hold("c") as held:
            assert held is not None
        pool.expect(1000)
    assert (pool.size, pool._used) == (16, 0)


# The budget


def test_a_start_counts_all_pools_of_all_processes(house: House) -> None:
    database = house.parts.database
    database.write_lock.expect(3)
    assert database.demand({"vm1": 3}, 1).total == 3 * (12 + 8) + 5
    assert database.demand({"vm1": 3}, 0).total == 3 * (12 + 8) + 5, "without a worker the web processes run the jobs"
    most = int(house.value("select current_setting('max_connections')"))
    enough = (most - 10 - 5) // 20
    database.check_budget({"vm1": enough}, 1)
    with pytest.raises(Unavailable) as refused:
        database.check_budget({"vm1": enough, "vm2": 1}, 2)
    total = (enough + 1) * 20 + 10
    assert refused.value.message == (
        f"the pools (request 12 + session 8) of {enough + 1} process(es) ({enough} of vm1, 1 of vm2), and write-lock 5 in 2 of them "
        f"may open {total} connections, but PostgreSQL allows {most} less 10 for others; raise its max_connections or lower "
        "ARKVORY_DATABASE_POOL_SIZE and ARKVORY_SESSION_POOL_SIZE"
    )


def test_a_start_counts_the_worker_that_it_is_to_have_beside_it(make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    house = make_house(ARKVORY_DEPLOYMENT="cluster", ARKVORY_INSTANCE_ID="vm1", WEB_CONCURRENCY="2", ARKVORY_SERVE_WORKER="true")
    asked: list[tuple[dict[str, int], int]] = []
    monkeypatch.setattr(house.parts.database, "check_budget", lambda processes, runners: asked.append((dict(processes), runners)))
    lifecycle = Lifecycle(house.parts)
    lifecycle._check_budget()
    assert asked.pop() == ({"vm1": 2}, 0), "a command starts none"
    lifecycle._worker = SimpleNamespace(kind="web")
    lifecycle._check_budget()
    # It runs already, and a process of the server comes anew.
    house.rows("insert into arkvory_instances (name, slot, kind, host, pid, version) values ('vm1:worker', 0, 'worker', 'here', 1, '1')")
    lifecycle._check_budget()
    assert asked == [({"vm1": 2, "vm1:worker": 1}, 1)] * 2
