"""How full quotas are comes from counters alone, and a change of it is one line in the log."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from app.http import metrics
from app.repository.quotas import level_of
from tests.conftest import MakeHouse
from tests.support.house import ADMIN, House


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.name == "app.repository.quotas"]
    caplog.clear()
    return found


@pytest.mark.parametrize(
    ("used", "quota", "level"), [(0, 0, 0), (1, 0, 100), (79, 100, 0), (80, 100, 80), (94, 100, 80), (95, 100, 95), (100, 100, 100)]
)
def test_levels_are_those_that_are_reached(used: int, quota: int, level: int) -> None:
    assert level_of(used, quota) == level


def test_a_repository_that_fills_and_empties_is_told_of_once_for_each_change(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    house.repository(quota_bytes=100)
    house.repository("free")
    check = house.parts.quotas.check
    assert (check(), lines(caplog)) == ("0 of 1 at 80 % or above", [])
    house.publish("a", b"x" * 85)
    assert check() == "1 of 1 at 80 % or above"
    assert lines(caplog) == ["the quota of repository files is at 80 % or above: 85 of 100 bytes"]
    check()
    assert lines(caplog) == []
    assert house.parts.listing.usage(ADMIN, "files").quota_level == 80
    house.publish("b", b"x" * 15)
    check()
    assert lines(caplog) == ["the quota of repository files is at 100 % or above: 100 of 100 bytes; uploads are refused"]
    house.delete("b")
    check()
    assert lines(caplog) == ["the quota of repository files is below 100 % again: 85 of 100 bytes"]
    house.change("files", quota_bytes=None)
    check()
    assert (lines(caplog), house.rows("select 1 from arkvory_quota_levels")) == ([], [])


def test_the_servers_capacity_is_checked_as_admission_counts_it(make_house: MakeHouse, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    house = make_house(ARKVORY_CAPACITY_BYTES="100")
    house.repository()
    house.publish("a", b"x" * 50)
    house.publish("a", b"y" * 46)
    house.parts.quotas.check()
    assert lines(caplog) == ["the server's capacity is at 95 % or above: 96 of 100 bytes"]
    house.parts.quotas.refresh()
    values = metrics.values_of(house.parts)
    assert (values["arkvory_capacity_used_ratio"], values["arkvory_quota_used_ratio"]) == ([("", 0.96)], [])


def test_the_check_reads_neither_uploads_nor_artifacts(house: House) -> None:
    house.repository(quota_bytes=10)
    house.publish("a", b"x" * 9)
    said: list[str] = []
    event.listen(house.parts.database.request.engine, "before_cursor_execute", lambda *each: said.append(each[2]))
    house.parts.quotas.check()
    assert said and not [each for each in said if "arkvory_uploads" in each or "arkvory_artifacts" in each]
