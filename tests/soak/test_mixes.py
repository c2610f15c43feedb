"""The random mixes for as long as they are given (`make soak`), with kills, restarts and the same proofs as in the short runs."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import gevent
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from app.database import embedded
from tests.conftest import MakeHouse, MakeServer, NewDatabase
from tests.faults.test_servers import QUICK, Load, assert_settles, until
from tests.support.coherence import Coherence
from tests.support.database import start, take_down
from tests.support.house import House
from tests.support.mixer import REPOSITORIES, assert_all_is_well, run_greenlets

pytestmark = pytest.mark.soak
# Shared between the three.
SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) / 3


def test_w1_w3_mixes_of_uploads_and_cleanup_lose_nothing_and_count_right(make_house: MakeHouse) -> None:
    house = make_house()
    for name in REPOSITORIES:
        house.repository(name)
    end, seed = time.monotonic() + SECONDS, int(time.time())
    while time.monotonic() < end:
        seed += 1
        print("seed", seed)
        run_greenlets(house, seed, 40, 8)
        assert_all_is_well(house)


def test_c1_to_c8_everyone_gets_what_the_model_says(template: str, new_database: NewDatabase, tmp_path: Path) -> None:
    house = House(new_database(template), tmp_path / "data", ARKVORY_BLOB_GRACE_SECONDS="3600")
    Coherence.houses = [house]
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            run_state_machine_as_test(Coherence, settings=settings(max_examples=30, stateful_step_count=40, deadline=None, database=None))
    finally:
        house.close()


def test_w1_servers_and_databases_that_are_killed_again_and_again_lose_nothing(
    private_postgres: embedded.EmbeddedPostgres, make_server: MakeServer
) -> None:
    server = make_server(ARKVORY_DATABASE_URL=private_postgres.url, **QUICK)
    server.repository("files", public=True)
    end, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        number += 1
        load = Load(server, f"round {number} ")
        gevent.sleep(random.random() * 3)
        if number % 2:
            server.kill9()
            server.start()
        else:
            take_down(private_postgres, random.choice((signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)))
            gevent.sleep(random.random() * 5)
            start(private_postgres.data)
        before = load.statuses[201]
        until(lambda load=load, before=before: load.statuses[201] > before)
        load.end()
    assert_settles(server)
