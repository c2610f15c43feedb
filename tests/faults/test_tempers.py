"""Promises 1 and 2 with real processes and a model, through whatever may happen in any order (C8, M1 to M7)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from app.database import embedded
from tests.conftest import NewDatabase, drop
from tests.faults.test_servers import Observer
from tests.support.flips import public_flags, roles, tokens, users
from tests.support.lines import lines
from tests.support.proxy import Wire
from tests.support.server import Cluster
from tests.support.tempers import Street, Tempers
from tests.support.visibility import Stage

DOORS_OF_EACH_KIND = 2
CHECKS = list(HealthCheck)


@pytest.fixture
def street(
    postgres: embedded.EmbeddedPostgres, new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Street]:
    url = new_database(template)
    wire = Wire(url)
    cluster = Cluster(tmp_path_factory.mktemp("street"), url, masters=2, workers=1)
    # It says sooner that it cannot ask.
    cluster.add(ARKVORY_DATABASE_URL=wire.url, ARKVORY_DATABASE_STATEMENT_SECONDS="3")
    try:
        cluster.start()
        stage = Stage(cluster[0].admin, lines(*cluster)).prepare()
        doors = [door for kind in (public_flags, tokens, users, roles) for door in kind(stage, DOORS_OF_EACH_KIND)]
        observer = Observer(cluster[0])
        observer.rows("create or replace function lose() returns trigger language plpgsql as $$ begin return null; end $$")
        yield Street(cluster, wire, stage, doors, observer)
    finally:
        wire.thaw()
        cluster.close()
        wire.close()
        drop(postgres, url)


def run(street: Street, examples: int, steps: int) -> None:
    machine = type("Here", (Tempers,), {"street": street})
    # The same steps again are not the same: nothing is gained by looking for fewer.
    sizes = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=CHECKS,
    )
    run_state_machine_as_test(machine, settings=sizes)


@pytest.mark.soak
def test_three_servers_agree_with_the_model_whatever_happens(street: Street) -> None:
    run(street, 1, 10)
    assert street.changes >= 2 * len(street.doors) and street.answers >= 10 * len(street.doors)


@pytest.mark.soak
def test_three_servers_agree_with_the_model_for_as_long_as_they_are_asked(street: Street) -> None:
    end = time.monotonic() + float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) * 0.3
    while time.monotonic() < end:
        run(street, 2, 40)
    print(f"\n{street.changes} changes, {street.faults} faults, {street.answers:,} answers")
