"""Promise 1 and M1 to M7 against a model: several processes, random changes, reads and faults, and nobody is wrong beyond the bound."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from app.cluster import loop as loops
from tests.conftest import NewDatabase
from tests.support.agreement import MEMBERS, Agreement, Clock, stand
from tests.support.house import House


@pytest.fixture
def agreement(
    template: str, new_database: NewDatabase, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[Agreement]]:
    """The machine over processes that stand still, with a clock of its own."""
    folder, url = tmp_path_factory.mktemp("agreement"), new_database(template)
    monkeypatch.setattr(loops, "now", Clock())
    with contextlib.closing(Street(url, folder)) as street:
        yield type("Here", (Agreement,), {"houses": street.houses, "clock": loops.now, "replace": street.replace})


class Street:
    """The houses of one cluster."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._made: list[House] = []
        self.houses = [self._build(number) for number in range(MEMBERS)]

    def _build(self, number: int) -> House:
        environment = {"ARKVORY_DEPLOYMENT": "cluster", "ARKVORY_INSTANCE_ID": "here", "ARKVORY_DATABASE_POOL_SIZE": "6"}
        self._made.append(House(self._url, self._folder, owns=not self._made, ARKVORY_BLOB_GRACE_SECONDS="3600", **environment))
        return stand(self._made[-1], number)

    def replace(self, number: int) -> House:
        """That one is dead: it leaves its mailbox, and another takes its slot."""
        dead = self.houses[number]
        dead.loop._close()
        dead.parts.ownership.release()
        dead.parts.database.dispose()
        self.houses[number] = self._build(number)
        return self.houses[number]

    def close(self) -> None:
        for each in self._made:
            each.close()


CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def test_processes_agree_within_the_bound_whatever_happens_between_them(agreement: type[Agreement]) -> None:
    sizes = settings(max_examples=8, stateful_step_count=15, deadline=None, suppress_health_check=CHECKS)
    run_state_machine_as_test(agreement, settings=sizes)


@pytest.mark.soak
def test_processes_agree_for_as_long_as_they_are_asked(agreement: type[Agreement]) -> None:
    end = time.monotonic() + float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) / 3
    sizes = settings(max_examples=20, stateful_step_count=40, deadline=None, database=None, suppress_health_check=CHECKS)
    while time.monotonic() < end:
        run_state_machine_as_test(agreement, settings=sizes)
    print(f"\n{agreement.numbers} examples of up to 40 steps, after each of which everyone was asked for everything")
