"""Memory is bounded by what is in use: what has expired goes without being asked for."""

from __future__ import annotations

import pytest

from app.cache import regions
from app.cache.regions import Region


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("app.cache.regions.time.monotonic", lambda: now[0])
    return now


def test_what_nobody_uses_goes_once_its_time_is_over(clock: list[float]) -> None:
    """As gates do, whose keys change with each publish."""
    region: Region[int] = Region("r", capacity=1_000_000, lifetime=60)
    for epoch in range(10_000):
        region.put(("path", epoch), epoch, tags=("repository",))
        clock[0] += 0.1
    assert len(region) <= 601
    assert region.evictions == 0
    assert region.peek(("path", 9_999)) == 9_999
    clock[0] += 100
    for epoch in range(200):
        region.put(("other", epoch), epoch)
    assert len(region) == 200
    assert not region.tags


def test_what_is_used_keeps_its_time_and_one_put_drops_only_a_few(clock: list[float]) -> None:
    region: Region[int] = Region("r", capacity=1_000_000, lifetime=60)
    for number in range(100):
        region.put(number, number)
    clock[0] += 59
    assert region.get(0) == 0
    region.put("new", 1)
    assert len(region) == 101
    clock[0] += 2
    region.put("newer", 1)
    assert len(region) == 102 - regions.MOST_DROPPED
    assert (region.get(0), region.get("new")) == (None, 1)


def test_an_entry_that_expires_at_once_leaves_the_region_empty(clock: list[float]) -> None:
    region: Region[int] = Region("r", capacity=10, lifetime=60)
    region.put("a", 1, lifetime=-1.0)
    assert len(region) == 0
    region.put("b", 1, lifetime=0.0)
    assert region.get("b") == 1
