"""Waiting in memory, in turns; above all without a connection (DESIGN 2). And work in memory that lets others have their turns.

Writers of one repository queue here, in memory, before they take a connection: at most one connection of
the process waits for any one repository's lock, and at most four wait for such locks in all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import gevent
from gevent.lock import BoundedSemaphore

from app.errors import Unavailable

WAITING_CONNECTIONS = 4
# As long as a statement may run: who has the turn before may have nothing better to do than to wait for a database that says nothing.
TURN_SECONDS = 30.0
# A millisecond or so of work.
PACE = 1_000

T = TypeVar("T")


def paced(items: Iterable[T]) -> Iterator[T]:
    """The same items: after each thousand others get their turns. What is iterated over must not change meanwhile."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % PACE:
            gevent.sleep(0)


class Turns:
    """First come, first served, for each key: `at_once` have their turn, the others wait for at most `wait_seconds`."""

    def __init__(self, at_once: int, wait_seconds: float, too_late: str) -> None:
        self._at_once = at_once
        self._wait_seconds = wait_seconds
        self._too_late = too_late
        self._turns: dict[Hashable, tuple[BoundedSemaphore, int]] = {}

    @contextlib.contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """Hold a turn. Raises Unavailable, in the words `too_late`, when it does not come in time."""
        turn, users = self._turns.get(key, (BoundedSemaphore(self._at_once), 0))
        self._turns[key] = (turn, users + 1)
        try:
            if not turn.acquire(timeout=self._wait_seconds):
                raise Unavailable(self._too_late)
            try:
                yield
            finally:
                turn.release()
        finally:
            turn, users = self._turns[key]
            if users == 1:
                del self._turns[key]
            else:
                self._turns[key] = (turn, users - 1)


class RepositoryTurns:
    """First come, first served, for each repository; `wait_seconds` bounds each wait."""

    def __init__(self, wait_seconds: float = TURN_SECONDS) -> None:
        self._turns = Turns(1, wait_seconds, "many changes of this repository are waiting; try again shortly")
        self._slots = Turns(WAITING_CONNECTIONS, wait_seconds, "many changes are waiting for the database; try again shortly")

    @contextlib.contextmanager
    def of(self, repository_ids: Sequence[int]) -> Iterator[None]:
        """Hold the turns of all of them. Raises Unavailable when one does not come in time."""
        with contextlib.ExitStack() as stack:
            for repository_id in sorted(set(repository_ids)):
                stack.enter_context(self._turns.of(repository_id))
            yield

    def slot(self) -> contextlib.AbstractContextManager[None]:
        """For as long as its connection may wait for a lock. Raises Unavailable when none comes free in time."""
        return self._slots.of("slot")
