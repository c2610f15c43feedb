"""The random mixes for as long as they are given (`make soak`), with the same proofs as in the short runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import MakeHouse, NewDatabase
from tests.support.coherence import Coherence
from tests.support.house import House
from tests.support.mixer import REPOSITORIES, assert_all_is_well, run_greenlets

pytestmark = pytest.mark.soak
# The storm (test_storm.py) takes the rest.
SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) * 0.15


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
