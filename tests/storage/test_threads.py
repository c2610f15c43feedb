"""Whoever waits for a thread and is told to end leaves no file behind that is open, and closes none under the thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from app.errors import Unavailable
from app.storage.threads import apart, opened


class Thing:
    def __init__(self) -> None:
        self.open = True


def slow(made: list[Thing]) -> Thing:
    time.sleep(0.05)
    made.append(Thing())
    return made[-1]


def close(thing: Thing) -> None:
    thing.open = False


def opened_slowly(made: list[Thing]) -> Thing:
    return opened(slow, made, close=close)


@pytest.mark.parametrize(("call", "left_open"), [(lambda made: apart(slow, made), True), (opened_slowly, False)], ids=["apart", "opened"])
def test_whoever_is_told_to_end_ends_when_the_thread_is_through(call: Callable[[Any], Thing], left_open: bool) -> None:
    made: list[Thing] = []
    waiting = gevent.spawn(call, made)
    gevent.sleep(0.01)
    waiting.kill(timeout=5)
    assert isinstance(waiting.value, gevent.GreenletExit)
    assert [each.open for each in made] == [left_open]


def test_told_twice_it_ends_at_once_and_what_was_opened_is_closed_all_the_same() -> None:
    made: list[Thing] = []
    waiting = gevent.spawn(opened_slowly, made)
    gevent.sleep(0.01)
    waiting.kill(block=False)
    gevent.sleep(0.01)
    waiting.kill(timeout=5)
    assert not made
    with gevent.Timeout(5):
        while not made or made[0].open:
            gevent.sleep(0.01)


def test_what_a_thread_raises_is_raised() -> None:
    def fail() -> None:
        raise Unavailable("not now")

    for call in (lambda: apart(fail), lambda: opened(fail, close=close)):
        with pytest.raises(Unavailable):
            call()
