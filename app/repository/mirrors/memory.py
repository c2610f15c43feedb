"""How much of lists may be in memory at once, whatever the number of mirrors that this process runs and of lists that each reads."""

from __future__ import annotations

import time

from gevent.event import Event

from app.errors import TooManyUploads

# Shorter ones are not counted: they take it from nobody.
LITTLE = 1024 * 1024
MOST_BYTES = 96 * 1024 * 1024
WAIT_SECONDS = 60.0


class Room:
    """Bytes, which whoever has a long list takes before the rest of it comes."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._freed = Event()

    def take(self, size: int) -> int:
        """How much was taken: all that there is, of more. Raises TooManyUploads where none comes free in time."""
        size = min(size, self._most)
        until = time.monotonic() + WAIT_SECONDS
        while self._left < size:
            self._freed.clear()
            if not self._freed.wait(max(0.0, until - time.monotonic())):
                raise TooManyUploads("other long lists of upstreams are being read; this one waits", retry_after=10)
        self._left -= size
        return size

    def give_back(self, size: int) -> None:
        self._left += size
        self._freed.set()


room = Room(MOST_BYTES)
