"""Storage ownership: one owner, and a predecessor that lingers writes nothing (DESIGN 5, S1)."""

from __future__ import annotations

from types import SimpleNamespace

import gevent
import pytest
from sqlalchemy import text

from app.cluster import ownership
from app.database import pools
from app.errors import NotOwner
from tests.conftest import MakeHouse, MakePause
from tests.support.house import ADMIN, House, eventually

WRITES = ("arkvory_artifacts", "arkvory_blobs", "arkvory_uploads", "arkvory_repositories", "arkvory_users", "arkvory_cache_rows")


def written(house: House) -> list[object]:
    """Every row of every table that a write could touch."""
    return [[tuple(row) for row in house.rows(f"select * from {table} order by 1, 2")] for table in WRITES]


def break_session(house: House) -> None:
    """End the owner's session as a network that breaks would, so that its lock is free."""
    killed = house.rows(
        "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and classid = 18471 and objid = 1 and granted "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    assert killed


def test_s1_a_second_owner_is_refused_and_told_who_holds_it(house: House, make_house: MakeHouse) -> None:
    with pytest.raises(NotOwner, match=r"another Arkvory owns this storage \(process \d+ on .+\)"):
        _second(house).parts.ownership.acquire(0.3)
    house.repository()


def _second(house: House) -> House:
    second = House(house.url, house.folder, owns=False)
    second.parts.ownership.generation = None
    return second


def test_s1_a_successor_waits_for_its_predecessor_to_leave(house: House) -> None:
    second = _second(house)
    waiting = gevent.spawn(second.parts.ownership.acquire, 10)
    gevent.sleep(0.3)
    assert not waiting.ready()
    house.parts.ownership.release()
    waiting.get(timeout=10)
    second.repository()
    second.close()


@pytest.mark.parametrize("aware", [True, False])
def test_a_predecessor_whose_session_broke_writes_nothing_after_a_successor_came(house: House, aware: bool) -> None:
    """Not even a blob's row, and whether or not it has noticed."""
    house.repository(public=True)
    house.publish("a", b"old")
    house.user("ann")
    assert house.read("a") == b"old"
    break_session(house)
    successor = _second(house)
    successor.parts.ownership.acquire(5)
    if aware:
        house.parts.ownership._lose("it has noticed")
    before = written(successor)
    for write in (
        lambda: house.publish("a", b"new"),
        lambda: house.delete("a"),
        lambda: house.change("files", public=False),
        lambda: house.disable("ann"),
        lambda: house.repository("more"),
        house.clean,
    ):
        with pytest.raises(NotOwner):
            write()
    assert written(successor) == before
    assert house.read("a") == b"old", "reads go on"
    successor.publish("a", b"new")
    successor.close()


def test_a_predecessor_stopped_in_the_middle_of_a_publish_writes_nothing_when_it_goes_on(house: House, pause: MakePause) -> None:
    house.repository(public=True)
    stopped = pause(house.parts.publisher, "commit", before=True)
    publishing = gevent.spawn(house.publish, "a", b"late")
    stopped.reached()
    break_session(house)
    successor = _second(house)
    successor.parts.ownership.acquire(5)
    before = written(successor)
    stopped.go()
    with pytest.raises(NotOwner):
        publishing.get(timeout=10)
    assert written(successor) == before
    assert successor.outcome("a") == "not_found"
    successor.rows("update arkvory_uploads set lease_until = now() - interval '1 s'")
    successor.clean()
    successor.assert_counted()
    successor.assert_no_strays()
    successor.close()


def test_a_successor_waits_for_a_write_that_is_about_to_commit_longer_than_for_other_statements(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = house.repository()
    with house.parts.transactions.begin(repository) as transaction:
        break_session(house)
        successor = _second(house)
        monkeypatch.setattr(pools._limit, "seconds", 1.0)
        taking = gevent.spawn(successor.parts.ownership.acquire, 5)
        gevent.sleep(1.6)
        assert not taking.ready()
        transaction.advance(repository, "content")
    taking.get(timeout=30)
    assert successor.epochs()[2] == 2
    successor.close()


def test_a_broken_session_is_taken_up_again_at_once_when_nobody_came_between(house: House) -> None:
    house.repository()
    break_session(house)
    owner = house.parts.ownership
    before = owner._last_good
    owner._check()
    assert owner.held
    assert owner._last_good > before
    assert owner._session is not None
    house.publish("a", b"goes on")


def test_without_a_good_check_for_eight_seconds_ownership_is_lost_for_good_and_the_process_replaced(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "CHECK_SECONDS", 0.1)
    # Time passes when it is let, however long the checks take.
    passed = [0.0]
    monkeypatch.setattr(ownership, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    replaced = gevent.event.Event()
    owner = house.parts.ownership
    owner.watch(replaced.set)
    for passed[0] in (5.0, 10.0, 15.0):
        eventually(lambda: owner._last_good == passed[0])
    assert owner.held, "a healthy owner stays one"
    away = gevent.event.Event()
    failed: list[float] = []

    def fail() -> bool:
        failed.append(passed[0])
        raise NotOwner("PostgreSQL does not answer")

    monkeypatch.setattr(owner, "_still_mine", fail)
    monkeypatch.setattr(owner, "_wait_for_database", lambda: away.wait(60))
    passed[0] += ownership.LOST_AFTER_SECONDS - 0.1
    eventually(lambda: failed.count(passed[0]) > 4)
    assert owner.held
    passed[0] += 0.2
    eventually(lambda: owner.lost)
    assert not replaced.is_set(), "replaced only once PostgreSQL answers"
    with pytest.raises(NotOwner):
        house.repository()
    away.set()
    assert replaced.wait(30)


def test_a_write_that_finds_the_successor_while_the_session_is_being_checked_does_not_stop_the_process(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg2 holds a mutex while a greenlet waits in a connection: closing it from another one would be the end of everything."""
    monkeypatch.setattr(ownership, "CHECK_SECONDS", 1.0)
    house.repository(public=True)
    house.publish("a", b"x")
    owner = house.parts.ownership
    house.rows("update arkvory_owner set generation = generation + 1")

    checking = gevent.event.Event()

    def check_slowly() -> bool:
        assert owner._session is not None
        checking.set()
        owner._session.execute(text("select pg_sleep(0.5)"))
        return False

    monkeypatch.setattr(owner, "_still_mine", check_slowly)
    owner.watch()
    assert checking.wait(30)
    with pytest.raises(NotOwner):
        house.publish("a", b"y")
    eventually(lambda: owner.lost)
    assert house.read("a") == b"x"


def test_a_caller_that_is_the_administrator_is_no_owner_either(house: House) -> None:
    house.repository()
    house.parts.ownership.release()
    with pytest.raises(NotOwner):
        house.publish("a", b"x", caller=ADMIN)
