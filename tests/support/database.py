"""A PostgreSQL to do anything to: stop it, kill it, bring it back."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from app.database import embedded
from config.settings import Settings

DOWN_SECONDS = 20.0


def start(data: Path) -> embedded.EmbeddedPostgres:
    """The embedded PostgreSQL of that data directory, started unless it runs."""
    return embedded.start(Settings.from_environment({"ARKVORY_DATA_DIR": str(data)}))


def execute(url: str, statement: str) -> None:
    """Run one statement outside of any transaction, over a connection of its own."""
    run(create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool), statement)


@functools.cache
def administration(url: str) -> Engine:
    """One connection that lasts: each new one, with an engine of its own, takes as long as making a database does."""
    return create_engine(url, isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=0, pool_pre_ping=True)


def run(engine: Engine, statement: str) -> None:
    """Run one statement outside of any transaction."""
    with engine.connect() as connection:
        connection.execute(text(statement))


def take_down(postgres: embedded.EmbeddedPostgres, how: signal.Signals = signal.SIGINT) -> None:
    """End the server while it is in use (SIGKILL: as a crash) and wait until it is gone. `start(postgres.data)` brings it back."""
    pid = postgres.pid
    assert pid is not None, "PostgreSQL is not running"
    os.kill(pid, how)
    deadline = time.monotonic() + DOWN_SECONDS
    while postgres.pid == pid:
        assert time.monotonic() < deadline, "PostgreSQL did not end"
        time.sleep(0.02)
