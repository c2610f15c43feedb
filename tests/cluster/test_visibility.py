"""Promise 1 with real processes: each kind of change is seen by the others within a poll, by their mail and not by the probe."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

import pytest

from tests.conftest import MakeCluster
from tests.faults.test_servers import Observer
from tests.support import consistency_page
from tests.support.lines import lines
from tests.support.pace import LATE_SECONDS, PROBED_SECONDS
from tests.support.server import Cluster
from tests.support.upstreams import FakeUpstream
from tests.support.visibility import CHANGES, Change, Figures, Stage, measure
from tests.support.visibility_groups import GROUP_CHANGES, SharedStage

SOAK_SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60"))
# A wrong password is asked for again and again.
PATIENT = {"ARKVORY_LOGIN_FAILURES_PER_NAME": "0", "ARKVORY_LOGIN_FAILURES_PER_ADDRESS": "0"}
ROWS = CHANGES + GROUP_CHANGES
# Of each kind of memory one: who belongs to a group, its members' gates, its documents, a proxy's copies.
LOST = {"group member added", "group member's file", "group's folder", "upstream address"}
LIMITS = "99 of 100 below, ms"
HEADINGS = ("change", "4 masters with one worker: median, ms", LIMITS, "2 masters with two workers: median, ms", LIMITS)


def corrections(cluster: Cluster) -> int:
    return sum(len(re.findall(r"the probe found (\d+) change", server.log())) for server in cluster)


def test_every_change_is_seen_by_every_other_process_within_a_poll_or_so(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(masters=2, workers=1, **PATIENT)
    stage = Stage(cluster[0].admin, lines(*cluster)).prepare()
    seen_soon(cluster, stage, CHANGES)


def test_every_change_of_groups_and_proxies_is(make_cluster: MakeCluster, upstream: FakeUpstream) -> None:
    cluster = make_cluster(masters=2, workers=1)
    stage = SharedStage(cluster[0].admin, lines(*cluster), upstream=upstream).prepare()
    seen_soon(cluster, stage, GROUP_CHANGES)


def seen_soon(cluster: Cluster, stage: Stage, changes: Sequence[Change]) -> None:
    for change in changes:
        figures = measure(stage, change, 1)
        assert figures.latest < LATE_SECONDS, f"{change.name}: {figures.delays}"
    assert corrections(cluster) == 0


def test_m5_what_a_group_is_made_of_is_right_within_a_probe_when_every_message_is_lost(
    make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    """The probe looks at the members of the groups that are kept, too."""
    cluster = make_cluster(masters=2, workers=1)
    stage = SharedStage(cluster[0].admin, lines(*cluster), upstream=upstream).prepare()
    observer = Observer(cluster[0])
    observer.rows("create function lose() returns trigger language plpgsql as $$ begin return null; end $$")
    observer.rows("create trigger lose before insert on arkvory_mail for each row execute function lose()")
    for change in GROUP_CHANGES:
        if change.name in LOST:
            assert measure(stage, change, 1).latest < PROBED_SECONDS, change.name
    assert corrections(cluster) > 0


@pytest.mark.soak
@pytest.mark.parametrize(("masters", "workers"), [(4, 1), (2, 2)])
def test_delays_row_by_row(make_cluster: MakeCluster, upstream: FakeUpstream, masters: int, workers: int) -> None:
    """On an idle machine: median below 150 ms, 99 of 100 below 300 ms, and nothing left for the probe."""
    cluster = make_cluster(masters=masters, workers=workers, **PATIENT)
    plain = Stage(cluster[0].admin, lines(*cluster)).prepare()
    shared = SharedStage(cluster[0].admin, lines(*cluster), upstream=upstream).prepare()
    assert len(plain.lines) == masters * workers
    share = SOAK_SECONDS / 4 / len(ROWS)
    print(f"\n{masters} masters with {workers} workers each: median, ms; 99 of 100 below, ms")
    total, rows = Figures("all"), {}
    for change in ROWS:
        stage = shared if change in GROUP_CHANGES else plain
        figures, end = Figures(change.name), time.monotonic() + share
        while not figures.delays or time.monotonic() < end:
            figures.delays += measure(stage, change, 4).delays
        rows[change.name] = figures.cells
        total.delays += figures.delays
    consistency_page.write(HEADINGS, rows | {"all": total.cells}, at=1 if workers == 1 else 3)
    assert corrections(cluster) == 0
    assert total.median < 0.150 and total.slowest < 0.300
