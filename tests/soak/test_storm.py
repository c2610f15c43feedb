"""A whole server under a mixed load while processes and the database are killed (W1 to W5), for most of what `make soak` is given.

Clients of all formats, uploads in parts, and mirrors of another Arkvory. Counters are compared with sums all the time, files with rows and
names at each rest. After the storm comes a calm, in which nothing may break and memory has to stay flat.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

import gevent
import pytest

from app.database import embedded
from tests.conftest import MakeServer
from tests.faults.test_servers import QUICK, Observer, until
from tests.support.server import Server
from tests.support.storm import (
    Accountant,
    Client,
    MavenClient,
    MemoryWatch,
    PypiClient,
    RawClient,
    Weather,
    World,
    authorization,
    clean_up,
)
from tests.support.storm_formats import NpmClient, OciClient, come_and_go
from tests.support.storm_mirrors import Follower, Origin
from tests.support.storm_parts import SESSION_SECONDS, SETTINGS, PartsClient

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) * 0.7
CALM = 0.3
CLIENTS = (
    RawClient, RawClient, PypiClient, PypiClient, MavenClient, MavenClient, NpmClient, OciClient, OciClient,
    PartsClient, PartsClient, PartsClient,
)  # fmt: skip
STORMED = QUICK | SETTINGS | {"ARKVORY_BLOB_GRACE_SECONDS": str(OciClient.grace), "ARKVORY_MAX_UPLOADS_PER_KEY": "8"}
END_SECONDS = 200.0
# Regions of the cache fill up, and what is freed does not always go back.
MOST_GROWTH, MOST_GROWTH_BYTES = 1.10, 10_000_000
WARM_UP_SECONDS = 30.0
GENERATION_SECONDS = 5.0


def test_w1_to_w5_nothing_is_lost_or_left_and_memory_is_flat_after_a_storm(
    private_postgres: embedded.EmbeddedPostgres, make_server: MakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = Origin(make_server(ARKVORY_BLOB_GRACE_SECONDS="10", ARKVORY_CLEANUP_SECONDS="10")).open()
    server = make_server(ARKVORY_DATABASE_URL=private_postgres.url, **STORMED)
    for kind in dict.fromkeys(CLIENTS):
        server.repository(kind.repository, format=kind.format, public=True)
    world = World(server, authorization(server))
    accountant, memory = Accountant(world, Observer(server)), MemoryWatch(server)
    weather = Weather(world, private_postgres, rest=lambda: rest(world, accountant))
    clients: list[Client] = [kind(world, number) for number, kind in enumerate(CLIENTS)]
    followers = [Follower(world, origin, kind) for kind in ("hosted", "proxy")]
    for follower in followers:
        follower.open()
    watching = [gevent.spawn(memory.run), gevent.spawn(accountant.run)]
    others = [gevent.spawn(origin.run, world), gevent.spawn(clean_up, world), gevent.spawn(come_and_go, world)]
    working = [*(gevent.spawn(each.run) for each in (*clients, *followers)), *others]
    began = time.monotonic()
    weather.run(SECONDS * (1 - CALM))
    # Connections that were broken by the last blow are noticed by now.
    gevent.sleep(min(5.0, SECONDS * CALM / 4))
    world.is_calm = True
    gevent.sleep(SECONDS * CALM)
    world.is_over = True
    gevent.joinall(working, timeout=END_SECONDS, raise_error=True)
    assert all(each.ready() for each in working), "clients do not end"
    gevent.killall(watching)
    with capsys.disabled():
        print("\n" + "\n".join(figures(world, weather, memory, accountant, time.monotonic() - began)))
    for client in clients:
        client.line.hang_up()
        client.finish()
        for thing in client.things + client.gone:
            until(lambda client=client, thing=thing: client.look_at(thing))
        client.index()
    for follower in followers:
        # One that runs already may have looked at what is no more.
        for _ in range(2):
            until(follower.is_through, 120)
        for path in origin.now:
            until(lambda follower=follower, path=path: follower.look_at(path, exactly=True))
        with capsys.disabled():
            print(f"  {follower.figures()}")
    assert not world.faults, "\n".join(world.faults)
    assert_nothing_is_left(server)
    assert_is_flat(memory)


def rest(world: World, accountant: Accountant) -> None:
    """Nobody writes but mirrors and cleanup: each file has its row, each row its file, each file the bytes of its name."""
    observer = accountant.observer
    with world.at_rest():
        try:
            until(observer.assert_rows_and_files)
            observer.assert_counted()
            observer.assert_published_is_there()
            assert not (wrong := misnamed(observer)), f"files whose bytes are others than their names say: {wrong}"
        except AssertionError as error:
            world.fault(f"at rest: {error}")
        world.done["rest"] += 1


def figures(world: World, weather: Weather, memory: MemoryWatch, accountant: Accountant, seconds: float) -> Iterable[str]:
    yield f"storm of {seconds:.0f} s: {sum(world.done.values())} actions, {sum(world.statuses.values())} answers"
    yield "  " + ", ".join(f"{name} {count}" for name, count in sorted(world.done.items()))
    yield "  answers: " + ", ".join(f"{status or 'broken'} {count}" for status, count in sorted(world.statuses.items()))
    for name, times in sorted(weather.recoveries.items()):
        yield f"  {name}: {len(times)} times, stored again after {sum(times) / len(times):.1f} s on average, {max(times):.1f} s at most"
    yield f"  counters were compared with sums {accountant.looks} times while all went on, files with names at {world.done['rest']} rests"
    before, after = memory.last(warm_up())
    yield f"  memory of the last worker: {before / 1e6:.0f} MB after its warm-up, {after / 1e6:.0f} MB at the end"
    held = memory.generations(GENERATION_SECONDS)
    yield f"  of {len(held)} workers when {GENERATION_SECONDS:.0f} s old: " + " ".join(f"{each / 1e6:.0f}" for each in held) + " MB"
    yield f"  faults: {len(world.faults)}"


def warm_up() -> float:
    return min(WARM_UP_SECONDS, SECONDS * CALM / 3)


def assert_nothing_is_left(server: Server) -> None:
    """Counters equal sums, no file without a row and no row without its file, each with the bytes that its name says."""
    observer = Observer(server)

    def settled() -> None:
        assert observer.value("select count(*) from arkvory_uploads where status in ('open', 'garbage')") == 0
        assert observer.value("select count(*) from arkvory_blobs where status <> 'live'") == 0
        observer.assert_no_strays()

    # What nobody went on with expires.
    until(settled, SESSION_SECONDS + 60)
    observer.assert_counted()
    observer.assert_published_is_there()
    assert not (wrong := misnamed(observer)), f"files whose bytes are others than their names say: {wrong}"


def misnamed(observer: Observer) -> list[str]:
    """Names of files whose bytes are others than these say."""
    found = []
    for path in observer.files():
        # Cleanup may take it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if not re.match(digest(path), path.name):
                found.append(path.name)
    return found


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def assert_is_flat(memory: MemoryWatch) -> None:
    before, after = memory.last(warm_up())
    assert after <= before * MOST_GROWTH + MOST_GROWTH_BYTES, f"a worker grew from {before} to {after} bytes"
    held = memory.generations(GENERATION_SECONDS)
    assert held[-1] <= min(held[:3]) * MOST_GROWTH + MOST_GROWTH_BYTES, f"later workers need more from the start: {held}"
