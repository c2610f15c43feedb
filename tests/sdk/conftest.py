"""Clients of the module's server, and a road to it that breaks when a test says so."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.database.embedded import EmbeddedPostgres
from arkvory import Client, Event, Retry
from tests.support.road import Road
from tests.support.server import Server

NewClient = Callable[..., Client]
# As many attempts as ever, in the time of a test.
QUICK = Retry(first_wait=0.01, longest_wait=5.0, total=30.0)
_numbers = itertools.count(1)


def noise(size: int, seed: int = 1) -> bytes:
    """So many bytes, always the same for a seed."""
    return random.Random(seed).randbytes(size)


@pytest.fixture(scope="session")
def server(
    postgres: EmbeddedPostgres, new_database: Callable[[str | None], str], template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One for all of this folder: nothing here depends on what else is stored."""
    small_parts = {"ARKVORY_LEAST_PART_BYTES": str(64 * 1024), "ARKVORY_COMPLETE_AT_ONCE_BYTES": str(1024 * 1024)}
    running = Server(tmp_path_factory.mktemp("server"), small_parts, database_url=new_database(template))
    try:
        yield running.start()
    finally:
        running.close()


@pytest.fixture
def new_client(server: Server, tmp_path: Path) -> Iterator[NewClient]:
    made: list[Client] = []

    def make(url: str | None = None, **options: Any) -> Client:
        """The administrator's, unless a login is given; its memory lies in the test's folder."""
        login = {} if "token" in options or "user" in options else dict(zip(("user", "password"), server.admin, strict=True))
        made.append(Client(url or server.url, **({"retry": QUICK, "cache": tmp_path / "cache"} | login | options)))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def client(new_client: NewClient) -> Client:
    return new_client()


@pytest.fixture
def repository(server: Server) -> str:
    """Name of a fresh raw repository."""
    name = f"sdk{next(_numbers)}"
    server.repository(name)
    return name


@pytest.fixture
def road(server: Server) -> Iterator[Road]:
    made = Road(server.port)
    yield made
    made.stop()


@pytest.fixture
def heard() -> list[Event]:
    """To be handed over as progress=heard.append."""
    return []
