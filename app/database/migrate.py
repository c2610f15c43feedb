"""Bringing the database's tables up to date, and saying whether they are."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.pool import NullPool

import migrations
from app.database import engines
from app.database.locks import MIGRATION


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Run the migrations that are missing, up to `revision`; several that start at once take turns."""
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    config = _config()
    with engines.without_limit(), engine.connect() as connection:
        connection.execute(text("select pg_advisory_lock(:c, :o)"), {"c": MIGRATION[0], "o": MIGRATION[1]})
        connection.commit()
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
    """The revision of the database and the newest that this program knows."""
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return state_of(connection)[:2]


def state_of(connection: Connection) -> tuple[str | None, str | None, bool]:
    """The revision of that database, the newest that this program knows, and whether it knows the first."""
    current = MigrationContext.configure(connection).get_current_revision()
    script = ScriptDirectory.from_config(_config())
    return current, script.get_current_head(), any(each.revision == current for each in script.walk_revisions())
