"""`arkvory worker`: a process without HTTP that is an instance like any other, and whose jobs outlive it (DESIGN 2, 4)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from app.database import embedded
from tests.conftest import MakeServer
from tests.support.database import execute, start, take_down
from tests.support.house import eventually
from tests.support.workers import Worker

MakeWorker = Callable[..., Worker]
CLUSTER = {
    "ARKVORY_DEPLOYMENT": "cluster", "ARKVORY_INSTANCE_ID": "vm1", "ARKVORY_DATABASE_POOL_SIZE": "8", "ARKVORY_SESSION_POOL_SIZE": "4"
}  # fmt: skip


@pytest.fixture
def make_worker(database_url: str, tmp_path: Path) -> Iterator[MakeWorker]:
    made: list[Worker] = []

    def make(name: str = "vm1", url: str = database_url, *, by_command: bool = False, **environment: str) -> Worker:
        made.append(Worker(tmp_path, len(made), name, url, environment, by_command))
        return made[-1].start()

    yield make
    for each in made:
        each.close()


def rows(url: str, statement: str, **values: Any) -> list[Any]:
    with create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as connection:
        return list(connection.execute(text(statement), values))


def job(url: str, name: str = "cleanup") -> Any:
    return next(iter(rows(url, "select * from arkvory_jobs where name = :name", name=name)), None)


def runs_by(url: str, label: str, since: int = 0) -> bool:
    found = job(url)
    return found is not None and found.runner == label and not found.running and found.run > since


@contextlib.contextmanager
def uploads_locked(url: str) -> Iterator[None]:
    """A cleanup that is at work comes to its end only behind this."""
    with create_engine(url, poolclass=NullPool).connect() as connection:
        connection.execute(text("lock table arkvory_uploads in exclusive mode"))
        yield
        connection.rollback()


def test_workers_of_a_machine_share_a_name_in_slots_run_the_jobs_and_leave_within_seconds(
    make_worker: MakeWorker, database_url: str
) -> None:
    first = make_worker(by_command=True)
    assert "it runs the jobs of the cluster (cleanup every 1 s, quotas every 60 s), and answers no requests" in first.log()
    eventually(lambda: runs_by(database_url, "vm1:worker/0"), 20)
    second = make_worker()
    found = rows(database_url, "select name, slot, kind from arkvory_instances order by slot")
    assert [tuple(each) for each in found] == [("vm1:worker", 0, "worker"), ("vm1:worker", 1, "worker")]
    began = time.monotonic()
    assert first.stop() == 0
    assert time.monotonic() - began < 15, "seconds, also on a busy machine"
    assert [each[0] for each in rows(database_url, "select slot from arkvory_instances")] == [1]
    before = job(database_url).run
    eventually(lambda: runs_by(database_url, "vm1:worker/1", before), 20)
    assert second.process is not None and second.process.poll() is None


def test_the_job_of_a_worker_that_stands_still_or_is_killed_goes_on_elsewhere(make_worker: MakeWorker, database_url: str) -> None:
    """Half a minute of real time: one that goes on after it knows by its own clock that the job is another one's, and ends it."""
    first = make_worker("vm1", ARKVORY_DATABASE_STATEMENT_SECONDS="300")
    eventually(lambda: runs_by(database_url, first.label), 20)
    with uploads_locked(database_url):
        eventually(lambda: job(database_url).running, 20)
        left = job(database_url).run
        first.send(signal.SIGSTOP)
        second = make_worker("vm2", ARKVORY_DATABASE_STATEMENT_SECONDS="300")
        assert (job(database_url).run, job(database_url).runner) == (left, first.label), "its lease is not over yet"
        eventually(lambda: job(database_url).runner == second.label, 60)
        assert f"the job cleanup was left by {first.label} in the middle; it goes on here" in second.log()
        first.send(signal.SIGCONT)
        eventually(lambda: re.search(r"cleanup goes on elsewhere|the job cleanup ends here", first.log()), 30)
        assert (job(database_url).run, job(database_url).runner, job(database_url).running) == (left + 1, second.label, True)
        second.send(signal.SIGKILL)
        # As half a minute later.
        execute(database_url, "update arkvory_leases set until = clock_timestamp() where name = 'cleanup'")
        eventually(lambda: job(database_url).runner == first.label and job(database_url).run == left + 2, 30)
    eventually(lambda: runs_by(database_url, first.label, left + 2), 40)
    assert first.process is not None and first.process.poll() is None


def test_a_worker_outlives_a_restart_of_postgresql(private_postgres: embedded.EmbeddedPostgres, make_worker: MakeWorker) -> None:
    url = private_postgres.url
    worker = make_worker(url=url)
    eventually(lambda: runs_by(url, worker.label), 20)
    take_down(private_postgres)
    time.sleep(3)
    start(private_postgres.data)
    before = job(url).run
    eventually(lambda: runs_by(url, worker.label, before + 1), 40)
    assert worker.process is not None and worker.process.poll() is None
    assert worker.stop() == 0


def test_a_server_starts_a_worker_beside_itself_another_one_when_that_ended_and_takes_it_along(make_server: MakeServer) -> None:
    server = make_server(**CLUSTER, ARKVORY_SERVE_WORKER="true", ARKVORY_CLEANUP_SECONDS="1")
    url = str(server.database_url)
    eventually(lambda: runs_by(url, "vm1:worker/0"), 30)
    pid = rows(url, "select pid from arkvory_instances where kind = 'worker'")[0][0]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: any(each[0] != pid for each in rows(url, "select pid from arkvory_instances where kind = 'worker'")), 30)
    assert "has ended; another one is started" in server.log()
    assert server.get("/health/ready").status_code == 200
    # Its numbers are among the server's.
    eventually(lambda: re.search(r'arkvory_cluster_online\{instance="vm1:worker/\d"} 1', server.get("/metrics", auth=None).text), 20)
    eventually(lambda: 'arkvory_job_last_success_seconds{job="cleanup"}' in server.get("/metrics", auth=None).text, 20)
    assert server.stop() == 0
    assert rows(url, "select 1 from arkvory_instances where heartbeat_at > clock_timestamp() - interval '5 s' and kind = 'web'") == []
    assert server.log().count("this worker has ended") == 1
