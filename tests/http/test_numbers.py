"""The house's numbers of several workers: sums, and what becomes of those of workers that ended."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from app.http import metrics, numbers
from app.http.metrics import HouseCollector
from app.http.parts import build_parts
from app.repository.mirrors.follower import Standing
from tests.conftest import MakeHouse
from tests.support.house import House


def left_by(folder: Path, pid: int, monkeypatch: pytest.MonkeyPatch, counters: numbers.Rows, gauges: numbers.Rows) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid)
        numbers.write(folder, counters, gauges)


def test_numbers_are_summed_by_label_and_each_instance_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_by(tmp_path, 11, monkeypatch, {"hits": [("gate", 3), ("miss", 1)]}, {"online": [("vm1/0", 1)]})
    left_by(tmp_path, 12, monkeypatch, {"hits": [("gate", 4)]}, {"online": [("vm1/1", 0)]})
    mine = {"hits": [("gate", 10)], "online": [("vm1/2", 1)]}
    assert numbers.with_others(tmp_path, mine) == {
        "hits": [("gate", 17), ("miss", 1)], "online": [("vm1/2", 1), ("vm1/0", 1), ("vm1/1", 0)],
    }  # fmt: skip


def test_a_worker_that_ended_leaves_its_counters_and_takes_its_gauges_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (11, 12):
        left_by(tmp_path, pid, monkeypatch, {"hits": [("gate", 3)]}, {"entries": [("gate", 5)]})
        numbers.bury(tmp_path, pid)
        numbers.bury(tmp_path, pid)
    mine = {"hits": [("gate", 1)], "entries": [("gate", 2)]}
    assert numbers.with_others(tmp_path, mine) == {"hits": [("gate", 7)], "entries": [("gate", 2)]}


def test_a_worker_whose_master_is_gone_writes_nowhere(tmp_path: Path) -> None:
    numbers.write(tmp_path / "gone", {}, {})
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_master_that_was_killed_goes_with_the_next_start_and_that_of_a_living_one_stays() -> None:
    folder = numbers.make_folder()
    try:
        with subprocess.Popen(["/bin/true"]) as ended:
            ended.wait()
        left = folder.with_name(folder.name.replace(str(os.getpid()), str(ended.pid)))
        left.mkdir()
        (left / "house-1.json").touch()
        second = numbers.make_folder()
        assert (left.exists(), folder.exists(), second.exists()) == (False, True, True)
        numbers.remove_folder(second)
    finally:
        numbers.remove_folder(folder)


def test_what_a_worker_told_of_itself_stays_told_when_it_is_killed_in_the_next_moment(house: House, tmp_path: Path) -> None:
    """A counter that went back would count twice for whoever adds up its growth."""
    folder = tmp_path / "metrics"
    folder.mkdir()
    name = "arkvory_database_statements_total"
    numbers.write(folder, {name: [("request", 0), ("session", 0)]}, {})
    house.repository()
    told = next(each for each in HouseCollector(house.parts, folder).collect() if f"{each.name}_total" == name)
    numbers.bury(folder, os.getpid())
    kept = dict(numbers.with_others(folder, {})[name])
    assert kept == {each.labels["pool"]: each.value for each in told.samples}
    assert kept["request"] > 0


def test_a_server_with_a_worker_beside_it_tells_of_each_mirror_once(
    make_house: MakeHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is the first under its name."""
    web = make_house(ARKVORY_DEPLOYMENT="cluster", ARKVORY_INSTANCE_ID="vm1").parts
    worker = build_parts(web.settings.of_worker())
    folder = tmp_path / "metrics"
    folder.mkdir()
    for each in (web, worker):
        assert each.instance is not None
        each.instance.slot = 0
        each.mirroring.known = [Standing(1, 1, "python", True, 3600, todo=3, done=20, failed=1, refused=0, lag_seconds=70)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 11)
        metrics.share(worker, folder)
    told = {each.name: [sample.value for sample in each.samples] for each in HouseCollector(web, folder).collect()}
    names = [f"arkvory_mirror_{each}" for each in ("todo", "done", "failed", "lag_seconds")]
    assert {name: told[name] for name in names} == dict(zip(names, [[3], [20], [1], [70]], strict=True))
    worker.database.dispose()
