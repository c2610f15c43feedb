"""When a refused request is sent again.

    Retry         the limits, and how long a pause is (pure: it takes time and chance from its caller)
    Attempts      one request's row of failures
    Stop          ends all parts of a transfer, those that wait too
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from dataclasses import dataclass

from arkvory.errors import ArkvoryError, Later, NoAnswer

_STEEPEST = 30


class Stopped(ArkvoryError):
    """Another part of the same transfer failed: that one's error is the one to be seen."""

    code = "stopped"


class Stop:
    """One word to all threads of a transfer, or (one within another) of a part of it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._within: weakref.WeakSet[Stop] = weakref.WeakSet()
        self._lock = threading.Lock()

    def within(self) -> Stop:
        """One that is set with this one, and alone where only its part is over."""
        made = Stop()
        with self._lock:
            self._within.add(made)
            if self._event.is_set():
                made.set()
        return made

    def set(self) -> None:
        with self._lock:
            self._event.set()
            within = list(self._within)
        for each in within:
            each.set()

    def check(self) -> None:
        """Raises Stopped when it is over."""
        if self._event.is_set():
            raise Stopped("the transfer was stopped")

    def sleep(self, seconds: float) -> None:
        """Raises Stopped as soon as it is over."""
        self._event.wait(seconds)
        self.check()


@dataclass(frozen=True)
class Retry:
    """Limits in seconds. What a server asks for beyond them ends the attempts at once: nobody comes back earlier than asked.

    A pause is what `Retry-After` says and a random share of up to half of it, so that those who were refused together do not return
    together. Where the server says nothing it is `first_wait`, doubled by each failure, less a random share of up to half of it.
    """

    attempts: int = 30
    # Of these, in a row, as many that nobody answered: a server that says later is there, an address that is wrong is not.
    unheard: int = 10
    longest_wait: float = 120.0
    # From the first failure on; what moves bytes begins anew with each piece that arrived.
    total: float = 900.0
    first_wait: float = 0.5

    def wait(self, failures: int, retry_after: float | None, elapsed: float, chance: random.Random) -> float | None:
        """Seconds to wait after so many failures in a row, `elapsed` since the first of them; None: there is no further attempt."""
        room = min(self.longest_wait, self.total - elapsed)
        # A zero says nothing about when it will be better.
        least = retry_after or min(self.first_wait * 2.0 ** min(failures - 1, _STEEPEST), self.longest_wait) / 2
        share = retry_after / 2 if retry_after else least
        if failures >= self.attempts or least > room:
            return None
        return least + chance.uniform(0.0, min(share, room - least))


NEVER = Retry(attempts=1)
# Of the system: processes that were forked from one another do not draw the same numbers.
CHANCE = random.SystemRandom()


class Attempts:
    """Failures in a row of one request."""

    def __init__(self, policy: Retry) -> None:
        self._policy = policy
        self._failures = 0
        self._unheard = 0
        self._first = 0.0

    def progress(self) -> None:
        """Something arrived: the row of failures is over."""
        self._failures = self._unheard = 0

    def pause(self, error: ArkvoryError) -> float:
        """Seconds to wait before the next attempt. Raises the error when it does not pass, or the policy has an end."""
        now = time.monotonic()
        if not self._failures:
            self._first = now
        self._failures += 1
        self._unheard = self._unheard + 1 if isinstance(error, NoAnswer) else 0
        told = error.retry_after if isinstance(error, Later) else None
        again = error.passing and self._unheard < self._policy.unheard
        seconds = self._policy.wait(self._failures, told, now - self._first, CHANCE) if again else None
        if seconds is None:
            error.attempts = self._failures
            raise error
        return seconds
