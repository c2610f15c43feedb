"""Doors that are opened and closed very many times, to see whether any process ever answers late (promises 1 and 2, M1, M5).

Many doors of one kind at once, each changed through one process and asked for in all. Nothing is written but the change itself: nobody
loads anything that would tell of it, so what a process shows is what its memory believes. The doors are opened, mostly until every process
has shown each, and closed until every process has been asked for each after its bound; so each closing is looked at in each process.
Answers are judged as they come, by the moments of their door:

    opening asked for ... opening answered ... closing asked for ... closing answered ... opening asked for
         either is right       shown               either is right        refused

in the process that made the change at once, in the others after the bound (which grants what the machine took, tests.support.pace).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import gevent
from gevent.pool import Pool

from tests.support import pace
from tests.support.lines import Line
from tests.support.timeline import Door
from tests.support.visibility import Act, Stage

READERS = 2
# How many doors are moved at once.
MOVERS = 6
PAUSE_SECONDS = 0.004
# How often an opening is seen everywhere before it ends; else it is short, so that memories are filled while it ends.
SEEN = 0.75
SHORT_SECONDS = 0.03
PATIENCE_SECONDS = 30.0
REFUSED = {401, 403, 404}
MOST_FAULTS = 20


@dataclass
class Wing:
    """A door with its line to the process that changes it, and its moments; null where it has not come to them since it was moved last."""

    door: Door
    writer: Line
    opened: float | None = None
    closed: float | None = None
    # Processes that showed it since it was opened, and that were asked after their bound since it was closed.
    shown: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)


@dataclass
class Tally:
    """What was counted."""

    name: str
    closings: int = 0
    # Of those, until every process had been asked after its bound.
    lasting: int = 0
    answers: int = 0
    # Of those, about something closed: of the process that closed it, and of others after their bound.
    at_once: int = 0
    later: int = 0
    # The longest that another process showed what was closed, in seconds.
    latest: float = 0.0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.name}: closed {self.closings:,} times in {self.seconds:.0f} s, {self.lasting:,} of them for longer than the bound; "
            f"{self.answers:,} answers, {self.at_once:,} of who closed it, {self.later:,} of others after the bound; "
            f"the latest {self.latest * 1000:.0f} ms after it was closed"
        )

    def add(self, other: Tally) -> None:
        """What was counted beside it, of as many more installations."""
        for name in ("closings", "lasting", "answers", "at_once", "later"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latest, self.seconds = max(self.latest, other.latest), max(self.seconds, other.seconds)
        self.faults += other.faults

    @property
    def cells(self) -> list[str]:
        """Of a row of docs/consistency.md."""
        counts = (f"{each:,}" for each in (self.closings, self.lasting, self.answers, self.at_once, self.later))
        return [*counts, f"{self.latest * 1000:.0f} ms", f"{len(self.faults)}"]

    def fault(self, text: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(f"{self.name}: {text}")


class Flips:
    """`bound`: seconds that the processes have which did not write; `lasting`: share of closings that outlast it; `pause`: of each reader.

    All processes write, or only the first `writers`: where doors share one number, who writes hears of the others' changes by its own.
    """

    def __init__(
        self,
        stage: Stage,
        name: str,
        doors: Sequence[Door],
        bound: float,
        *,
        lasting: float = 1.0,
        writers: int | None = None,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self.stage = stage
        self.bound = bound
        self.tally = Tally(name)
        self._lasting = lasting
        self._pause = pause
        self._all = {each.worker for each in stage.lines}
        writing = stage.lines[:writers]
        self._wings = [Wing(door, _again(writing[number % len(writing)])) for number, door in enumerate(doors)]

    def run(self, closings: int, seconds: float) -> Tally:
        """Until so many were made, or so much time has gone, or something was wrong. The doors are open afterwards."""
        began = pace.now()
        with self._readers():
            while self.tally.closings < closings and time.monotonic() - began < seconds and not self.tally.faults:
                self._round()
        self.tally.seconds = time.monotonic() - began
        for each in self._wings:
            each.door.open(self.stage, each.writer)
            each.writer.close()
        return self.tally

    @contextmanager
    def _readers(self) -> Iterator[None]:
        lines = [_again(each) for each in self.stage.lines for _ in range(READERS)]
        reading = [gevent.spawn(self._read, each) for each in lines]
        try:
            yield
        finally:
            gevent.killall(reading)
            for each in lines:
                each.close()

    # -- who opens and closes

    def _round(self) -> None:
        """All of them together, so that memories are quiet and warm in between, whatever number the doors share."""
        self._each(self._open)
        if random.random() < SEEN:
            self._await(lambda wing: wing.shown >= self._all, "shown")
        else:
            gevent.sleep(random.random() * SHORT_SECONDS)
        self._each(self._close)
        if random.random() < self._lasting:
            self._await(lambda wing: wing.asked >= self._all, "asked for after its closing")
            self.tally.lasting += len(self._wings)
        else:
            gevent.sleep(random.random() * SHORT_SECONDS)

    def _each(self, move: Callable[[Wing], None]) -> None:
        moving = Pool(MOVERS)
        for each in self._wings:
            moving.spawn(move, each)
        moving.join(raise_error=True)

    def _open(self, wing: Wing) -> None:
        wing.closed = None
        wing.shown.clear()
        wing.door.open(self.stage, wing.writer)
        wing.opened = time.monotonic()

    def _close(self, wing: Wing) -> None:
        wing.opened = None
        wing.asked.clear()
        wing.door.close(self.stage, wing.writer)
        wing.closed = time.monotonic()
        self.tally.closings += 1
        # The very next request.
        self._look(wing.writer, wing)

    def _await(self, true: Callable[[Wing], bool], what: str) -> None:
        """That it is so of every door."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not self.tally.faults and (left := [each for each in self._wings if not true(each)]):
            if time.monotonic() > end:
                self.tally.fault(f"{left[0].door.path} was not {what} everywhere within {PATIENCE_SECONDS:g} s")
            gevent.sleep(0.01)

    # -- who asks

    def _read(self, line: Line) -> None:
        try:
            while True:
                for wing in random.sample(self._wings, len(self._wings)):
                    self._look(line, wing)
                    gevent.sleep(self._pause)
        except Exception as error:
            self.tally.fault(f"{line.label}: {error!r}")

    def _look(self, line: Line, wing: Wing) -> None:
        who = wing.door.who
        began = time.monotonic()
        status = line.glance(wing.door.path, None if who is None else self.stage.memory[who])
        self.tally.answers += 1
        if status == 200:
            self._showed(line, wing, began)
        elif status in REFUSED:
            self._refused(line, wing, began)
        else:
            self.tally.fault(f"{line.label}: {status}")

    def _bound(self, line: Line, wing: Wing) -> float:
        return 0.0 if line.worker == wing.writer.worker else self.bound

    def _granted(self, line: Line, wing: Wing, moved: float, began: float) -> float:
        return 0.0 if line.worker == wing.writer.worker else pace.lost(moved, began)

    def _showed(self, line: Line, wing: Wing, began: float) -> None:
        if wing.closed is None:
            wing.shown.add(line.worker)
            return
        late = began - wing.closed
        self.tally.latest = max(self.tally.latest, late)
        if late > self._bound(line, wing) + self._granted(line, wing, wing.closed, began):
            self.tally.fault(f"{line.label} showed {wing.door.path} {late:.3f} s after it was closed through {wing.writer.label}")

    def _refused(self, line: Line, wing: Wing, began: float) -> None:
        bound = self._bound(line, wing)
        if wing.opened is not None and began - wing.opened > bound + self._granted(line, wing, wing.opened, began):
            self.tally.fault(f"{line.label} refused {wing.door.path} {began - wing.opened:.3f} s after it was opened")
        if wing.closed is not None and began - wing.closed > bound:
            wing.asked.add(line.worker)
            if line.worker == wing.writer.worker:
                self.tally.at_once += 1
            else:
                self.tally.later += 1


def _again(line: Line) -> Line:
    """To the same process."""
    return Line(line.server, line.worker)


# -- the kinds, all closed at first


def public_flags(stage: Stage, count: int) -> Iterator[Door]:
    for number in range(count):
        name = f"flag-{number}"
        stage.call(stage.lines[0], "POST", "/repositories", {"name": name, "format": "raw", "public": False})
        stage.put(stage.lines[0], f"/raw/{name}/a", b"x")
        opening, closing = (_call("PATCH", f"/repositories/{name}", {"public": public}) for public in (True, False))
        yield Door("public flag", f"/raw/{name}/a", opening, closing, None)


def tokens(stage: Stage, count: int) -> Iterator[Door]:
    _room(stage, "for-tokens", "signed-in")
    for number in range(count):
        user = f"bearer-{number}"
        stage.call(stage.lines[0], "POST", "/users", {"name": user, "robot": True})
        # No token: refused.
        stage.memory[user] = "none"
        yield Door("token revoked", "/raw/for-tokens/a", _make_token(user), _revoke_token(user), user)


def users(stage: Stage, count: int) -> Iterator[Door]:
    _room(stage, "for-users", "signed-in")
    for number in range(count):
        user = _user(stage, f"user-{number}")
        opening, closing = (_call("PATCH", f"/users/{user}", {"disabled": disabled}) for disabled in (False, True))
        closing(stage, stage.lines[0])
        yield Door("user disabled", "/raw/for-users/a", opening, closing, user)


def roles(stage: Stage, count: int) -> Iterator[Door]:
    _room(stage, "for-roles", None)
    for number in range(count):
        user = _user(stage, f"holder-{number}")
        opening, closing = (_call(method, f"/roles/readers/holders/user:{user}") for method in ("PUT", "DELETE"))
        yield Door("role", "/raw/for-roles/a", opening, closing, user)


def anonymous_switch(stage: Stage, _count: int) -> Iterator[Door]:
    """There is one."""
    opening, closing = (_call("PATCH", "/installation", {"anonymous": anonymous}) for anonymous in (True, False))
    closing(stage, stage.lines[0])
    yield Door("anonymous switch", "/raw/open/a", opening, closing, None)


KINDS: dict[str, Callable[[Stage, int], Iterator[Door]]] = {
    "public flag": public_flags,
    "token revoked": tokens,
    "user disabled": users,
    "role": roles,
    "anonymous switch": anonymous_switch,
}


def _call(method: str, path: str, body: object = None) -> Act:
    return lambda stage, line: stage.call(line, method, path, body)


def _room(stage: Stage, name: str, subject: str | None) -> None:
    """A private repository with a file, which that subject may read."""
    line = stage.lines[0]
    stage.call(line, "POST", "/repositories", {"name": name, "format": "raw", "public": False})
    stage.put(line, f"/raw/{name}/a", b"x")
    if subject is not None:
        stage.call(line, "POST", f"/repositories/{name}/rules", {"subject": subject, "permissions": ["read"]})


def _user(stage: Stage, name: str) -> str:
    """With a token."""
    stage.call(stage.lines[0], "POST", "/users", {"name": name, "robot": True})
    _make_token(name)(stage, stage.lines[0])
    return name


def _make_token(user: str) -> Act:
    def act(stage: Stage, line: Line) -> None:
        made = stage.call(line, "POST", "/tokens", {"name": f"of {user}", "permissions": ["read"], "user": user}).json()
        stage.memory[user], stage.memory[f"{user} id"] = made["token"], made["id"]

    return act


def _revoke_token(user: str) -> Act:
    return lambda stage, line: stage.call(line, "DELETE", f"/tokens/{stage.memory[f'{user} id']}")
