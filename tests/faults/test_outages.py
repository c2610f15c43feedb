"""A cluster under load while processes are stopped or killed and PostgreSQL restarts or is away (W1, M1, M4, M6).

Through each of them: nobody sees anything older than the bound, nothing acknowledged is lost, nothing hangs, and all is well again with
nobody's help, within seconds.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gevent
import pytest

from app.database import embedded
from tests.conftest import MakeCluster
from tests.faults.test_servers import QUICK, assert_settles, until
from tests.support import consistency_page, pace
from tests.support.bulletin import Bulletin
from tests.support.database import start, take_down
from tests.support.lines import lines
from tests.support.server import Cluster, Server

SOAK_SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60"))
# A poll, and a probe, and a little: in long runs nothing else runs beside them.
LATE_SECONDS, PROBED_SECONDS = (1.0, 5.5) if "ARKVORY_SOAK_SECONDS" in os.environ else (pace.LATE_SECONDS, pace.PROBED_SECONDS)
BACK_SECONDS = 20.0
# Nothing waits longer for a database that is away.
HANGS_SECONDS = 15.0
CALM_SECONDS = 3.0
HEADINGS = ("outage", "every server wrote again after", "the slowest answer", "writes acknowledged meanwhile")


@dataclass
class Place:
    """The cluster with its PostgreSQL and the clients."""

    cluster: Cluster
    postgres: embedded.EmbeddedPostgres
    bulletin: Bulletin
    # Seconds that the last trouble outlasted what made it.
    after: float = 0.0

    @contextlib.contextmanager
    def trouble(self) -> Iterator[None]:
        """While it lasts, and until every process takes writes again; then a calm, in which nothing may be late or break."""
        self.bulletin.slowest = 0.0
        self.bulletin.trouble = True
        yield
        began = pace.now()
        for server in self.cluster:
            until(lambda server=server: server.put("/raw/board/back", b"x", timeout=60).status_code in {201, 204}, 2 * BACK_SECONDS)
        assert pace.within(BACK_SECONDS, began)
        self.after = time.monotonic() - began
        # What was lost before may be found by a probe.
        gevent.sleep(PROBED_SECONDS)
        self.bulletin.trouble = False
        before = self.corrections()
        gevent.sleep(PROBED_SECONDS + CALM_SECONDS)
        assert self.corrections() == before, "the probe goes on finding what no message told"
        assert not self.bulletin.faults, "\n".join(self.bulletin.faults)

    def corrections(self) -> int:
        return sum(int(number) for server in self.cluster for number in re.findall(r"the probe found (\d+) change", server.log()))


def stopped(place: Place, seconds: float, chosen: Callable[[Server], list[int]]) -> None:
    """Those processes, for so long."""
    server = random.choice(place.cluster)
    known = server.log().count("begins anew with empty memory")
    processes = chosen(server)
    with place.trouble():
        for each in processes:
            os.kill(each, signal.SIGSTOP)
        try:
            gevent.sleep(seconds)
        finally:
            for each in processes:
                os.kill(each, signal.SIGCONT)
    # Its mail was not sent for a while, so that it is another incarnation (M6).
    assert seconds < 30 or server.log().count("begins anew with empty memory") > known


def killed(place: Place) -> None:
    server = random.choice(place.cluster)
    with place.trouble():
        os.kill(random.choice(server.workers()), signal.SIGKILL)
        gevent.sleep(1)


def without_postgresql(place: Place, how: signal.Signals, seconds: float) -> None:
    with place.trouble():
        take_down(place.postgres, how)
        gevent.sleep(seconds)
        start(place.postgres.data)
    assert place.bulletin.slowest < HANGS_SECONDS


TROUBLES: dict[str, Callable[[Place], None]] = {
    "a process stopped for 2 s": lambda place: stopped(place, 2, lambda server: server.workers()[:1]),
    "a process stopped for 6 s": lambda place: stopped(place, 6, lambda server: server.workers()[:1]),
    "a process stopped for 45 s": lambda place: stopped(place, 45, lambda server: server.workers()[:1]),
    "a server stopped for 45 s": lambda place: stopped(place, 45, lambda server: [server.pid, *server.workers()]),
    "a process killed": killed,
    "PostgreSQL restarted fast": lambda place: without_postgresql(place, signal.SIGINT, 0.5),
    "PostgreSQL restarted at once": lambda place: without_postgresql(place, signal.SIGQUIT, 0.5),
    "PostgreSQL crashed": lambda place: without_postgresql(place, signal.SIGKILL, 0.5),
    "PostgreSQL away for 60 s": lambda place: without_postgresql(place, signal.SIGQUIT, 60),
}


@pytest.fixture
def place(private_postgres: embedded.EmbeddedPostgres, make_cluster: MakeCluster) -> Iterator[Place]:
    cluster = make_cluster(masters=2, workers=2, database_url=private_postgres.url, **QUICK)
    cluster[0].repository("board", public=True)
    bulletin = Bulletin(cluster, "board", bound=LATE_SECONDS, late=PROBED_SECONDS)
    bulletin.start()
    yield Place(cluster, private_postgres, bulletin)
    bulletin.stop()


def go_through(place: Place, trouble: str) -> None:
    began = place.bulletin.acknowledged
    TROUBLES[trouble](place)
    cells = [f"{place.after:.1f} s", f"{place.bulletin.slowest:.1f} s", f"{place.bulletin.acknowledged - began}"]
    consistency_page.write(HEADINGS, {trouble: cells})


def assert_all_is_there(place: Place) -> None:
    place.bulletin.stop()
    gevent.sleep(LATE_SECONDS)
    print(f"answers by status: {dict(sorted(place.bulletin.statuses.items()))}")
    place.bulletin.assert_nothing_is_lost(lines(*place.cluster))
    assert_settles(place.cluster[0])


def test_a_cluster_under_load_comes_through_an_outage_by_itself(place: Place) -> None:
    go_through(place, "PostgreSQL restarted at once")
    assert_all_is_there(place)


@pytest.mark.soak
def test_a_cluster_under_load_comes_through_every_outage_by_itself(place: Place) -> None:
    """Each of them once, then whichever for as long as there is time."""
    end = time.monotonic() + SOAK_SECONDS * 0.3
    for each in TROUBLES:
        go_through(place, each)
    while time.monotonic() < end:
        go_through(place, random.choice(list(TROUBLES)))
    assert_all_is_there(place)
