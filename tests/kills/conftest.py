"""A server whose steps are watched, over a PostgreSQL that may be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.database import embedded, migrate
from tests.conftest import postgres_of_its_own
from tests.support.kills import Stand


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[embedded.EmbeddedPostgres]:
    with postgres_of_its_own() as running:
        migrate.upgrade(running.url)
        yield running


@pytest.fixture(scope="module")
def stand(own_postgres: embedded.EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    made = Stand(tmp_path_factory.mktemp("stand"), own_postgres.url)
    try:
        yield made.start()
    finally:
        made.close()
