"""Ending greenlets for good."""

from __future__ import annotations

import gevent
import pytest

from app.database import greenlets
from app.errors import DatabaseAway


def test_one_whose_clean_up_takes_the_place_of_its_end_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greenlets, "AGAIN_SECONDS", 0.05)
    rounds = []

    def work() -> None:
        try:
            gevent.sleep(60)
        finally:
            if len(rounds) < 3:
                raise DatabaseAway("it cannot be given back")

    def for_ever() -> None:
        while True:
            rounds.append(1)
            try:
                work()
            except DatabaseAway:
                continue

    running = gevent.spawn(for_ever)
    gevent.sleep(0.01)
    with gevent.Timeout(5):
        greenlets.end(running)
    assert (running.dead, len(rounds)) == (True, 3)


def test_what_gives_back_is_done_to_its_end_and_then_whoever_waited_ends() -> None:
    done: list[str] = []

    def give_back() -> None:
        gevent.sleep(0.05)
        done.append("given back")

    def work() -> None:
        try:
            done.append("taken")
        finally:
            greenlets.to_the_end(give_back)

    running = gevent.spawn(work)
    gevent.sleep(0.01)
    running.kill(timeout=5)
    assert done == ["taken", "given back"]
    assert isinstance(running.value, gevent.GreenletExit)


def test_what_cannot_be_given_back_takes_the_place_of_a_failure_and_never_of_an_end() -> None:
    def fail() -> None:
        raise DatabaseAway("it cannot be given back")

    def end_with(error: BaseException) -> None:
        try:
            raise error
        finally:
            greenlets.to_the_end(fail)

    with pytest.raises(DatabaseAway):
        end_with(ValueError("wrong"))
    end = gevent.Timeout(None)
    with pytest.raises(gevent.Timeout) as raised:
        end_with(end)
    assert raised.value is end
    with pytest.raises(DatabaseAway):
        greenlets.to_the_end(fail)


def test_ending_one_that_ended_changes_nothing() -> None:
    ended = gevent.spawn(lambda: 7)
    ended.join()
    greenlets.end(ended)
    assert ended.value == 7
