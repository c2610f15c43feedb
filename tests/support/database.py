"""A PostgreSQL to do anything to: stop it, kill it, bring it back."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from app.database import embedded
from config.settings import Settings

DOWN_SECONDS = 20.0


def start(data: Path) -> embedded.EmbeddedPostgres:
    """The embedded PostgreSQL of that data directory, started unless it runs."""
    return embedded.start(Settings.from_environment({"ARKVORY_DATA_DIR": str(data)}))


def execute(url: str, statement: str) -> None:
    """Run one statement outside of any transaction."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
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
