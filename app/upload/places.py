"""Places: the right to move bytes into the server now (DESIGN 5).

Waiting holds neither lock nor connection. Keys take turns: a client with a hundred uploads waiting gets
one place, then the next client does.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator

from gevent.event import Event

from app.errors import TooManyUploads


class Places:
    """`total` at once, `per_key` for one token, user or address; a wait ends after `wait_seconds`."""

    def __init__(self, total: int, per_key: int, wait_seconds: float) -> None:
        self.total = total
        self.per_key = per_key
        self._wait_seconds = wait_seconds
        self._used: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[Event]] = OrderedDict()

    @property
    def used(self) -> int:
        return self._used.total()

    @property
    def held(self) -> int:
        """Places by which bytes may move."""
        return self.used

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    @contextlib.contextmanager
    def take(self, key: str) -> Iterator[None]:
        """Hold a place. Raises TooManyUploads when none came free in time."""
        self._acquire(key)
        try:
            yield
        finally:
            self._free(key)

    def _acquire(self, key: str) -> None:
        turn = Event()
        self._queues.setdefault(key, deque()).append(turn)
        self._hand_out()
        try:
            granted = turn.wait(self._wait_seconds)
        except BaseException:
            self._give_up(key, turn)
            raise
        if not granted and not turn.is_set():
            self._give_up(key, turn)
            raise self._all_taken()

    def _all_taken(self) -> TooManyUploads:
        return TooManyUploads(f"all {self.total} upload places ({self.per_key} for one client) are taken; try again shortly")

    def renew(self) -> None:
        """Called regularly; what is held in memory does not run out."""

    def _give_up(self, key: str, turn: Event) -> None:
        if turn.is_set():
            # Granted in the very moment it was given up: hand it on.
            self._free(key)
            return
        queue = self._queues[key]
        queue.remove(turn)
        if not queue:
            del self._queues[key]

    def _free(self, key: str) -> None:
        self._used[key] -= 1
        if not self._used[key]:
            del self._used[key]
        self._hand_out()

    def _hand_out(self) -> None:
        while self.used < self.total:
            key = next((each for each in self._queues if self._used[each] < self.per_key), None)
            if key is None:
                return
            queue = self._queues[key]
            queue.popleft().set()
            self._used[key] += 1
            if queue:
                self._queues.move_to_end(key)
            else:
                del self._queues[key]
