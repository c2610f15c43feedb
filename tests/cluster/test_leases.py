"""Jobs of the whole cluster have one runner at a time, by a lease that is taken over when its holder dies (DESIGN 4)."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event
from sqlalchemy import text

from app.cluster import inspection, leases
from app.cluster.leases import Leases
from tests.support.house import House, eventually


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewed very often; a lease is as long as ever, so that a machine that stands still loses none."""
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)


def seconds_left(house: House) -> float:
    return float(house.value("select extract(epoch from until - clock_timestamp()) from arkvory_leases where name = 'cleanup'"))


def of(house: House, label: str) -> Leases:
    return Leases(house.parts.database, lambda: label)


def holders(house: House) -> dict[str, str]:
    """Who runs what, as people see it."""
    with house.parts.database.read() as connection:
        return {each.name: each.holder for each in inspection.leases(connection)}


def test_while_one_process_runs_a_job_no_other_does_however_long_it_takes(house: House, hasty: None) -> None:
    go = Event()
    running = gevent.spawn(of(house, "a/0").run, "cleanup", go.wait, 0.1)
    eventually(lambda: house.rows("select 1 from arkvory_leases"))
    second = of(house, "a/1")
    ran = []
    for _ in range(4):
        # As if most of it were over: it is renewed in time.
        house.rows("update arkvory_leases set until = clock_timestamp() + interval '10 s' where name = 'cleanup'")
        assert not second.run("cleanup", lambda: ran.append(1), 0.1)
        eventually(lambda: seconds_left(house) > leases.LEASE_SECONDS / 2)
    assert second.run("another job", lambda: ran.append(2), 0.1)
    assert holders(house) == {"another job": "a/1", "cleanup": "a/0"}
    go.set()
    assert running.get(timeout=30)
    assert holders(house)["cleanup"] == "a/0", "whoever ran it last"
    assert ran == [2]


def test_a_job_that_ended_is_not_begun_again_before_its_interval_is_over(house: House) -> None:
    first, second = of(house, "a/0"), of(house, "a/1")
    ran: list[str] = []
    assert first.run("cleanup", lambda: ran.append("first"), 60.0)
    assert 0.8 * 60 < seconds_left(house) <= leases.RESTING * 60
    assert not second.run("cleanup", lambda: ran.append("second"), 60.0)
    assert not first.run("cleanup", lambda: ran.append("first"), 60.0)
    house.rows("update arkvory_leases set until = until - interval '60 s'")
    assert second.run("cleanup", lambda: ran.append("second"), 60.0)
    assert ran == ["first", "second"]


def test_a_runner_that_stops_in_the_middle_leaves_the_job_to_the_others_at_once(house: House) -> None:
    running = gevent.spawn(of(house, "a/0").run, "cleanup", Event().wait, 60.0)
    eventually(lambda: house.rows("select 1 from arkvory_leases"))
    running.kill()
    assert of(house, "a/1").run("cleanup", lambda: None, 60.0)


def test_a_runner_that_was_stopped_finds_its_job_taken_over_and_ends_it(
    house: House, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGSTOP or a partition: nothing is renewed, and another process begins."""
    first, second = of(house, "a/0"), of(house, "a/0")
    renewing = first._take
    taken, goes_on = [], Event()

    def take_once(*arguments: object) -> bool:
        if taken:
            goes_on.wait()
        taken.append(1)
        return renewing(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(first, "_take", take_once)
    ended = Event()

    def job() -> None:
        try:
            gevent.sleep(60)
        finally:
            ended.set()

    running = gevent.spawn(first.run, "cleanup", job, 60.0)
    eventually(lambda: taken)
    assert not second.run("cleanup", lambda: None, 60.0)
    house.rows("update arkvory_leases set until = clock_timestamp() - interval '1 s'")
    go, begun = Event(), Event()
    taken_over = gevent.spawn(second.run, "cleanup", lambda: (begun.set(), go.wait()), 60.0)
    assert begun.wait(30) and not ended.is_set()
    goes_on.set()
    assert ended.wait(30), "the first goes on beside its successor"
    assert running.get(timeout=30)
    assert house.value("select holder from arkvory_leases").endswith(second._incarnation), "what is lost is not given away"
    go.set()
    assert taken_over.get(timeout=30)


def test_a_name_is_let_go_also_while_somebody_asks_for_it(house: House) -> None:
    """Who asks locks the row for a moment; it was left to run out then, and whoever waited did so for all of its seconds."""
    with house.parts.database.write() as asking:
        with of(house, "a/0").hold("fetch/1/a", 10.0, 0.0):
            asking.execute(text("select 1 from arkvory_leases where name = 'fetch/1/a' for update"))
            ending = gevent.spawn_later(0.3, asking.commit)
        ending.join(timeout=30)
    with of(house, "a/1").hold("fetch/1/a", 10.0, 5.0) as held:
        assert held, "long before its seconds are over"


def test_a_lease_of_before_the_clock_was_set_back_is_nobodys_and_a_rest_is_kept(house: House) -> None:
    first, second = of(house, "a/0"), of(house, "a/1")
    assert first.run("rests", lambda: None, 3600.0) and not second.run("rests", lambda: None, 3600.0)
    with first.hold("work", 30.0, 0.0) as held:
        assert held
        house.rows("update arkvory_leases set until = until + interval '1 day' where name = 'work'")
        with second.hold("work", 30.0, 0.0) as taken:
            assert taken
