"""Gunicorn masters of one cluster: who may start, under which name and slot, and what becomes of both (DESIGN 4)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeCluster, MakeServer, NewDatabase
from tests.faults.test_servers import Observer, until
from tests.support.server import ROOT, Cluster, Server

CANNOT_START = 3


def labels(server: Server) -> list[str]:
    """Under what names its workers began to serve, in their order."""
    return re.findall(r"Arkvory serves at \S+ as (\S+)", server.log())


def refused(server: Server, seconds: float = 60.0) -> str:
    """What a master says that does not start."""
    assert server.process is not None
    try:
        assert server.process.wait(seconds) == CANNOT_START
    except subprocess.TimeoutExpired:
        raise AssertionError(server.log()) from None
    return server.log()


@pytest.fixture(scope="module")
def cluster(new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two masters with two workers each, for all tests that leave them as they are."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), new_database(template))
    try:
        yield made.start()
    finally:
        made.close()


def test_two_masters_with_two_workers_each_serve_one_storage_under_slots_of_their_own(cluster: Cluster) -> None:
    assert {label for server in cluster for label in labels(server)} >= {"vm1/0", "vm1/1", "vm2/0", "vm2/1"}
    cluster[0].repository("files")
    assert cluster[0].put("/raw/files/a", b"from one").status_code == 201
    until(lambda: cluster[1].get("/raw/files/a").content == b"from one")
    assert sum("administrator is admin" in server.log() for server in cluster) == 1


def test_commands_find_a_server_of_their_machine_each_by_its_own_secret(cluster: Cluster) -> None:
    files = sorted(each.name for each in cluster[0].data.glob("server*.json"))
    assert files == ["server-vm1.json", "server-vm2.json"]
    from app.cluster import localserver

    found = localserver.read(cluster[0].data)
    assert found is not None
    bearer = {"Authorization": f"Bearer {found.secret}"}
    # Whichever of its workers answers; the other master knows nothing of it.
    assert {cluster[0].get("/api/v1/whoami", auth=None, headers=bearer).status_code for _ in range(8)} == {200}
    assert cluster[1].get("/api/v1/whoami", auth=None, headers=bearer).status_code == 401


def metric(server: Server, name: str) -> float:
    found = re.findall(rf"^{re.escape(name)} (\S+)$", server.get("/metrics", auth=None).text, re.M)
    assert len(found) == 1, f"{name}: {found}"
    return float(found[0])


REQUESTS = 'flask_http_request_total{method="GET",status="200"}'
STATEMENTS = 'arkvory_database_statements_total{pool="request"}'


def test_any_worker_answers_with_the_numbers_of_all(cluster: Cluster) -> None:
    server = cluster[0]
    until(lambda: metric(server, "arkvory_storage_owned") == 2)
    before = metric(server, REQUESTS)
    for _ in range(20):
        assert server.get("/health/ready", auth=None).status_code == 200
    seen = {metric(server, REQUESTS) - before for _ in range(6)}
    # `/metrics` itself is not counted.
    assert seen == {20.0}
    until(lambda: metric(server, 'arkvory_database_pool_connections{pool="session"}') >= 2)
    assert metric(cluster[1], REQUESTS) < metric(server, REQUESTS)


def test_a_killed_worker_is_replaced_in_its_slot_and_its_counts_stay(cluster: Cluster) -> None:
    server = cluster[1]
    for _ in range(30):
        server.get("/health/ready", auth=None)
    time.sleep(2.5)
    before = {name: metric(server, name) for name in (REQUESTS, STATEMENTS)}
    began, victim = len(server.log()), server.workers()[0]
    os.kill(victim, signal.SIGKILL)
    until(lambda: server.log().count("Arkvory serves at", began) == 1)
    assert labels(server)[-1] in {"vm2/0", "vm2/1"}
    assert victim not in server.workers()
    until(lambda: metric(server, "arkvory_storage_owned") == 2)
    for name, count in before.items():
        assert metric(server, name) >= count, f"{name} went back"
    folder = next(os.path.dirname(each) for each in open_files(server) if "arkvory-metrics-" in each)
    assert not os.path.exists(f"{folder}/house-{victim}.json")
    assert os.path.exists(f"{folder}/house-gone.json")


def open_files(server: Server) -> list[str]:
    with open(f"/proc/{server.workers()[0]}/maps") as maps:
        return [line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line]


def test_workers_come_and_go_by_signal(cluster: Cluster) -> None:
    server = cluster[0]
    os.kill(server.pid, signal.SIGTTIN)
    until(lambda: len(server.workers()) == 3 and labels(server)[-1] == "vm1/2")
    os.kill(server.pid, signal.SIGTTOU)
    until(lambda: len(server.workers()) == 2)
    began = len(server.log())
    former = set(server.workers())
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: server.log().count("Arkvory serves at", began) == 2 and len(server.workers()) == 2)
    assert not former & set(server.workers())
    assert server.get("/health/ready", auth=None).status_code == 200


def test_after_their_sessions_were_ended_all_take_name_and_slot_again(cluster: Cluster) -> None:
    observer = Observer(cluster[0])
    held = (
        "select count(*) from pg_locks where locktype = 'advisory' and classid = 18471 and objid = 1 and objsubid = 2 and granted "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    until(lambda: observer.value(held) == 4)
    observer.rows("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
    until(lambda: observer.value(held) == 4)
    assert Counter(len(server.workers()) for server in cluster) == {2: 2}
    for server in cluster:
        assert server.put("/raw/files/again", b"x").status_code in (200, 201, 204)


def test_a_taken_name_is_refused_and_free_again_once_the_whole_server_was_killed(cluster: Cluster) -> None:
    """The reason is its last line, and no worker runs a job while the name is another one's."""
    twin = cluster.add(ARKVORY_INSTANCE_ID="vm2", ARKVORY_OWNERSHIP_WAIT_SECONDS="4", ARKVORY_SERVE_WORKER="true")
    cluster.remove(twin)
    twin.start(ready=False)
    said = refused(twin)
    last = said.strip().splitlines()[-1]
    assert re.search(r"another server on \S+ is ARKVORY_INSTANCE_ID=vm2 and did not leave within 4 s; give each server its own", last)
    assert not [words for words in ("works as", "cluster: online", "Pool recreating") if words in said]
    assert cluster[1].get("/health/ready", auth=None).status_code == 200
    cluster[1].kill9()
    try:
        twin.start()
        assert set(labels(twin)) == {"vm2/0", "vm2/1"}
    finally:
        twin.stop()
        cluster[1].start()


def test_a_single_node_is_refused_beside_a_cluster(cluster: Cluster, make_server: MakeServer) -> None:
    single = make_server(ARKVORY_DATABASE_URL=cluster.database_url, ARKVORY_OWNERSHIP_WAIT_SECONDS="1", ready=False)
    assert re.search(r"another Arkvory owns this storage \(a cluster, \d of its processes run\)", refused(single))


def test_a_cluster_is_refused_beside_a_single_node_by_each_of_its_masters(make_server: MakeServer, make_cluster: MakeCluster) -> None:
    single = make_server()
    members = make_cluster(1, 2, start=False, database_url=str(single.database_url), ARKVORY_OWNERSHIP_WAIT_SECONDS="1")
    members.start(ready=False)
    assert re.search(r"a single Arkvory owns this storage \(process \d+ on .*\) and did not leave within 1 s", refused(members[0]))
    assert single.get("/health/ready", auth=None).status_code == 200


def test_a_server_that_waits_for_a_name_ends_when_it_is_told_to(cluster: Cluster) -> None:
    twin = cluster.add(ARKVORY_INSTANCE_ID="vm1")
    cluster.remove(twin)
    twin.start(ready=False)
    until(lambda: "waiting up to 30 s" in twin.log())
    assert "If it is to stay: give each server its own ARKVORY_INSTANCE_ID" in twin.log()
    began = time.monotonic()
    assert twin.stop() == 0
    assert time.monotonic() - began < 20


def test_more_processes_than_postgresql_has_connections_for_are_refused(cluster: Cluster) -> None:
    large = cluster.add(ARKVORY_INSTANCE_ID="large", ARKVORY_DATABASE_POOL_SIZE="80")
    cluster.remove(large)
    large.start(ready=False)
    said = refused(large)
    # Two of its own and the four that run elsewhere.
    assert "of 6 process(es) (2 of large, 2 of vm1, 2 of vm2), and write-lock 2 in 1 of them may open 506 connections" in said, said


def test_a_server_without_the_shared_folder_of_blobs_is_refused_and_says_what_to_do(cluster: Cluster, tmp_path: Path) -> None:
    """A mount was forgotten: it would take uploads that no other can serve. While nothing is stored, any folder will do."""
    cluster[0].repository("shared")
    for number in range(3):
        assert cluster[0].put(f"/raw/shared/{number}", b"stored by one %d" % number).status_code == 201
    alone = cluster.add(ARKVORY_INSTANCE_ID="alone", ARKVORY_DATA_DIR=str(tmp_path / "data"))
    cluster.remove(alone)
    alone.start(ready=False)
    said = refused(alone)
    assert "this is not the folder that the cluster's other servers write to. Mount the shared file system" in said
    assert " as alone/" not in said
    (tmp_path / "data" / "blobs").rename(tmp_path / "forgotten")
    (tmp_path / "data" / "blobs").symlink_to(cluster[0].data / "blobs")
    try:
        alone.start()
        assert alone.get("/raw/shared/0").content == b"stored by one 0"
    finally:
        alone.close()


def test_two_servers_of_one_machine_share_an_embedded_database(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It outlives the one that started it, and comes back when it is killed under both."""
    cluster = Cluster(tmp_path_factory.mktemp("embedded"), None, 2, 2)
    try:
        cluster.start()
        cluster[0].repository("files")
        assert cluster[0].stop() == 0
        assert cluster[1].put("/raw/files/a", b"x").status_code == 201
        cluster[0].start()
        pid = int((cluster[0].data / "postgres" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        until(lambda: all(server.put("/raw/files/b", b"y").ok and server.get("/health/ready", auth=None).ok for server in cluster))
        assert all("Traceback" not in server.log() for server in cluster)
    finally:
        cluster.close()
    assert not (cluster[0].data / "postgres" / "postmaster.pid").exists()


def test_a_command_without_a_server_of_its_own_tells_those_that_run_elsewhere(cluster: Cluster, tmp_path: Path) -> None:
    cluster[0].repository("open-soon")
    cluster[0].put("/raw/open-soon/a", b"x")
    for server in cluster:
        until(lambda server=server: server.get("/raw/open-soon/a", auth=None).status_code == 401)
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {
        "ARKVORY_DEPLOYMENT": "cluster", "ARKVORY_DATABASE_URL": str(cluster.database_url), "ARKVORY_DATA_DIR": str(tmp_path),
        "ARKVORY_DATABASE_POOL_SIZE": "4",
    }  # fmt: skip
    command = [sys.executable, "-m", "app.cli", "repo", "update", "open-soon", "--public"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for server in cluster:
        until(lambda server=server: all(server.get("/raw/open-soon/a", auth=None).status_code == 200 for _ in range(6)))
        assert metric(server, "arkvory_cache_probe_corrections_total") == 0, "only the probe told them"
