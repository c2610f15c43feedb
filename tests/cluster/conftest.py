"""Several processes in one: each house has pools, cache, mailbox and loop of its own, over one database and folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import MakeHouse
from tests.support.house import House

MakeMember = Callable[..., House]


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
