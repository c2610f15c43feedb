"""A mirror of some thousand packages, whose server is killed again and again: what was copied is not asked for again (`make soak`)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest
import sqlalchemy
from sqlalchemy.pool import NullPool

from app.repository.parts import PART
from tests.conftest import MakeCluster, MakeServer
from tests.mirrors.test_hosted_npm import Registry
from tests.protocols.npm.packages import dist_of, tarball
from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.support.server import Server
from tests.support.upstreams import FakeUpstream, noise
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
        # Of its readers of archives one may end just now.
        with contextlib.suppress(psutil.NoSuchProcess):
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
    """Of its workers the largest, in bytes; 0 while there are none."""
    try:
        return max((psutil.Process(pid).memory_info().rss for pid in server.workers()), default=0)
    except psutil.Error:
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


def test_a_long_packument_and_many_tags_leave_memory_as_it_was(make_server: MakeServer) -> None:
    """Hosted repositories: 5,000 versions in 50 MB of which two are wanted, and 300 tags of one image; three rounds of each."""
    source, server = FakeUpstream().start(), make_server(ARKVORY_CAPACITY_BYTES=str(2**33))
    packument(source, 5_000, wanted=("4998.0.0", "4999.0.0"))
    image(source, [f"t{number}" for number in range(300)])
    server.repository("js", "npm"), server.repository("hub", "oci")
    before, seconds = memory(server), []
    largest = before
    for name, settings in (("js", {"names": ["p"], "include": ["p@4998.0.0", "p@4999.0.0"]}), ("hub", {"names": ["app"]})):
        where = f"/api/v1/repositories/{name}/mirror"
        assert server.request("PUT", where, json={"upstream_url": source.url, **settings}).status_code == 201
        for round_ in range(1, 4):
            began = time.monotonic()
            while (now := server.get(where).json())["round"] < round_ or now["state"] != "complete":
                assert time.monotonic() < began + 300, now
                largest = max(largest, memory(server))
                time.sleep(0.2)
            seconds.append((name, round(time.monotonic() - began, 1)))
            assert round_ == 3 or server.post(f"{where}/run").status_code == 202
    after = memory(server)
    source.stop()
    print(f"\nseconds by round: {seconds}; server {before >> 20} MiB before, {largest >> 20} at most, {after >> 20} after")
    assert set(server.get("/npm/js/p").json()["versions"]) == {"4998.0.0", "4999.0.0"}
    assert len(server.get("/v2/hub/app/tags/list").json()["tags"]) == 300
    assert largest - before < 100 * 2**20


def test_a_hosted_mirror_that_is_killed_counts_exactly_and_passes_over_nothing(make_server: MakeServer) -> None:
    """Through rounds of which some are by validators; a version of some packages comes in each, and what is deleted here comes again."""
    chance, source = random.Random(5), FakeUpstream().start()
    registry, names = Registry(source), [f"p{number}" for number in range(150)]
    versions = {name: ["1.0.0", "1.1.0"] for name in names}
    for name in names:
        registry.put(name, *versions[name])
    server = make_server()
    where, database = "/api/v1/repositories/js/mirror", str(server.database_url)
    server.repository("js", "npm")
    body = {"upstream_url": source.url, "names": names, "concurrency": CONCURRENCY}
    assert server.request("PUT", where, json=body).status_code == 201
    for number in range(KILLS):
        time.sleep(chance.uniform(1, 1 + SECONDS / KILLS / 2))
        kill(server)
        for name in chance.sample(names, 10):
            versions[name].append(f"2.{number}.0")
            registry.put(name, *versions[name])
        server.start()
        server.post(f"{where}/run")
    wanted = {f"{name}-{version}.tgz" for name in names for version in versions[name]}
    tarballs = len(wanted)
    # The first may have read its lists before the last versions came, and one that published reads what it published once more.
    for _ in range(3):
        before = server.get(where).json()["ended_at"]
        assert server.post(f"{where}/run").status_code == 202
        wait_until(lambda before=before: (now := server.get(where).json())["ended_at"] != before and now["state"] == "complete", 300)
    assert stored(database) == wanted
    now = server.get(where).json()
    asked = sum(1 for each in source.asked if each.target.endswith(".tgz"))
    whole = sum(1 for each in source.asked if each.target[1:] in versions and "if-none-match" not in each.headers)
    told = sum(1 for each in source.asked if each.target[1:] in versions) - whole
    print(f"\n{tarballs} versions, {asked} asked for, {now['files']} counted; packuments: {whole} whole, {told} by ETag")
    assert now["files"] == tarballs and now["counts"]["done"] == tarballs
    assert asked <= tarballs + KILLS * CONCURRENCY
    asked_before = len(source.asked)
    server.post(f"{where}/run")
    wait_until(lambda: server.get(where).json()["round"] > now["round"] and server.get(where).json()["state"] == "complete", 300)
    assert {"if-none-match" in each.headers for each in source.asked[asked_before:]} == {True}
    source.stop()


def packument(source: FakeUpstream, count: int, wanted: Sequence[str]) -> None:
    bodies = {version: tarball("p", version) for version in wanted}
    dists = {version: dist_of(body) for version, body in bodies.items()}
    some = dist_of(b"")
    versions = {}
    for version in (f"{number}.0.0" for number in range(count)):
        dist = {**dists.get(version, some), "tarball": f"{source.url}/p/-/p-{version}.tgz"}
        versions[version] = {"name": "p", "version": version, "description": "long " * 2_000, "dist": dist}
    document = {"name": "p", "dist-tags": {"latest": wanted[-1]}, "versions": versions, "time": {}}
    source.put("/p", json.dumps(document).encode(), headers={"Content-Type": "application/json"})
    for version, body in bodies.items():
        source.put(f"/p/-/p-{version}.tgz", body)


def image(source: FakeUpstream, tags: Sequence[str]) -> None:
    layer = noise(100_000)
    body = manifest_of(layer)
    for each in (b"{}", layer):
        source.put(f"/v2/app/blobs/{digest_of(each)}", each)
    for name in (*tags, digest_of(body)):
        headers = {"Content-Type": MANIFEST, "Docker-Content-Digest": digest_of(body)}
        source.put(f"/v2/app/manifests/{name}", body, headers=headers)
    source.put("/v2/app/tags/list", json.dumps({"name": "app", "tags": list(tags)}).encode())


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.5)
