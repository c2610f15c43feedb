"""Promise 1 and M1 to M7 against a model: several processes, random changes, reads and faults, and nobody is wrong beyond the bound."""

from __future__ import annotations

from collections.abc import Iterator

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
    folder, url, made = tmp_path_factory.mktemp("agreement"), new_database(template), []
    monkeypatch.setattr(loops, "now", clock := Clock())

    def make(number: int) -> House:
        environment = {"ARKVORY_DEPLOYMENT": "cluster", "ARKVORY_INSTANCE_ID": "here", "ARKVORY_DATABASE_POOL_SIZE": "6"}
        made.append(House(url, folder, owns=not made, ARKVORY_BLOB_GRACE_SECONDS="3600", **environment))
        return stand(made[-1], number)

    class Here(Agreement):
        houses = [make(number) for number in range(MEMBERS)]

        @staticmethod
        def replace(dying: House) -> House:
            dying.loop._close()
            dying.parts.ownership.release()
            dying.parts.database.dispose()
            return make(Here.houses.index(dying))

    Here.clock = clock
    yield Here
    for each in made:
        each.close()


def test_processes_agree_within_the_bound_whatever_happens_between_them(agreement: type[Agreement]) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        agreement, settings=settings(max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=checks)
    )
