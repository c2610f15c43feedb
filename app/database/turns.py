"""Waiting without a connection (DESIGN 2).

Writers of one repository queue here, in memory, before they take a connection: at most one connection of
the process waits for any one repository's lock, and at most four wait for such locks in all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from gevent.lock import BoundedSemaphore

from app.errors import Unavailable

WAITING_CONNECTIONS = 4


class RepositoryTurns:
    """First come, first served, for each repository; `wait_seconds` bounds the wait."""

    def __init__(self, wait_seconds: float = 30.0) -> None:
        self._wait_seconds = wait_seconds
        self._turns: dict[int, tuple[BoundedSemaphore, int]] = {}
        self.waiting_slots = BoundedSemaphore(WAITING_CONNECTIONS)

    @contextlib.contextmanager
    def of(self, repository_ids: Sequence[int]) -> Iterator[None]:
        """Hold the turns of all of them. Raises Unavailable when one does not come in time."""
        with contextlib.ExitStack() as stack:
            for repository_id in sorted(set(repository_ids)):
                stack.enter_context(self._one(repository_id))
            yield

    @contextlib.contextmanager
    def _one(self, repository_id: int) -> Iterator[None]:
        turn, users = self._turns.get(repository_id, (BoundedSemaphore(1), 0))
        self._turns[repository_id] = (turn, users + 1)
        try:
            if not turn.acquire(timeout=self._wait_seconds):
                raise Unavailable("many changes of this repository are waiting; try again shortly")
            try:
                yield
            finally:
                turn.release()
        finally:
            turn, users = self._turns[repository_id]
            if users == 1:
                del self._turns[repository_id]
            else:
                self._turns[repository_id] = (turn, users - 1)
