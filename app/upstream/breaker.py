"""When an upstream is left alone: it asked for it, or it has failed again and again.

One `Line` for each upstream and process: its breaker and its connections. The breaker opens after some failures in a row; when its time
is over one request tries, and what becomes of that one decides.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import gevent
from gevent.lock import BoundedSemaphore

from app.errors import UpstreamBusy, UpstreamFailed

log = logging.getLogger(__name__)

FAILURES = 5
OPEN_SECONDS = 10.0
LONGEST_PAUSE = 300.0
# A pause that is over so soon is waited for, where there is nothing else to answer with.
WAITED_SECONDS = 3.0
CONNECTION_WAIT_SECONDS = 10.0
PLACE_WAIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, and when; it need not count against the upstream: it may have refused the credentials."""

    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Condition:
    """How this process gets along with an upstream.

    `state` is the breaker's; `until`: when it is asked again (null: now), `failures`: in a row. Connections are those in use, and the most.
    """

    state: str
    until: datetime | None
    failures: int
    last_failure: Failure | None
    connections: int
    most_connections: int


class Breaker:
    """`closed`, `open` or `half-open`; or `paused`, as the upstream wished."""

    def __init__(self, name: str) -> None:
        # Of the repository, for the log and the metrics.
        self.name = name
        self.last_failure: Failure | None = None
        # Answers that were none, since the start.
        self.disappointments = 0
        self._failures = 0
        self._until = 0.0
        self._paused_until = 0.0
        self._trying = False

    @property
    def state(self) -> str:
        now = time.monotonic()
        if self._paused_until > now:
            return "paused"
        if self._failures < FAILURES:
            return "closed"
        return "open" if self._until > now else "half-open"

    @property
    def leaves_alone(self) -> bool:
        return self.state in {"open", "paused"}

    @property
    def failures(self) -> int:
        """In a row."""
        return self._failures

    @property
    def until(self) -> datetime | None:
        """When it is asked again; null where that may be now."""
        seconds = max(self._paused_until, self._until if self._failures >= FAILURES else 0.0) - time.monotonic()
        return datetime.now(UTC) + timedelta(seconds=seconds) if seconds > 0 else None

    def admit(self, patient: bool) -> None:
        """Returns when a request may be sent; `patient`: a short pause is waited for. Raises UpstreamBusy."""
        latest = time.monotonic() + WAITED_SECONDS
        # A sleep may end a moment too early: the loop's own clock lags behind.
        while patient and self._paused_until <= latest and (pause := self._paused_until - time.monotonic()) > 0:
            gevent.sleep(pause)
        state = self.state
        if state == "paused":
            raise UpstreamBusy("the upstream asked for a pause; try again shortly", _whole(self._paused_until))
        if state == "open":
            raise UpstreamBusy("the upstream failed several times in a row and is left alone for a moment", _whole(self._until))
        if state == "half-open":
            if self._trying:
                raise UpstreamBusy("the upstream is just being tried again", 1)
            self._trying = True

    def succeeded(self) -> None:
        """It answered, whatever it said."""
        if self._failures >= FAILURES:
            log.info("upstream %s answers again", self.name)
        self._failures, self._trying = 0, False

    def failed(self) -> None:
        self._trying = False
        self._failures += 1
        if self._failures >= FAILURES:
            log.warning("upstream %s failed %d times in a row: left alone for %g s", self.name, self._failures, OPEN_SECONDS)
            self._until = time.monotonic() + OPEN_SECONDS

    def remember(self, reason: str) -> None:
        """What went wrong, whoever's fault it was."""
        self.last_failure = Failure(datetime.now(UTC), reason)
        self.disappointments += 1

    def given_up(self) -> None:
        """Nobody waited for the answer."""
        self._trying = False

    def pause(self, seconds: float) -> None:
        """It asked for it (Retry-After, RateLimit-Reset)."""
        self._paused_until = max(self._paused_until, time.monotonic() + min(max(seconds, 0.0), LONGEST_PAUSE))


def _whole(until: float) -> int:
    return max(1, math.ceil(until - time.monotonic()))


class Line:
    """The breaker of an upstream and so many connections at once; `places` are those of all upstreams together.

    `address` is the upstream's, known since the repository's metadata epoch `described`.
    """

    def __init__(
        self, name: str, connections: int, places: BoundedSemaphore | None = None, *, address: str = "", described: int = 0
    ) -> None:
        self.breaker = Breaker(name)
        self.connections = connections
        self.address, self.described = address, described
        self._places = places
        self._free = BoundedSemaphore(connections)

    @contextlib.contextmanager
    def connection(self, patient: bool) -> Iterator[None]:
        """Hold one of them. Raises UpstreamBusy."""
        self.breaker.admit(patient)
        try:
            # The place last, so that who waits for a slow upstream takes none from those who ask another one.
            with self._one_of_its_own(patient), self._place(), self._remembered():
                yield
        finally:
            # Also of whoever is told to end before anything was asked.
            self.breaker.given_up()

    @contextlib.contextmanager
    def _one_of_its_own(self, patient: bool) -> Iterator[None]:
        free = self._free
        if not free.acquire(timeout=CONNECTION_WAIT_SECONDS if patient else 0.5):
            raise UpstreamBusy("all connections to the upstream are in use; try again shortly", 5)
        try:
            yield
        finally:
            free.release()

    @contextlib.contextmanager
    def _remembered(self) -> Iterator[None]:
        try:
            yield
        except UpstreamFailed as error:
            self.breaker.remember(error.message)
            raise

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        places = self._places
        if places is None:
            yield
            return
        if not places.acquire(timeout=PLACE_WAIT_SECONDS):
            raise UpstreamBusy("all places for fetches are taken; try again shortly", 5)
        try:
            yield
        finally:
            places.release()

    @property
    def condition(self) -> Condition:
        breaker, free = self.breaker, self._free
        used = self.connections - free.counter
        return Condition(breaker.state, breaker.until, breaker.failures, breaker.last_failure, used, self.connections)

    def resize(self, connections: int) -> None:
        """For those that come from now on."""
        if connections != self.connections:
            self.connections, self._free = connections, BoundedSemaphore(connections)
