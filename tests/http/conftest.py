"""Servers for the tests of the edge.

    edge        the sample application with ordinary limits, for all tests
    hasty       the same with time limits of a few seconds
    make_edge   one with the settings that a test needs
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.http.edge import Edge

SPARSE = 1024**3


@pytest.fixture(scope="session")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    folder = tmp_path_factory.mktemp("edge")
    (folder / "hello.txt").write_bytes(b"hello world")
    (folder / "empty").touch()
    (folder / "medium.bin").write_bytes(bytes(range(256)) * 1024)
    with open(folder / "sparse.bin", "wb") as sparse:
        sparse.truncate(SPARSE)
    with Edge(folder) as server:
        yield server


@pytest.fixture(scope="session")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    limits = {"ARKVORY_HEADER_SECONDS": "3", "ARKVORY_IDLE_SECONDS": "1", "ARKVORY_KEEPALIVE_SECONDS": "0.5",
              "ARKVORY_LEAST_BODY_RATE": "2"}
    folder = tmp_path_factory.mktemp("hasty")
    with open(folder / "sparse.bin", "wb") as sparse:
        sparse.truncate(SPARSE)
    with Edge(folder, **limits) as server:
        yield server


@pytest.fixture
def make_edge(tmp_path: Path) -> Iterator[Callable[..., Edge]]:
    with contextlib.ExitStack() as running:
        yield lambda **settings: running.enter_context(Edge(tmp_path, **settings))
