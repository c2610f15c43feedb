"""Ten thousand closings with readers in every process, and not one late answer (promises 1 and 2); the same with all mail lost (M5)."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial

import gevent
import pytest

from tests.conftest import MakeCluster
from tests.faults.test_servers import Observer
from tests.support import consistency_page, pace
from tests.support.flips import KINDS, PAUSE_SECONDS, Flips, Tally
from tests.support.lines import lines
from tests.support.server import Cluster
from tests.support.visibility import Stage

SOAK_SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60"))
# In long runs on a machine that does nothing else: a poll, and a probe, and a little.
LATE_SECONDS, PROBED_SECONDS = 1.0, 5.5
MOST = 10_000
# One door of each would wait for its bound most of the time.
DOORS, DOORS_WITHOUT_MAIL = 48, 96
# There is one switch: so that it is turned more often than once a second, few of its closings are long enough for the others' bound.
LASTING = {"anonymous switch": 0.05}
# Nor does it wait for much but its turn: so many installations turn theirs side by side, and together ask no more often than one.
INSTALLATIONS = {"anonymous switch": 3}
# Every role's change moves the installation's one number.
WRITERS = {"role": 1}
HEADINGS = ("what", "closed", "longer than the bound", "answers", "of who closed it", "of others after the bound", "the latest", "wrong")


def build(make_cluster: MakeCluster, masters: int, workers: int) -> tuple[Cluster, Stage]:
    cluster = make_cluster(masters=masters, workers=workers)
    return cluster, Stage(cluster[0].admin, lines(*cluster)).prepare()


def flip(stage: Stage, kind: str, bound: float, *, doors: int, most: int, seconds: float, beside: int = 1) -> Tally:
    shown = list(KINDS[kind](stage, doors))
    lasting = LASTING.get(kind, 1.0) if bound < PROBED_SECONDS else 1.0
    flips = Flips(stage, kind, shown, bound, lasting=lasting, writers=WRITERS.get(kind), pause=PAUSE_SECONDS * beside)
    tally = flips.run(most, seconds)
    print(f"\n{tally}")
    assert not tally.faults, "\n".join(tally.faults)
    return tally


def corrections(cluster: Cluster) -> int:
    return sum(len(re.findall(r"the probe found (\d+) change", server.log())) for server in cluster)


@contextlib.contextmanager
def lost_mail(observer: Observer) -> Iterator[None]:
    observer.rows("create or replace function lose() returns trigger language plpgsql as $$ begin return null; end $$")
    observer.rows("create trigger lose before insert on arkvory_mail for each row execute function lose()")
    try:
        yield
    finally:
        observer.rows("drop trigger lose on arkvory_mail")


def test_doors_of_every_kind_are_closed_again_and_again_and_nobody_answers_late(make_cluster: MakeCluster) -> None:
    cluster, stage = build(make_cluster, masters=2, workers=1)
    for kind in KINDS:
        tally = flip(stage, kind, pace.LATE_SECONDS, doors=12, most=12, seconds=10)
        assert tally.closings >= 8 and tally.at_once >= tally.closings
    assert corrections(cluster) == 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_times_closed_and_not_one_late_answer(make_cluster: MakeCluster, kind: str) -> None:
    many = INSTALLATIONS.get(kind, 1)
    towns = [build(make_cluster, masters=2, workers=2) for _ in range(many)]
    turn = partial(flip, kind=kind, bound=LATE_SECONDS, doors=DOORS, most=MOST // many + 1, seconds=SOAK_SECONDS * 0.2, beside=many)
    turning = [gevent.spawn(turn, stage) for _, stage in towns]
    tally, *others = [each.get() for each in turning]
    for each in others:
        tally.add(each)
    assert tally.later >= tally.lasting * 3, "each of the others was asked after each of these"
    assert sum(corrections(cluster) for cluster, _ in towns) == 0
    consistency_page.write(HEADINGS, {kind: tally.cells})


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_m5_nobody_answers_later_than_a_probe_when_every_message_is_lost(make_cluster: MakeCluster, kind: str) -> None:
    cluster, stage = build(make_cluster, masters=2, workers=2)
    with lost_mail(Observer(cluster[0])):
        tally = flip(stage, kind, PROBED_SECONDS, doors=DOORS_WITHOUT_MAIL, most=MOST, seconds=SOAK_SECONDS * 0.1)
    assert corrections(cluster) > 0
    consistency_page.write(HEADINGS, {f"{kind}, no mail": tally.cells})
