"""A pool whose connections go to who waited longest.

SQLAlchemy's own gives one that comes free to whoever asks next, so on a busy server some wait for seconds while most do not wait at all.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from gevent.event import AsyncResult
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool
from sqlalchemy.util.queue import Empty, Full, QueueCommon

# As of SQLAlchemy's own pools: below that they tell each of their steps.
logging.getLogger(f"{__name__}.FairPool").setLevel(logging.WARNING)


class FairQueue(QueueCommon[ConnectionPoolEntry]):
    """Of the greenlets of one thread. What is put in is handed to the first that waits; nobody who comes later can take it."""

    def __init__(self, maxsize: int = 0, use_lifo: bool = False) -> None:
        self.maxsize = maxsize
        self.use_lifo = use_lifo
        self._items: deque[ConnectionPoolEntry] = deque()
        self._waiting: deque[AsyncResult[ConnectionPoolEntry]] = deque()

    def empty(self) -> bool:
        return not self._items

    def full(self) -> bool:
        return 0 < self.maxsize <= len(self._items)

    def qsize(self) -> int:
        return len(self._items)

    def put_nowait(self, item: ConnectionPoolEntry) -> None:
        self.put(item)

    def put(self, item: ConnectionPoolEntry, block: bool = True, timeout: float | None = None) -> None:
        """Never waits. Raises Full."""
        if self._waiting:
            self._waiting.popleft().set(item)
        elif self.full():
            raise Full
        else:
            self._items.append(item)

    def get_nowait(self) -> ConnectionPoolEntry:
        return self.get(block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> ConnectionPoolEntry:
        """Raises Empty when there is none, or none came in time (seconds)."""
        if self._items:
            return self._items.pop() if self.use_lifo else self._items.popleft()
        if not block:
            raise Empty
        return self._wait(timeout)

    def _wait(self, timeout: float | None) -> ConnectionPoolEntry:
        mine: AsyncResult[Any] = AsyncResult()
        self._waiting.append(mine)
        try:
            mine.wait(timeout)
        except BaseException:
            self._leave(mine)
            raise
        if not mine.ready():
            self._leave(mine)
            raise Empty
        item: ConnectionPoolEntry = mine.value
        return item

    def _leave(self, waiting: AsyncResult[ConnectionPoolEntry]) -> None:
        """Whoever is stopped may have been handed one already."""
        if waiting.ready():
            self.put(waiting.value)
        else:
            self._waiting.remove(waiting)


class FairPool(QueuePool):
    """SQLAlchemy's pool with that queue."""

    _queue_class = FairQueue
