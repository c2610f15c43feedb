"""Bringing the database's tables up to date, and saying whether they are."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.pool import NullPool

import migrations
from app.database import pools
from app.database.locks import MIGRATION
from app.database.sessions import require_sessions
from app.database.statements import text
from app.errors import Unavailable

log = logging.getLogger(__name__)
# Two lines at each look at a database, which say nothing; what is done here is said below.
logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return config


@functools.cache
def _scripts() -> ScriptDirectory:
    """Reads each of the migrations once, when they are asked for."""
    return ScriptDirectory.from_config(_config())


def upgrade(url: str, revision: str = "head") -> None:
    """Run the migrations that are missing, up to `revision`; several that start at once take turns. Raises Unavailable."""
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    config = _config()
    with pools.database_errors():
        # Before the first lock, which would stay with a pooler for ever.
        require_sessions(engine)
    with pools.database_errors(), pools.without_limit(), engine.connect() as connection:
        connection.execute(text("select pg_advisory_lock(:c, :o)"), {"c": MIGRATION[0], "o": MIGRATION[1]})
        connection.commit()
        before, last, _ = state_of(connection)
        if before is None and connection.execute(text("select to_regclass('arkvory_installation')")).scalar() is not None:
            raise Unavailable("the tables are there without their revision: a restore broke off. Restore again, into an empty database")
        connection.rollback()
        if (before, revision) == (last, "head"):
            return
        if before != last:
            log.info("the tables are at %s and are brought up to date (%s)", before or "nothing", revision)
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def downgrade(url: str, revision: str) -> None:
    """Go back to `revision`; for development only."""
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    config = _config()
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def state(url: str) -> tuple[str | None, str | None]:
    """The revision of the database and the newest that this program knows. Raises DatabaseAway."""
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    with pools.database_errors(), engine.connect() as connection:
        return state_of(connection)[:2]


def newest() -> str | None:
    """The last revision that this program knows."""
    return _scripts().get_current_head()


def knows(revision: str) -> bool:
    """Whether this program has that revision; one of a newer release it has not."""
    return any(each.revision == revision for each in _scripts().walk_revisions())


def state_of(connection: Connection) -> tuple[str | None, str | None, bool]:
    """The revision of that database, the newest that this program knows, and whether it knows the first."""
    current = MigrationContext.configure(connection).get_current_revision()
    return current, newest(), current is not None and knows(current)
