"""Places in a cluster: one number for all processes, and those of dead processes come free (DESIGN 5)."""

from __future__ import annotations

import time
from collections import Counter

import gevent
import pytest
from gevent.event import Event

from app.cluster import inspection
from app.errors import TooManyUploads
from app.upload import shared_places
from app.upload.shared_places import SharedPlaces
from tests.support.house import House, eventually


def process(house: House, total: int = 4, per_key: int = 2, wait: float = 10.0) -> SharedPlaces:
    return SharedPlaces(house.parts.database, total, per_key, wait, lambda: "vm1/0")


def in_table(house: House) -> int:
    return int(house.value("select count(*) from arkvory_leases where until > clock_timestamp()"))


def test_all_processes_together_move_no_more_uploads_than_one_would(house: House) -> None:
    processes = [process(house) for _ in range(3)]
    running: Counter[str] = Counter()
    at_once, of_one = [], []

    def use(places: SharedPlaces, key: str) -> None:
        with places.take(key):
            running[key] += 1
            at_once.append(running.total())
            of_one.append(running[key])
            gevent.sleep(0.4)
            running[key] -= 1

    greenlets = [gevent.spawn(use, processes[number % 3], f"key {number % 5 % 3}") for number in range(24)]
    gevent.joinall(greenlets, raise_error=True)
    assert (max(at_once), max(of_one)) == (4, 2)
    eventually(lambda: in_table(house) == 0)


def test_who_waits_for_a_place_of_the_table_is_told_as_waiting(house: House) -> None:
    """All processes' numbers are summed: together they never hold more than there are."""
    first, second = process(house, total=1, per_key=1), process(house, total=1, per_key=1)
    over = Event()

    def use(places: SharedPlaces) -> None:
        with places.take("ann"):
            over.wait()

    holds = gevent.spawn(use, first)
    eventually(lambda: first.held == 1)
    waits = [gevent.spawn(use, second) for _ in range(2)]
    gevent.sleep(0.3)
    assert [(each.held, each.waiting) for each in (first, second)] == [(1, 0), (0, 2)]
    over.set()
    gevent.joinall([holds, *waits], timeout=20, raise_error=True)
    assert [(each.held, each.waiting) for each in (first, second)] == [(0, 0), (0, 0)]


def test_without_a_free_place_the_wait_is_bounded_and_holds_no_connection(house: House) -> None:
    first, second = process(house, total=1, per_key=1), process(house, total=1, per_key=1, wait=0.6)
    with first.take("ann"):
        with house.parts.database.read() as connection:
            assert [each.holder for each in inspection.leases(connection)] == ["vm1/0"]
        began = time.monotonic()
        waiting = gevent.spawn(second._wait_for_one, "bob", began + 0.6)
        gevent.sleep(0.1)
        assert house.parts.database.request.connections == house.parts.database.request.idle
        with pytest.raises(TooManyUploads):
            waiting.get(timeout=20)
        assert 0.5 < time.monotonic() - began < 20
    with second.take("bob"):
        pass


def test_places_of_a_process_that_died_come_free_and_those_of_a_living_one_do_not(house: House) -> None:
    dead, living, other = (process(house, total=2, per_key=2, wait=0.2) for _ in range(3))
    over = Event()

    def upload(places: SharedPlaces) -> None:
        with places.take("ann"):
            over.wait()

    killed, going = gevent.spawn(upload, dead), gevent.spawn(upload, living)
    eventually(lambda: in_table(house) == 2)
    for _ in range(4):
        # As half of a lease later.
        house.rows("update arkvory_leases set until = until - make_interval(secs => :half)", half=shared_places.LEASE_SECONDS / 2)
        living.renew()
    with other.take("bob"), pytest.raises(TooManyUploads), other.take("bob"):
        pass
    over.set()
    gevent.joinall([killed, going], timeout=5, raise_error=True)
    eventually(lambda: in_table(house) == 0)


def test_a_place_that_ran_out_and_went_to_another_upload_of_the_same_process_stays_that_ones(house: House) -> None:
    """PostgreSQL was away for longer than a lease: who comes back late neither renews nor gives back what is another's."""
    places, other = process(house, total=1, per_key=1), process(house, total=1, per_key=1, wait=0.3)
    first_ends, second_ends = Event(), Event()

    def upload(until: Event) -> None:
        # In its own memory the process would have room.
        places.total, places.per_key = 2, 2
        with places.take("ann"):
            until.wait()

    first = gevent.spawn(upload, first_ends)
    eventually(lambda: in_table(house) == 1)
    places.total = 1
    house.rows("update arkvory_leases set until = clock_timestamp() - interval '1 s'")
    second = gevent.spawn(upload, second_ends)
    eventually(lambda: in_table(house) == 1)
    first_ends.set()
    first.join(5)
    gevent.sleep(0.3)
    assert in_table(house) == 1, "the second one's place was given back by the first"
    places.renew()
    with pytest.raises(TooManyUploads), other.take("bob"):
        pass
    second_ends.set()
    second.join(5)
    eventually(lambda: in_table(house) == 0)


def test_places_of_before_the_clock_was_set_back_are_free(house: House) -> None:
    house.rows(
        "insert into arkvory_leases (name, holder, until) "
        "select 'place/' || n, 'x y dead', now() + interval '1 day' from generate_series(1, 4) n"
    )
    with process(house, wait=0.5).take("ann"):
        pass
