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


def test_ending_one_that_ended_changes_nothing() -> None:
    ended = gevent.spawn(lambda: 7)
    ended.join()
    greenlets.end(ended)
    assert ended.value == 7
