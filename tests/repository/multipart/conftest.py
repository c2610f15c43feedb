"""One process for the tests of one file, with parts of a few bytes; as new for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import NewDatabase
from tests.support.house import House
from tests.support.multipart import SMALL_PARTS, Client, empty


@pytest.fixture(scope="module")
def shared(new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(new_database(template), tmp_path_factory.mktemp("parts"), **SMALL_PARTS)
    yield made
    made.close()


@pytest.fixture
def house(shared: House) -> Iterator[House]:
    """With a repository `files`."""
    shared.repository("files")
    # What uploads of the test before had still to write is known for two seconds.
    shared.parts.admission._looked_at = float("-inf")
    yield shared
    empty(shared)


@pytest.fixture
def client(house: House) -> Client:
    return Client(house)
