"""The pace of what is sent, where a budget of bytes per second is set (ARKVORY_DOWNLOAD_BYTES_PER_SECOND).

A bucket fills at the rate that this process has; whoever wants to send takes from it. Clients take turns, by the same key as upload
places: one with ten connections gets what one with a single connection does. What a slow client cannot take is given back, so
that the others have it.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

import gevent
from gevent.event import AsyncResult

from app.cluster.shares import Wish

# Of the rate, how much may lie in the bucket; and how much goes out in one turn, within bounds in bytes.
BURST_SECONDS = 0.1
TURN_SECONDS = 0.02
LEAST_TURN = 16 * 1024
LARGEST_TURN = 1024 * 1024
# Without a rate of its own, when a process looks again.
LOOK_SECONDS = 0.05


class Lane:
    """One client's way out."""

    __slots__ = ("_key", "_pacing")

    def __init__(self, pacing: Pacing, key: str) -> None:
        self._pacing = pacing
        self._key = key

    def take(self, wanted: int) -> int:
        """Wait for a turn; how many bytes may go out now, of those wanted at least one."""
        return self._pacing.take(self._key, wanted)

    def give_back(self, count: int) -> None:
        """Bytes that did not go out after all."""
        self._pacing.give_back(self._key, count)


class Pacing:
    """Of one process; `rate` tells how many bytes per second it may send now."""

    def __init__(self, rate: Callable[[], float]) -> None:
        self.rate = rate
        self._tokens = 0.0
        self._filled_at = time.monotonic()
        self._queues: OrderedDict[str, deque[tuple[int, AsyncResult]]] = OrderedDict()
        self._handing_out: gevent.Greenlet | None = None
        # Since the last report: who had to wait, and what each sent.
        self._waited: set[str] = set()
        self._sent: Counter[str] = Counter()
        self._reported_at = self._filled_at

    def lane(self, key: str) -> Lane:
        return Lane(self, key)

    def take(self, key: str, wanted: int) -> int:
        self._fill()
        if self._tokens > 0 and not self._queues:
            return self._grant(key, wanted)
        self._waited.add(key)
        turn = AsyncResult()
        self._queues.setdefault(key, deque()).append((wanted, turn))
        if self._handing_out is None:
            self._handing_out = gevent.spawn(self._hand_out)
        try:
            return int(turn.get())
        except BaseException:
            self._give_up(key, wanted, turn)
            raise

    def give_back(self, key: str, count: int) -> None:
        self._tokens += count
        self._sent[key] -= count

    def report(self) -> Wish:
        """Since the last one: who wants more than there was, and what the others sent, in bytes per second."""
        now = time.monotonic()
        hungry = self._waited | set(self._queues)
        # Below nothing, where more was given back than was taken since.
        calm = max(0, sum(count for key, count in self._sent.items() if key not in hungry))
        wish = Wish(frozenset(hungry), calm / max(now - self._reported_at, 0.001))
        self._waited, self._sent, self._reported_at = set(), Counter(), now
        return wish

    @property
    def _turn_bytes(self) -> int:
        return int(min(max(self.rate() * TURN_SECONDS, LEAST_TURN), LARGEST_TURN))

    def _fill(self) -> None:
        now, rate = time.monotonic(), self.rate()
        most = max(rate * BURST_SECONDS, self._turn_bytes)
        self._tokens = min(most, self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now

    def _grant(self, key: str, wanted: int) -> int:
        """What is taken beyond the bucket's bottom is waited for before the next one takes."""
        count = min(wanted, self._turn_bytes)
        self._tokens -= count
        self._sent[key] += count
        return count

    def _hand_out(self) -> None:
        while self._queues:
            self._fill()
            if self._tokens <= 0:
                rate = self.rate()
                gevent.sleep(min((1 - self._tokens) / rate, LOOK_SECONDS) if rate > 0 else LOOK_SECONDS)
                continue
            key, queue = next(iter(self._queues.items()))
            wanted, turn = queue.popleft()
            self._queues.move_to_end(key)
            if not queue:
                del self._queues[key]
            turn.set(self._grant(key, wanted))
            # It sends, and stands in line again before the next one is chosen.
            gevent.sleep(0)
        self._handing_out = None

    def _give_up(self, key: str, wanted: int, turn: AsyncResult) -> None:
        if turn.ready():
            self.give_back(key, int(turn.get()))
            return
        queue = self._queues[key]
        queue.remove((wanted, turn))
        if not queue:
            del self._queues[key]
