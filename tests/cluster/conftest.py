"""Several processes in one: each house has pools, cache, mailbox and loop of its own, over one database and folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.cluster import loop as loops
from tests.conftest import MakeHouse
from tests.support.house import House

MakeMember = Callable[..., House]


class Clock:
    """Stands in for a clock of the application: time passes as it does, until it stands still, and when a test lets it."""

    def __init__(self, real: Callable[[], float]) -> None:
        self._real = real
        self._let = 0.0
        self._still: float | None = None

    def __call__(self) -> float:
        if self._still is None:
            return self._real() + self._let
        # No two moments are the same.
        self._still += 1e-6
        return self._still + self._let

    def let(self, seconds: float) -> None:
        """Pass."""
        self._let += seconds

    def stand_still(self) -> None:
        self._still = self._real()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of the loops."""
    made = Clock(loops.now)
    monkeypatch.setattr(loops, "now", made)
    return made


@pytest.fixture
def stand_still(clock: Clock) -> Callable[[House], None]:
    """The loop's greenlet goes: no poll, no probe, no heartbeat. Nor does its memory grow old, however long the test takes (M6)."""

    def stand(house: House) -> None:
        clock.stand_still()
        house.loop._greenlet.kill()  # type: ignore[union-attr]
        # Perhaps in the middle of a statement.
        house.loop._close()

    return stand


@pytest.fixture
def make_member(make_house: MakeHouse) -> MakeMember:
    """A process of the cluster, whose loop runs unless `joined` is false: make_member(ARKVORY_UNSYNCED_READS_SECONDS="60")."""
    made: list[House] = []

    def make(*, joined: bool = True, **environment: str) -> House:
        quick = {"ARKVORY_DEPLOYMENT": "cluster", "ARKVORY_INSTANCE_ID": "here", "ARKVORY_DATABASE_POOL_SIZE": "6"}
        made.append(make_house(owns=not made, **quick | environment))
        return made[-1].join(slot=len(made) - 1) if joined else made[-1]

    return make


@pytest.fixture
def pair(make_member: MakeMember) -> tuple[House, House]:
    """One that writes and one that reads."""
    return make_member(), make_member()
