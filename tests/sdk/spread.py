"""How 200 clients that were refused together come back, on a clock that only the simulation turns.

    python -m tests.sdk.spread           prints the tables of sdk/README.md

The clients are those of the library: `Retry.wait` decides, with a generator that has a seed. The server has the places, the patience and
the `Retry-After` of Arkvory's: whoever gets no place within the patience is answered 429.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from app.errors import TooManyUploads
from app.http.errors import headers_of
from arkvory.errors import seconds_of
from arkvory.retry import Retry
from config.settings import SETTINGS

CLIENTS = 200
SEED = 2026
# Seconds that an upload moves its bytes.
MOVING = 2.0
_DEFAULTS = {each.variables[0]: each.default for each in SETTINGS}
PLACES = int(_DEFAULTS["ARKVORY_MAX_UPLOADS"])
PATIENCE = float(_DEFAULTS["ARKVORY_PLACE_WAIT_SECONDS"])
RETRY_AFTER = float(seconds_of(headers_of(TooManyUploads("all places are taken"))["Retry-After"], None) or 0)
POLICY = Retry()


class NoShare(random.Random):
    """Chance that adds nothing: everybody comes back when the server said."""

    def uniform(self, a: float, b: float) -> float:
        return a


@dataclass
class Run:
    """`arrivals` are all moments at which a client asked, `ended` those at which one was through; `given_up` had no attempt left."""

    arrivals: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    refused: int = 0
    given_up: int = 0

    @property
    def crowd(self) -> int:
        """The most that came back within a tenth of a second."""
        back = [each for each in self.arrivals if each > 0]
        return max(Counter(int(each * 10) for each in back).values(), default=0)


class World:
    """Clients, places, and a queue of what happens next."""

    def __init__(self, chance: random.Random) -> None:
        self.run = Run()
        self._chance = chance
        self._next: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._free = PLACES
        self._waiting: deque[Client] = deque()

    def at(self, moment: float, what: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._next, (moment, self._count, what))

    def turn(self) -> Run:
        for _ in range(CLIENTS):
            Client(self).ask(0.0)
        while self._next:
            moment, _, what = heapq.heappop(self._next)
            what(moment)
        return self.run

    def wait_for_place(self, client: Client, now: float) -> None:
        self.run.arrivals.append(now)
        self._waiting.append(client)
        self.at(now + PATIENCE, client.lose_patience)
        self._hand_out(now)

    def refuse(self, client: Client, now: float) -> float | None:
        """Seconds after which the client comes back."""
        self._waiting.remove(client)
        self.run.refused += 1
        return POLICY.wait(client.failures, RETRY_AFTER, now - client.first_failure, self._chance)

    def _hand_out(self, now: float) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().waiting = False
            self.at(now + MOVING, self._end)

    def _end(self, now: float) -> None:
        self._free += 1
        self.run.ended.append(now)
        self._hand_out(now)


@dataclass(eq=False)
class Client:
    world: World
    failures: int = 0
    first_failure: float = 0.0
    waiting: bool = False

    def ask(self, now: float) -> None:
        self.waiting = True
        self.world.wait_for_place(self, now)

    def lose_patience(self, now: float) -> None:
        if not self.waiting:
            return
        self.waiting = False
        self.first_failure = self.first_failure if self.failures else now
        self.failures += 1
        pause = self.world.refuse(self, now)
        if pause is None:
            self.world.run.given_up += 1
        else:
            self.world.at(now + pause, self.ask)


def simulated(share: bool) -> Run:
    return World(random.Random(SEED) if share else NoShare()).turn()


def tables() -> Iterator[str]:
    """Markdown: the first return of those who were refused together, and the whole run."""
    without, shared = simulated(False), simulated(True)
    first = PATIENCE + RETRY_AFTER
    yield "| seconds after the refusal | clients without the share | clients with it |"
    yield "| --- | --- | --- |"
    for number in range(5):
        start = first + number * RETRY_AFTER / 10
        counts = [sum(start <= each < start + RETRY_AFTER / 10 for each in run.arrivals) for run in (without, shared)]
        yield f"| {start - PATIENCE:.1f} to {start - PATIENCE + RETRY_AFTER / 10:.1f} | {counts[0]} | {counts[1]} |"
    yield ""
    yield "| whole run | without the share | with it |"
    yield "| --- | --- | --- |"
    rows: list[tuple[str, Callable[[Run], str]]] = [
        ("most that come back within 0.1 s", lambda run: str(run.crowd)),
        ("refusals in all", lambda run: str(run.refused)),
        ("clients that had to give up", lambda run: str(run.given_up)),
        ("all through after", lambda run: f"{max(run.ended):.1f} s"),
        ("slowest against median", lambda run: f"{max(run.ended) / statistics.median(run.ended):.2f}"),
    ]
    for title, of in rows:
        yield f"| {title} | {of(without)} | {of(shared)} |"


if __name__ == "__main__":
    print("\n".join(tables()))
