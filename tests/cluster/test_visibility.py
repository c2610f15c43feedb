"""Promise 1 with real processes: each kind of change is seen by the others within a poll, by their mail and not by the probe."""

from __future__ import annotations

import os
import re
import time

import pytest

from tests.conftest import MakeCluster
from tests.support.lines import lines
from tests.support.server import ROOT, Cluster
from tests.support.visibility import CHANGES, Figures, Stage, measure

SOAK_SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60"))
# A wrong password is asked for again and again.
PATIENT = {"ARKVORY_LOGIN_FAILURES_PER_NAME": "0", "ARKVORY_LOGIN_FAILURES_PER_ADDRESS": "0"}
LATE_SECONDS = 2.0


def corrections(cluster: Cluster) -> int:
    return sum(len(re.findall(r"the probe found (\d+) change", server.log())) for server in cluster)


def test_every_change_is_seen_by_every_other_process_within_a_poll_or_so(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(masters=2, workers=1, **PATIENT)
    stage = Stage(cluster[0].admin, lines(*cluster)).prepare()
    for change in CHANGES:
        figures = measure(stage, change, 1)
        assert max(figures.delays) < LATE_SECONDS, f"{change.name}: {figures.delays}"
    assert corrections(cluster) == 0


def test_the_document_has_a_row_for_every_change() -> None:
    document = (ROOT / "docs/consistency.md").read_text()
    rows = set(re.findall(r"^\| ([^|]+) \|", document, re.MULTILINE))
    assert {each.name for each in CHANGES} <= rows


@pytest.mark.soak
@pytest.mark.parametrize(("masters", "workers"), [(4, 1), (2, 2)])
def test_delays_row_by_row(make_cluster: MakeCluster, masters: int, workers: int) -> None:
    """On an idle machine: median below 150 ms, 99 of 100 below 300 ms, and nothing left for the probe."""
    cluster = make_cluster(masters=masters, workers=workers, **PATIENT)
    stage = Stage(cluster[0].admin, lines(*cluster)).prepare()
    assert len(stage.lines) == masters * workers
    share = SOAK_SECONDS / 4 / len(CHANGES)
    print(f"\n{masters} masters with {workers} workers each\n\n| change | median, ms | 99 of 100 below, ms | longest, ms | measured |")
    print("| --- | --- | --- | --- | --- |")
    total = Figures("all")
    for change in CHANGES:
        figures, end = Figures(change.name), time.monotonic() + share
        while not figures.delays or time.monotonic() < end:
            figures.delays += measure(stage, change, 4).delays
        print(figures)
        total.delays += figures.delays
    print(total)
    assert corrections(cluster) == 0
    assert total.median < 0.150 and total.slowest < 0.300
