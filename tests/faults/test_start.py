"""Servers that start while PostgreSQL is away, wrong, or goes away in the middle of it (DESIGN 4: nothing hangs, all recover)."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from sqlalchemy import make_url

from app.database import embedded
from tests.cluster.test_instances import refused
from tests.conftest import MakeCluster, MakeServer
from tests.faults.test_servers import QUICK, until
from tests.support.database import start, take_down

AWAY, BACK = "does not answer: ", "PostgreSQL answers again"


def test_a_server_waits_for_postgresql_says_so_once_and_serves_when_it_is_there(
    private_postgres: embedded.EmbeddedPostgres, make_server: MakeServer
) -> None:
    take_down(private_postgres)
    server = make_server(ready=False, ARKVORY_DATABASE_URL=private_postgres.url)
    until(lambda: AWAY in server.log())
    time.sleep(3.5)
    log = server.log()
    assert (log.count(AWAY), "Traceback" in log, "Worker failed to boot" in log) == (1, False, False)
    assert "database arkvory (ARKVORY_DATABASE_URL)" in log
    start(private_postgres.data)
    server.wait_until_ready()
    assert server.log().count(BACK) == 1


def test_postgresql_may_go_away_in_the_middle_of_the_first_start(
    private_postgres: embedded.EmbeddedPostgres, make_server: MakeServer
) -> None:
    """Migrations of an empty database have begun when it is stopped."""
    server = make_server(ready=False, ARKVORY_DATABASE_URL=private_postgres.url)
    until(lambda: "are brought up to date" in server.log())
    take_down(private_postgres, signal.SIGQUIT)
    until(lambda: AWAY in server.log())
    start(private_postgres.data)
    server.wait_until_ready()
    assert "Traceback" not in server.log()


def test_a_worker_that_boots_while_postgresql_goes_away_does_not_end_the_server(
    private_postgres: embedded.EmbeddedPostgres, make_cluster: MakeCluster
) -> None:
    (server,) = make_cluster(1, 2, database_url=private_postgres.url, **QUICK)
    first, _ = server.workers()
    take_down(private_postgres)
    subprocess.run(["kill", "-KILL", str(first)], check=True)
    until(lambda: server.log().count(AWAY) >= 2)
    time.sleep(2)
    assert server.process is not None and server.process.poll() is None
    start(private_postgres.data)
    until(lambda: server.log().count("Arkvory serves at") == 3)
    until(lambda: server.get("/health/ready", auth=None).ok)


@pytest.mark.parametrize(("change", "words"), [
    ({"database": "nodb"}, 'database "nodb" does not exist'),
    ({"password": "wrong"}, "password authentication failed"),
])
def test_a_database_that_refuses_ends_the_start_and_is_named(
    postgres: embedded.EmbeddedPostgres, make_server: MakeServer, change: dict[str, str], words: str
) -> None:
    url = make_url(postgres.url).set(**change).render_as_string(hide_password=False)
    log = refused(make_server(ready=False, ARKVORY_DATABASE_URL=url))
    assert "Traceback" not in log
    said = next(line for line in log.splitlines() if "cannot start: " in line)
    assert (words in said, "(ARKVORY_DATABASE_URL)" in said) == (True, True)


def test_an_outage_is_a_few_lines_however_long_it_lasts(
    private_postgres: embedded.EmbeddedPostgres, make_cluster: MakeCluster
) -> None:
    (server,) = make_cluster(1, 1, database_url=private_postgres.url, **QUICK)
    before = len(server.log())
    take_down(private_postgres)
    until(lambda: AWAY in server.log()[before:])
    time.sleep(6)
    start(private_postgres.data)
    until(lambda: server.get("/health/ready", auth=None).ok)
    until(lambda: BACK in server.log()[before:])
    lines = [line for line in server.log()[before:].splitlines() if " WARNING " in line or " ERROR " in line]
    assert sum(AWAY in line for line in lines) == 1, lines
    assert len(lines) <= 16, lines
