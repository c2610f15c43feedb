"""A mirror of some thousand packages, whose server is killed again and again: what was copied is not asked for again (`make soak`)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import sqlalchemy
from sqlalchemy.pool import NullPool

from app.repository.parts import PART
from tests.conftest import MakeCluster, MakeServer
from tests.support.server import Server
from tests.support.warehouse import Goods, Warehouse

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60"))
PROJECTS, FILES = 1_500, 2
LONG = {7: 3 * PART + 12_345, 700: 5 * PART + 1, 1_400: 2 * PART + 99}
CONCURRENCY, KILLS = 4, 6


def mirror(server: Server) -> dict[str, Any]:
    answer = server.get("/api/v1/repositories/py/mirror")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def stored(url: str) -> set[str]:
    """Names of files that are committed."""
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        rows = connection.execute(sqlalchemy.text("select path from arkvory_artifacts where path not like '.upstream%'"))
        return {row.path.rpartition("/")[2] for row in rows}


def kill(server: Server) -> None:
    """The master and its workers, at once."""
    process = psutil.Process(server.pid)
    for each in [*process.children(recursive=True), process]:
        each.kill()
    assert server.process is not None
    server.process.wait(20)


def test_a_mirror_that_is_killed_and_goes_on_copies_nothing_twice(make_server: MakeServer) -> None:
    chance = random.Random(11)
    source = Warehouse(Goods(PROJECTS, FILES, small=4_000, long=LONG))
    source.start()
    server = make_server(ARKVORY_CAPACITY_BYTES=str(2**33))
    database = str(server.database_url)
    server.repository("py", "pypi", kind="proxy", upstream_url=f"{source.url}/simple", settings={"mutable_ttl": 3600})
    body = {"every_seconds": 3600, "concurrency": CONCURRENCY}
    assert server.request("PUT", "/api/v1/repositories/py/mirror", json=body).status_code == 201
    largest, again = 0, []
    for _ in range(KILLS):
        deadline = time.monotonic() + chance.uniform(2, 2 + SECONDS / KILLS)
        while time.monotonic() < deadline and mirror(server)["state"] in {"new", "running", "interrupted"}:
            largest = max(largest, memory(server))
            time.sleep(0.2)
        kill(server)
        here = stored(database)
        asked = {name: source.asked_for[f"/f/{name}"] for name in here}
        again.append(asked)
        server.start()
    finish = time.monotonic() + SECONDS + 600
    while (now := mirror(server))["state"] != "complete":
        assert time.monotonic() < finish, now
        largest = max(largest, memory(server))
        time.sleep(0.5)
    files = [source.goods.name(project, number) for project in range(PROJECTS) for number in range(FILES)]
    assert stored(database) == set(files)
    # What was committed before a kill was not asked for after it.
    for asked in again:
        assert {name: source.asked_for[f"/f/{name}"] for name in asked} == asked
    size = sum(len(source.goods.body(project, number)) for project in range(PROJECTS) for number in range(FILES))
    sent = sum(count for path, count in source.sent.items() if path.startswith("/f/"))
    repeated = sent - size
    print(f"\n{len(files)} files, {size} bytes; {KILLS} kills; {repeated} bytes were sent again; server at most {largest >> 20} MiB")
    for name in (source.goods.name(project, 0) for project in LONG):
        print(name, source.asked_for[f"/f/{name}"], "requests,", source.sent[f"/f/{name}"], "bytes")
    # What was under way at a kill: of each at most a part.
    assert 0 <= repeated <= KILLS * CONCURRENCY * PART
    requests = sum(count for path, count in source.asked_for.items() if path.startswith("/f/"))
    parts = sum(-(-length // PART) for length in LONG.values()) - len(LONG)
    assert requests <= len(files) + parts + KILLS * CONCURRENCY
    source.stop()


def memory(server: Server) -> int:
    """Of its workers, in bytes."""
    try:
        workers = [each for each in psutil.Process(server.pid).children(recursive=True) if "gunicorn" in " ".join(each.cmdline())]
        return max(each.memory_info().rss for each in workers)
    except (psutil.Error, ValueError):
        return 0


def test_another_process_of_the_cluster_goes_on_when_the_one_that_ran_it_is_killed(make_cluster: MakeCluster) -> None:
    """The files of the killed one are asked for once more at most, within them by parts; the job's lease tells who is next."""
    source = Warehouse(Goods(400, FILES, small=4_000, long={7: 6 * PART + 12_345, 300: 3 * PART}))
    source.start()
    cluster = make_cluster(masters=2, workers=1, ARKVORY_UPLOAD_LEASE_SECONDS="10")
    first, second = cluster
    first.repository("py", "pypi", kind="proxy", upstream_url=f"{source.url}/simple", settings={"mutable_ttl": 3600})
    assert first.request("PUT", "/api/v1/repositories/py/mirror", json={"concurrency": CONCURRENCY}).status_code == 201
    wait_until(lambda: mirror(first)["counts"].get("done", 0) > 50, 120)
    jobs = first.get("/api/v1/jobs").json()["items"]
    (runner,) = [each["runner"] for each in jobs if each["name"].startswith("mirror/")]
    victim, other = (first, second) if runner.startswith("vm1") else (second, first)
    kill(victim)
    database = str(cluster.database_url)
    here = {name: source.asked_for[f"/f/{name}"] for name in stored(database)}
    wait_until(lambda: mirror(other)["state"] == "complete", 600)
    assert len(stored(database)) == source.goods.count
    assert {name: source.asked_for[f"/f/{name}"] for name in here} == here
    size = sum(len(source.goods.body(project, number)) for project in range(source.goods.projects) for number in range(FILES))
    sent = sum(count for path, count in source.sent.items() if path.startswith("/f/"))
    print(f"\n{sent - size} bytes of {size} were sent again")
    assert 0 <= sent - size <= CONCURRENCY * PART
    source.stop()


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.5)
