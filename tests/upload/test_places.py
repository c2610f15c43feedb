"""Places: at most so many at once, fair between keys, bounded, and none is ever lost (DESIGN 5)."""

from __future__ import annotations

import time
from collections import Counter

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import TooManyUploads
from app.upload.places import Places


def hold(places: Places, key: str, order: list[str], seconds: float = 0.001) -> None:
    with places.take(key):
        order.append(key)
        gevent.sleep(seconds)


def test_no_more_than_all_and_no_more_than_its_share_for_each_key_are_in_use_at_once() -> None:
    places, at_once, of_one = Places(4, 2, 5), [], []
    running: Counter[str] = Counter()

    def use(key: str) -> None:
        with places.take(key):
            running[key] += 1
            at_once.append(running.total())
            of_one.append(max(running.values()))
            gevent.sleep(0.001)
            running[key] -= 1

    gevent.joinall([gevent.spawn(use, f"key {number % 3}") for number in range(60)], raise_error=True)
    assert (max(at_once), max(of_one)) == (4, 2)
    assert (places.used, places.waiting) == (0, 0)


def test_a_client_with_a_hundred_uploads_waiting_does_not_keep_another_one_waiting() -> None:
    places, order = Places(2, 2, 5), []
    crowd = [gevent.spawn(hold, places, "many", order) for _ in range(100)]
    gevent.sleep(0.002)
    late = gevent.spawn(hold, places, "one", order)
    gevent.joinall([*crowd, late], raise_error=True)
    assert order.index("one") < 12


def test_a_key_at_its_limit_does_not_keep_the_places_from_others() -> None:
    places, order = Places(4, 1, 5), []
    with places.take("many"):
        crowd = [gevent.spawn(hold, places, "many", order) for _ in range(3)]
        gevent.sleep(0)
        gevent.joinall([gevent.spawn(hold, places, f"other {number}", order) for number in range(3)], raise_error=True)
        assert sorted(order) == ["other 0", "other 1", "other 2"]
    gevent.joinall(crowd, raise_error=True)


def test_a_wait_ends_after_its_bound_with_an_error_that_says_when_to_come_back() -> None:
    places = Places(1, 1, 0.05)
    with places.take("first"):
        began = time.monotonic()
        with pytest.raises(TooManyUploads) as refused, places.take("second"):
            pass
        assert 0.04 < time.monotonic() - began < 5
        assert refused.value.retry_after > 0
        assert (places.used, places.waiting) == (1, 0)
    with places.take("second"):
        assert places.used == 1


@settings(max_examples=60)
@given(
    total=st.integers(1, 4),
    per_key=st.integers(1, 4),
    users=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.sampled_from(["hold", "fail", "kill"])), max_size=25),
    killed_after=st.integers(0, 6),
)
def test_no_place_is_lost_whoever_is_killed_or_fails_or_gives_up(
    total: int, per_key: int, users: list[tuple[str, int, str]], killed_after: int
) -> None:
    places = Places(total, min(total, per_key), 0.004)

    def use(key: str, steps: int, end: str) -> None:
        try:
            with places.take(key):
                assert places.used <= total
                for _ in range(steps):
                    gevent.sleep(0)
                gevent.sleep(steps / 2000)
                if end == "fail":
                    raise ValueError
        except (TooManyUploads, ValueError):
            pass

    greenlets = [(gevent.spawn(use, key, steps, end), end) for key, steps, end in users]
    for _ in range(killed_after):
        gevent.sleep(0)
    gevent.killall([greenlet for greenlet, end in greenlets if end == "kill"])
    gevent.joinall([greenlet for greenlet, _ in greenlets], raise_error=True)
    assert (places.used, places.waiting) == (0, 0)
    assert not places._used, "keys of the past are remembered"
    order: list[str] = []
    # However busy the machine is.
    places._wait_seconds = 10.0
    gevent.joinall([gevent.spawn(hold, places, "after", order, 0) for _ in range(total)], raise_error=True)
    assert len(order) == total


def test_a_waiter_killed_in_the_moment_of_its_turn_hands_the_place_on() -> None:
    places, order = Places(1, 1, 5), []
    granted, next_one = gevent.Greenlet(hold, places, "granted", order), gevent.Greenlet(hold, places, "next", order)
    with places.take("first"):
        for each in (granted, next_one):
            each.start()
            gevent.sleep(0)
        assert places.waiting == 2
        granted.kill(block=False)
    # The place is its own by now; it is told so only after it is killed.
    assert places.used == 1
    gevent.joinall([granted, next_one], timeout=20)
    assert (order, places.used, places.waiting) == (["next"], 0, 0)
