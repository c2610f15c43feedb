"""C1 to C8 against a model: after any sequence of changes, everyone gets exactly what the model says, warm or cold."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import NewDatabase
from tests.support.coherence import Coherence
from tests.support.house import House


def test_everyone_gets_exactly_what_the_model_says_whatever_happens(
    template: str, new_database: NewDatabase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    house = House(new_database(template), tmp_path_factory.mktemp("coherence"), ARKVORY_BLOB_GRACE_SECONDS="3600")
    Coherence.houses = [house]
    try:
        run_state_machine_as_test(Coherence, settings=settings(max_examples=25, stateful_step_count=20, deadline=None))
    finally:
        house.close()
