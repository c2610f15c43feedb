"""What a bound on time is granted: as much as the machine took, and nothing that the process itself did not get ready for."""

from __future__ import annotations

import gevent
from gevent.monkey import get_original

from tests.support import pace

stand_still = get_original("time", "sleep")


def test_whoever_waits_of_its_own_accord_is_granted_next_to_nothing() -> None:
    began = pace.now()
    gevent.sleep(0.5)
    ended = pace.now()
    assert ended - began >= 0.5
    # The loop was free: only what the machine itself took is lost.
    assert ended - began - pace.lost(began, ended) > 0.3
    assert pace.within(0.6, began, ended) and not pace.within(0.1, began, ended)


def test_what_stood_still_is_granted_once_it_goes_on_and_before_its_turn_too() -> None:
    began = pace.now()
    stand_still(0.6)
    ended = pace.now()
    for _ in range(2):
        assert 0.5 < pace.lost(began, ended) <= ended - began
        assert pace.within(0.2, began, ended)
        gevent.sleep(0.05)
