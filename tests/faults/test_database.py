"""PostgreSQL slow, full, silent: bounded waits and the right words, in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gevent
import pytest
from gevent import socket
from sqlalchemy import text

from app.errors import DatabaseAway, Unavailable
from tests.conftest import MakeHouse
from tests.support import pace
from tests.support.house import House, eventually


def seconds_of(action: Callable[[], object]) -> float:
    """How long it took to be refused, but for what the machine took."""
    began = pace.now()
    with pytest.raises(Unavailable) as refused:
        action()
    assert refused.value.retry_after > 0
    took = pace.now() - began
    # The wait itself may have ended while everything stood still.
    return max(took - pace.lost(began), min(took, 1.0))


def test_when_every_connection_is_in_use_a_request_waits_for_its_bound_and_is_refused(make_house: MakeHouse) -> None:
    house = make_house(ARKVORY_DATABASE_POOL_SIZE="4", ARKVORY_DATABASE_WAIT_SECONDS="0.4")
    house.repository(public=True)
    house.publish("a", b"x")
    house.read("a")
    held = [house.parts.database.request.connect() for _ in range(4)]
    assert 0.3 < seconds_of(lambda: house.read("cold")) < 4
    assert 0.3 < seconds_of(lambda: house.publish("b", b"x")) < 4
    assert house.read("a") == b"x", "a warm read needs none"
    for connection in held:
        connection.close()
    house.publish("b", b"x")
    assert house.parts.database.request.waiting == 0


def test_a_statement_that_does_not_end_is_given_up_and_its_connection_destroyed(make_house: MakeHouse) -> None:
    house = make_house(ARKVORY_DATABASE_STATEMENT_SECONDS="0.5")

    def sleep() -> None:
        with house.parts.database.read() as connection:
            connection.execute(text("select pg_sleep(20)"))

    house.repository()
    before = house.parts.database.request.connections
    assert 0.4 < seconds_of(sleep) < 5
    assert house.parts.database.request.connections <= before
    house.publish("a", b"x")
    asleep = "select 1 from pg_stat_activity where query like '%pg_sleep%' and state = 'active' and pid <> pg_backend_pid()"
    eventually(lambda: not house.rows(asleep), 10)


def test_a_server_that_accepts_and_says_nothing_is_given_up_in_time(make_house: MakeHouse, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        house = House.__new__(House)
        from app.http.parts import build_parts
        from config.settings import Settings

        house.parts = build_parts(
            Settings.from_environment(
                {
                    "ARKVORY_DATABASE_URL": f"postgresql://x:y@127.0.0.1:{silent.getsockname()[1]}/x",
                    "ARKVORY_DATA_DIR": str(tmp_path / "silent"),
                    "ARKVORY_DATABASE_CONNECT_SECONDS": "0.5",
                }
            )
        )

        def read() -> None:
            with house.parts.database.read():
                pass

        assert 0.4 < seconds_of(read) < 5


def test_an_interrupted_connect_leaves_no_backend_that_waits_for_a_password(house: House) -> None:
    """It would sit there for a minute, and nobody could drop a database meanwhile."""

    def connect() -> None:
        with house.parts.database.request.connect():
            gevent.sleep(5)

    house.parts.database.request.engine.dispose()
    for steps in range(8):
        victim = gevent.spawn(connect)
        for _ in range(steps):
            gevent.sleep(0)
        victim.kill()
    eventually(lambda: house.value("select count(*) from pg_stat_activity where datname = current_database()") <= 2)


def test_connections_that_died_while_they_were_idle_are_not_handed_out(house: House) -> None:
    house.repository()
    gevent.joinall([gevent.spawn(house.publish, f"f{number}", b"x") for number in range(4)], raise_error=True)
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
    house.rows(f"select pg_terminate_backend(pid) {others}")
    eventually(lambda: not house.rows(f"select 1 {others}"))
    house.publish("a", b"x")


def test_a_connection_that_dies_in_the_middle_of_a_write_is_a_refusal_that_changes_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.repository(public=True)
    before = house.parts.transactions._commit

    def die(transaction: object) -> None:
        pid = transaction.connection.execute(text("select pg_backend_pid()")).scalar_one()  # type: ignore[attr-defined]
        house.rows("select pg_terminate_backend(:pid)", pid=pid)
        eventually(lambda: not house.rows("select 1 from pg_stat_activity where pid = :pid", pid=pid))
        before(transaction)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(house.parts.transactions, "_commit", die)
        with pytest.raises(DatabaseAway):
            house.change("files", public=False)
    assert house.outcome("a") == "not_found"
    assert not house.parts.cache.doubts.open
    house.change("files", public=False)
    assert house.outcome("a") == "unauthenticated"
