"""Everything at once for as long as one likes: clients of all formats that remember what they were told, and a weather that kills.

Each client owns what it writes, so it knows what may be there: after an answer exactly one thing, after a connection that broke the old
or the new. Whatever else it sees is a fault. Faults are collected and not raised: all of them tell more than the first.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import re
import signal
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gevent
import requests
from sqlalchemy.exc import SQLAlchemyError

from app.database import embedded
from tests.protocols.pypi.packages import CONTENT_TYPE, form_of, wheel_members, zip_of
from tests.support.database import start, take_down
from tests.support.house import House
from tests.support.server import Server

PATIENCE = 60.0
RECOVERY_SECONDS = 60.0
REST_SECONDS = 150.0
# The server ends those that rest for 15 s.
REST_OF_A_LINE_SECONDS = 8.0
MOST_FAULTS = 50
# As some CI does: mostly small, sometimes large.
SIZES = (0, 10, 2_000, 2_000, 30_000, 30_000, 300_000, 3_000_000)
LIVE, GONE = 30, 30


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def is_later(self) -> bool:
        """Not now, as one that has no room for the request says it."""
        return self.status in (429, 503)


@dataclass
class Thing:
    """A path of one client's: the digests that may be there now (null: nothing is) and whether it may be held."""

    repository: str
    path: str
    address: str
    bodies: set[str | None] = field(default_factory=lambda: {None})
    held: set[bool] = field(default_factory=lambda: {False})

    @property
    def is_shown(self) -> bool | None:
        """Whether an index has to show it; null when either is right."""
        if self.bodies == {None} or self.held == {True}:
            return False
        return True if None not in self.bodies and self.held == {False} else None

    def see(self, answer: Answer) -> str | None:
        """What is wrong with this answer to a GET, if anything; the thing is known better afterwards."""
        if answer.status == 200 and sha256(answer.body) in self.bodies and False in self.held:
            self.bodies, self.held = {sha256(answer.body)}, {False}
        elif answer.status == 404 and None in self.bodies:
            self.bodies = {None}
        elif answer.status == 403 and True in self.held and self.bodies != {None}:
            self.bodies.discard(None)
            self.held = {True}
        else:
            return f"{answer.status} with {sha256(answer.body)[:8]}, expected one of {self.bodies}, held {self.held}"
        return None


class World:
    """What all share: the server, the counts and the faults. `is_calm`: nothing is being killed, so nothing may break.

    `is_resting`: nobody begins anything; `busy` are those that are still at it.
    """

    def __init__(self, server: Server, authorization: str) -> None:
        self.server = server
        self.authorization = authorization
        self.is_calm = False
        self.is_resting = False
        self.is_over = False
        self.busy = 0
        self.done: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.faults: list[str] = []
        self.stored = 0

    def fault(self, text: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(f"{time.strftime('%H:%M:%S')} {text}")

    @contextlib.contextmanager
    def busily(self) -> Iterator[None]:
        """What is done inside is awaited by who wants rest, and begins after it."""
        while self.is_resting:
            gevent.sleep(0.05)
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Nobody is at anything inside."""
        self.is_resting = True
        try:
            deadline = time.monotonic() + REST_SECONDS
            while self.busy and time.monotonic() < deadline:
                gevent.sleep(0.05)
            if self.busy:
                self.fault(f"{self.busy} clients come to no end within {REST_SECONDS:.0f} s although nothing is killed")
            yield
        finally:
            self.is_resting = False


class Line:
    """One connection to the server, made again when it breaks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._connection: http.client.HTTPConnection | None = None
        self._used_at = 0.0

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer | None:
        """Null when the connection broke: nobody knows what became of it."""
        world = self._world
        given = {"Authorization": world.authorization, **{name.replace("_", "-"): value for name, value in headers.items()}}
        calm = world.is_calm
        try:
            answer, retry_after = self._exchange(method, path, body, given)
        except TimeoutError:
            self.hang_up()
            world.fault(f"{method} {path}: no answer within {PATIENCE:.0f} s")
            return None
        except (OSError, http.client.HTTPException) as error:
            self.hang_up()
            world.statuses[0] += 1
            if calm and world.is_calm:
                world.fault(f"{method} {path}: {error!r} although nothing was killed")
            gevent.sleep(0.05)
            return None
        world.statuses[answer.status] += 1
        if answer.status >= 500 and (answer.status != 503 or not retry_after):
            world.fault(f"{method} {path}: {answer.status} {answer.body[:200]!r}")
        return answer

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[Answer, bool]:
        if time.monotonic() > self._used_at + REST_OF_A_LINE_SECONDS:
            self.hang_up()
        self._used_at = time.monotonic()
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._world.server.port, timeout=PATIENCE)
        # Who is answered before the body was read has an answer.
        with contextlib.suppress(BrokenPipeError):
            self._connection.request(method, path, body, headers)
        got = self._connection.getresponse()
        return Answer(got.status, got.read(), dict(got.headers.items())), "Retry-After" in got.headers

    def hang_up(self) -> None:
        """What comes next goes over a fresh connection: the server ends those that rest."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Client:
    """Does random things with what it owns until the world is over; a class for each format says how."""

    repository = ""
    format = ""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.random = random.Random(f"{self.format} {number}")
        self.line = Line(world)
        self.things: list[Thing] = []
        self.gone: list[Thing] = []
        self._count = 0
        self._actions = {self.store: 6, self.get: 8, self.index: 3, self.delete: 2, self.hold: 1, self.release: 2}

    def run(self) -> None:
        while not self.world.is_over:
            with self.world.busily():
                (action,) = self.random.choices(list(self._actions), list(self._actions.values()))
                if self.things or action == self.store:
                    action()
                    self.world.done[f"{self.repository.removeprefix('storm-')} {action.__name__}"] += 1
            gevent.sleep(self.random.random() * 0.02)

    def finish(self) -> None:
        """Bring to an end what may change something by itself."""

    # What differs

    def send(self, thing: Thing, body: bytes) -> Answer | None:
        """Publish; the path is free, or it may be overwritten."""
        raise NotImplementedError

    def new(self) -> tuple[Thing, bytes]:
        """What to publish next."""
        raise NotImplementedError

    def listed(self) -> set[str] | None:
        """The paths of the things that an index shows; null when it was not answered."""
        raise NotImplementedError

    # What is done

    def body(self) -> bytes:
        return os.urandom(self.random.choice(SIZES))

    def store(self) -> None:
        thing, body = self.new()
        if thing not in self.things:
            self.things.append(thing)
        again = self.random.random() < 0.7
        unsure = False
        while True:
            answer = self.send(thing, body)
            # W4: what is written once and came again after its answer was lost gets the refusal that its client knows.
            if answer is not None and (answer.status in (200, 201, 204) or (unsure and answer.status == 409)):
                thing.bodies = {sha256(body)}
                self.world.stored += 1
                return
            if answer is None or answer.status == 503:
                unsure = True
                thing.bodies.add(sha256(body))
            elif answer.status != 429:
                self.world.fault(f"{thing.address} was refused: {answer.status} {answer.body[:200]!r}")
                return
            # W4: a client that does not know sends the same again, or never mentions it.
            if not again or self.world.is_over:
                return
            gevent.sleep(0.2)

    def get(self) -> None:
        self.look_at(self.random.choice(self.things + self.gone))

    def look_at(self, thing: Thing) -> bool:
        """False when the server could not tell."""
        answer = self.line.ask("GET", thing.address)
        if answer is None or answer.status == 503:
            return False
        wrong = thing.see(answer)
        if wrong is not None:
            self.world.fault(f"GET {thing.address}: {wrong}")
        return True

    def index(self) -> None:
        shown = self.listed()
        if shown is None:
            return
        expected = {thing.path for thing in self.things if thing.is_shown}
        forbidden = {thing.path for thing in self.things + self.gone if thing.is_shown is False}
        if expected - shown:
            self.world.fault(f"{self.format} {self.number}: the index lacks {sorted(expected - shown)[:3]}")
        if forbidden & shown:
            self.world.fault(f"{self.format} {self.number}: the index shows {sorted(forbidden & shown)[:3]}")

    def delete(self) -> None:
        """The oldest, where there are many."""
        thing = self.things[0] if len(self.things) > LIVE else self.random.choice(self.things)
        address = self.deleted_at(thing)
        answer = self.line.ask("DELETE", address)
        if answer is None or answer.status == 503:
            thing.bodies.add(None)
        elif answer.status in (202, 204, 404):
            if answer.status == 404 and None not in thing.bodies:
                self.world.fault(f"DELETE {address}: it was gone already")
            thing.bodies = {None}
            self.forget(thing)
        else:
            self.world.fault(f"DELETE {address}: {answer.status} {answer.body[:200]!r}")

    def deleted_at(self, thing: Thing) -> str:
        """Where a client of the format deletes it."""
        return thing.address

    def forget(self, thing: Thing) -> None:
        """Names of files are used once."""
        self.things.remove(thing)
        self.gone = [*self.gone[-GONE:], thing]

    def hold(self) -> None:
        self._turn(self.random.choice(self.things), "PUT", True)

    def release(self) -> None:
        self._turn(self.random.choice([each for each in self.things if True in each.held] or self.things), "DELETE", False)

    def _turn(self, thing: Thing, method: str, held: bool) -> None:
        path = f"/api/v1/repositories/{self.repository}/artifacts/{thing.path}/quarantine"
        body = b'{"reason": "the storm"}' if held else b""
        answer = self.line.ask(method, path, body, Content_Type="application/json")
        if answer is None or answer.status == 503:
            thing.held.add(held)
        elif answer.status in (200, 204) or (not held and answer.status == 404):
            thing.held = {held}
        else:
            self.world.fault(f"{method} {path}: {answer.status} {answer.body[:200]!r}")


class RawClient(Client):
    """Few paths, written again and again."""

    format = "raw"
    repository = "storm-raw"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        names = [f"{number}/folder/file-{each}" for each in range(20)]
        self.things = [Thing(self.repository, name, f"/raw/{self.repository}/{name}") for name in names]

    def send(self, thing: Thing, body: bytes) -> Answer | None:
        return self.line.ask("PUT", thing.address, body)

    def new(self) -> tuple[Thing, bytes]:
        return self.random.choice(self.things), self.body()

    def forget(self, thing: Thing) -> None:
        """Such a path is written again."""

    def listed(self) -> set[str] | None:
        answer = self.line.ask("GET", f"/raw/{self.repository}/{self.number}/folder/", Accept="application/json")
        if answer is None or answer.status not in (200, 404):
            return None
        items = json.loads(answer.body)["items"] if answer.status == 200 else []
        return {f"{self.number}/folder/{each['name']}" for each in items}


class PypiClient(Client):
    """A project of its own, with a wheel for each version."""

    format = "pypi"
    repository = "storm-pypi"

    @property
    def project(self) -> str:
        return f"storm{self.number}"

    def new(self) -> tuple[Thing, bytes]:
        self._count += 1
        version = f"1.{self._count}"
        path = f"{self.project}/{self.project}-{version}-py3-none-any.whl"
        members = wheel_members(self.project, version) | {f"{self.project}/data": self.body()}
        return Thing(self.repository, path, f"/pypi/{self.repository}/files/{path}"), zip_of(members)

    def send(self, thing: Thing, body: bytes) -> Answer | None:
        filename = thing.path.rpartition("/")[2]
        form = form_of([
            (":action", None, b"file_upload"), ("protocol_version", None, b"1"), ("metadata_version", None, b"2.1"),
            ("name", None, self.project.encode()), ("version", None, filename.split("-")[1].encode()),
            ("filetype", None, b"bdist_wheel"), ("pyversion", None, b"py3"), ("content", filename, body),
        ])  # fmt: skip
        return self.line.ask("POST", f"/pypi/{self.repository}/", form, Content_Type=CONTENT_TYPE)

    def listed(self) -> set[str] | None:
        page = f"/pypi/{self.repository}/simple/{self.project}/"
        answer = self.line.ask("GET", page, Accept="application/vnd.pypi.simple.v1+json")
        if answer is None or answer.status not in (200, 404):
            return None
        files = json.loads(answer.body)["files"] if answer.status == 200 else []
        return {f"{self.project}/{each['filename']}" for each in files}


class MavenClient(Client):
    """An artifact of its own, with a jar for each version."""

    format = "maven"
    repository = "storm-maven"

    @property
    def artifact(self) -> str:
        return f"lib{self.number}"

    def new(self) -> tuple[Thing, bytes]:
        self._count += 1
        return self._thing(f"1.{self._count}"), self.body()

    def _thing(self, version: str) -> Thing:
        path = f"org/storm/{self.artifact}/{version}/{self.artifact}-{version}.jar"
        return Thing(self.repository, path, f"/maven/{self.repository}/{path}")

    def send(self, thing: Thing, body: bytes) -> Answer | None:
        return self.line.ask("PUT", thing.address, body)

    def listed(self) -> set[str] | None:
        answer = self.line.ask("GET", f"/maven/{self.repository}/org/storm/{self.artifact}/maven-metadata.xml")
        if answer is None or answer.status not in (200, 404):
            return None
        versions = re.findall(r"<version>(.*?)</version>", answer.body.decode()) if answer.status == 200 else []
        return {self._thing(version).path for version in versions}


# What kills


@dataclass
class Weather:
    """Kills something every few seconds and waits until the world goes on; `recoveries` are seconds by what was done."""

    world: World
    postgres: embedded.EmbeddedPostgres
    pauses: tuple[float, float] = (2.0, 10.0)
    # What is done at each rest, after so many blows.
    rest: Callable[[], None] = lambda: None
    between_rests: int = 10
    recoveries: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        blows = self._blows()
        while time.monotonic() < end:
            gevent.sleep(min(random.uniform(*self.pauses), max(0.0, end - time.monotonic())))
            blow = next(blows)
            before = self.world.stored
            began = time.monotonic()
            blow()
            self._await(blow.__name__, before, began)
            if sum(map(len, self.recoveries.values())) % self.between_rests == 0:
                self.rest()

    def _blows(self) -> Iterator[Callable[[], None]]:
        """Each as often as the others, in any order."""
        blows = [self.worker, self.master, self.everything, self.postgres_immediately, self.postgres_crash, self.restart]
        while True:
            random.shuffle(blows)
            yield from blows

    def _await(self, name: str, before: int, began: float) -> None:
        while self.world.stored <= before:
            if time.monotonic() > began + RECOVERY_SECONDS:
                self.world.fault(f"after {name} nothing was stored within {RECOVERY_SECONDS:.0f} s")
                return
            gevent.sleep(0.05)
        self.recoveries[name].append(time.monotonic() - began)

    # The blows

    def worker(self) -> None:
        """gunicorn's master makes a new one."""
        for pid in self.world.server.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def master(self) -> None:
        """Its workers notice that nobody is above them, and end."""
        server = self.world.server
        orphans = server.workers()
        os.kill(server.pid, signal.SIGKILL)
        assert server.process is not None
        server.process.wait(10)
        deadline = time.monotonic() + RECOVERY_SECONDS
        while any(_is_alive(pid) for pid in orphans):
            if time.monotonic() > deadline:
                self.world.fault("workers outlive their master")
                server.kill9()
                break
            gevent.sleep(0.05)
        self._begin()

    def everything(self) -> None:
        """Master and workers together."""
        self.world.server.kill9()
        self._begin()

    def restart(self) -> None:
        """As an administrator does it."""
        self.world.server.stop()
        self._begin()

    def postgres_immediately(self) -> None:
        self._take_down(signal.SIGQUIT)

    def postgres_crash(self) -> None:
        self._take_down(signal.SIGKILL)

    def _take_down(self, how: signal.Signals) -> None:
        take_down(self.postgres, how)
        gevent.sleep(random.uniform(0, 4))
        start(self.postgres.data)

    def _begin(self) -> None:
        self.world.server.start()


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists() and bool(Path(f"/proc/{pid}/cmdline").read_bytes())


# What is true all the time


@dataclass
class Accountant:
    """Compares counters with sums, and artifacts with what is published, again and again: they agree in each state of the database."""

    world: World
    observer: House
    looks: int = 0

    def run(self) -> None:
        while True:
            try:
                self.observer.assert_counted()
                self.observer.assert_published_is_there()
                self.looks += 1
            except AssertionError as error:
                self.world.fault(str(error))
            except SQLAlchemyError:
                """It was killed."""
            gevent.sleep(0.5)


# Memory


@dataclass
class MemoryWatch:
    """The resident set of each process of the server, once a second: (age in seconds, bytes), by process, in the order of their births."""

    server: Server
    workers: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    masters: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    _births: dict[int, float] = field(default_factory=dict)

    def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, AssertionError, ValueError):
                self._look(self.masters, self.server.pid)
                for pid in self.server.workers():
                    self._look(self.workers, pid)
            gevent.sleep(1.0)

    def _look(self, into: dict[int, list[tuple[float, int]]], pid: int) -> None:
        resident = _resident(pid)
        if resident:
            born = self._births.setdefault(pid, time.monotonic())
            into.setdefault(pid, []).append((time.monotonic() - born, resident))

    def last(self, warm_up: float) -> tuple[int, int]:
        """Of the process that lives now, after its warm-up: medians of the first and of the last quarter."""
        samples = [size for age, size in list(self.workers.values())[-1] if age >= warm_up]
        quarter = max(1, len(samples) // 4)
        return int(statistics.median(samples[:quarter])), int(statistics.median(samples[-quarter:]))

    def generations(self, age: float) -> list[int]:
        """What each process held when it was that old, for those that became so."""
        found = []
        for samples in self.workers.values():
            older = [size for each, size in samples if each >= age]
            found += older[:1]
        return found


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def clean_up(world: World) -> None:
    """Ask for a cleanup every few seconds, beside the server's own."""
    line = Line(world)
    while not world.is_over:
        gevent.sleep(random.uniform(2, 5))
        answer = line.ask("POST", "/api/v1/cleanup")
        if answer is not None and answer.status == 200:
            world.done["cleanup"] += 1


def authorization(server: Server) -> str:
    """The header of a token that may do everything."""
    wanted: dict[str, Any] = {"name": "storm", "permissions": ["read", "write", "delete", "manage"]}
    answer = server.post("/api/v1/tokens", json=wanted)
    assert answer.status_code == requests.codes.created, answer.text
    return f"Bearer {answer.json()['token']}"
