"""What a machine that stood still, or had others to run, took from a bound on time.

A promise such as "within a second" is one about what the product does, and a test holds it to that. But a machine that is shared may leave
all of its processes standing for seconds. So a greenlet looks at the clock fifty times a second, from the first question on, and what it
came too late by is what everybody may have come too late by: that much, and no more, is granted. On an idle machine it is next to nothing,
and whoever is late by himself is late.

    began = pace.now()
    ...
    assert pace.now() - began < 1.0 + pace.lost(began)

Where the outcome itself depends on how soon a client goes on, the whole is done again when much was lost (`again`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import gevent

from app.cluster.loop import OLDEST_PROBE_SECONDS

# Promises of a cluster with what a machine adds that runs all tests side by side: a poll, and a probe, behind whose last moment nobody
# believes its memory (M6). On an idle machine it is much less (docs/consistency.md).
LATE_SECONDS, PROBED_SECONDS = 2.0, OLDEST_PROBE_SECONDS + 0.2
TICK_SECONDS = 0.02
# What a timer is late by on a machine with nothing else to do.
USUAL_SECONDS = 0.002
KEPT_SECONDS = 300.0
# Tests put others in place of it.
_clock = time.monotonic
Result = TypeVar("Result")


class _Watch:
    """Moments at which it came too late, and by how much."""

    def __init__(self) -> None:
        self._greenlet: gevent.Greenlet | None = None
        self._due = 0.0
        self._late: deque[tuple[float, float]] = deque()

    def begin(self) -> None:
        if self._greenlet is None or self._greenlet.dead:
            self._due = _clock() + TICK_SECONDS
            self._greenlet = gevent.spawn(self._run)

    def _run(self) -> None:
        while True:
            self._due = _clock() + TICK_SECONDS
            gevent.sleep(TICK_SECONDS)
            came = _clock()
            if came - self._due > USUAL_SECONDS:
                self._late.append((self._due, came))
            while self._late and came - self._late[0][1] > KEPT_SECONDS:
                self._late.popleft()

    def lost(self, began: float, ended: float) -> float:
        # It may be due just now, and have had no turn yet.
        found = max(0.0, min(_clock(), ended) - max(self._due, began))
        for due, came in reversed(self._late):
            if came <= began:
                break
            found += max(0.0, min(came, ended) - max(due, began))
        return found


_watch = _Watch()


def now() -> float:
    """Seconds on the clock of the tests. From the first time on somebody looks at it all the time."""
    _watch.begin()
    return _clock()


def lost(began: float, ended: float | None = None) -> float:
    """Seconds between these moments (until now) in which this process did not get its turn when it was due."""
    return _watch.lost(began, _clock() if ended is None else ended)


def again(scenario: Callable[[], Result], lost: float) -> Result:
    """Go through it, and anew where it failed while so many seconds were lost that this says nothing; five times at most."""
    for last in (False, False, False, False, True):
        began = now()
        try:
            return scenario()
        except Exception:
            if last or _watch.lost(began, _clock()) < lost:
                raise
    raise AssertionError("unreachable")


def within(seconds: float, began: float, ended: float | None = None) -> bool:
    """Whether it took no longer than that, but for what was lost meanwhile."""
    until = _clock() if ended is None else ended
    return until - began <= seconds + lost(began, until)
