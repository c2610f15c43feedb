"""A server whose steps are watched, over a PostgreSQL that may be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from app.database import embedded, migrate
from tests.conftest import postgres_of_its_own
from tests.support.database import execute
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


@pytest.fixture(scope="module")
def wired(own_postgres: embedded.EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """Another one, whose connections to PostgreSQL may break."""
    execute(own_postgres.url, "create database wired")
    url = make_url(own_postgres.url).set(database="wired").render_as_string(hide_password=False)
    migrate.upgrade(url)
    made = Stand(tmp_path_factory.mktemp("wired"), url, through_a_wire=True)
    try:
        yield made.start()
    finally:
        made.close()
