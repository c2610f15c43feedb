"""What clients may see of something that is opened and closed again and again, and whether anybody saw more (promises 1 and 2, C8).

In each cycle a file gets its next number while it is closed, and a fresh file with that number is stored beside it, of which no memory
can know. Then it is opened, and closed. So for each answer that has a number it is known when it was allowed: not before the opening was
asked for, and not after the answer to the closing (in the process that wrote), or not later than a bound after it (in the others).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import gevent

from tests.support import pace
from tests.support.lines import Line
from tests.support.visibility import CHANGES, Act, Stage

PAUSE_SECONDS = 0.005
Credential = Callable[[Stage], str | None]


@dataclass(frozen=True)
class Door:
    """Something that can be opened and closed, and who stands before it: the name of a token of the stage, or null."""

    name: str
    path: str
    open: Act
    close: Act
    who: str | None


def door(name: str, path: str, who: str | None) -> Door:
    """Of a row of the changes: to make it closes, to undo it opens."""
    change = next(each for each in CHANGES if each.name == name)
    return Door(name, path, change.undo, change.make, who)


DOORS = (
    door("public flag", "/raw/open/public", None),
    door("token revoked", "/raw/open/token", "token"),
    door("user disabled", "/raw/closed/user", "bob"),
    door("role", "/raw/closed/role", "ann"),
    door("anonymous switch", "/raw/open/anonymous", None),
)


@dataclass(frozen=True)
class Sight:
    """Somebody got that number from that process, between these moments."""

    line: Line
    number: int
    began: float
    ended: float


@dataclass
class Timeline:
    """One door, written through `writer`."""

    stage: Stage
    door: Door
    writer: Line
    opened: dict[int, float] = field(default_factory=dict)
    closed: dict[int, float] = field(default_factory=dict)
    sights: list[Sight] = field(default_factory=list)
    asked: int = 0
    faults: list[str] = field(default_factory=list)
    number: int = 0
    # Whether they look for the fresh file too: nobody finds it without asking the database, which tells what else is new.
    fresh: bool = True

    # -- cycles

    def close(self) -> None:
        self.door.close(self.stage, self.writer)
        if self.number in self.opened:
            self.closed[self.number] = time.monotonic()

    def open(self) -> None:
        """With the next number, which was stored while it was closed."""
        self.renew()
        self.opened[self.number] = time.monotonic()
        self.door.open(self.stage, self.writer)

    def renew(self) -> None:
        number = self.number + 1
        self.stage.put(self.writer, self.door.path, b"%d" % number)
        self.stage.put(self.writer, f"{self.door.path}-{number}", b"%d" % number)
        self.number = number

    def cycle(self, longest: float) -> None:
        self.open()
        gevent.sleep(random.random() * longest)
        self.close()

    # -- those before the door

    @contextmanager
    def watched(self, lines: Sequence[Line], each: int = 1) -> Iterator[None]:
        """By so many clients at each process. Fails when one of them did."""
        pace.now()
        own = [Line(line.server, line.worker) for line in lines for _ in range(each)]
        watchers = [gevent.spawn(self._watch, line) for line in own]
        try:
            yield
        finally:
            gevent.killall(watchers)
            for line in own:
                line.close()
        assert not self.faults, self.faults[:3]

    def _watch(self, line: Line) -> None:
        while True:
            try:
                self._look(line, self.door.path)
                if self.fresh:
                    self._look(line, f"{self.door.path}-{self.number}")
            except Exception as error:
                self.faults.append(f"{line.label}: {error!r}")
                return
            gevent.sleep(PAUSE_SECONDS)

    def _look(self, line: Line, path: str) -> None:
        who = None if self.door.who is None else self.stage.memory[self.door.who]
        began = time.monotonic()
        answer = line.get(path, who)
        self.asked += 1
        if answer.status == 200:
            self.sights.append(Sight(line, int(answer.body), began, time.monotonic()))
        elif answer.status not in {401, 403, 404}:
            self.faults.append(f"{line.label}: {answer.status} {answer.body!r}")

    # -- what must be true

    def is_seen_by(self, lines: Sequence[Line]) -> bool:
        """Whether each process has shown the present number."""
        return {each.line.worker for each in self.sights if each.number == self.number} >= {each.worker for each in lines}

    @property
    def is_shown(self) -> bool:
        """Whether somebody got something just now."""
        return bool(self.sights) and time.monotonic() - self.sights[-1].ended < 1

    def wrong(self, bound: float) -> list[str]:
        """What somebody saw who must not; `bound` is in seconds, for those that did not write, and grants what the machine took."""
        found = []
        for sight in self.sights:
            closed = self.closed.get(sight.number, sight.began)
            allowed = 0.0 if sight.line.worker == self.writer.worker else bound + pace.lost(closed, sight.began)
            if sight.ended < self.opened.get(sight.number, sight.ended + 1):
                found.append(f"{self.door.name}: {sight.line.label} showed {sight.number} before it was opened")
            late = sight.began - closed
            if late > allowed:
                found.append(f"{self.door.name}: {sight.line.label} showed {sight.number} {late:.3f} s after it was closed")
        return found

    @property
    def latest(self) -> float:
        """The longest that a process showed what was closed, in seconds."""
        return max((each.began - self.closed[each.number] for each in self.sights if each.number in self.closed), default=0.0)
