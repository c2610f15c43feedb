"""Alembic's entry: runs over the connection it is given, else over the configured database."""

from __future__ import annotations

import sqlalchemy
from alembic import context
from sqlalchemy import Connection

from app.database.models import metadata
from config import Settings


def run(connection: Connection) -> None:
    # A transaction for each migration: one that locks a table does so first, and only for its own length.
    context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=True, compare_server_default=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    url = Settings.from_environment().database_url
    if url is None:
        raise SystemExit("set ARKVORY_DATABASE_URL: alembic works on a server of your own, `arkvory db upgrade` also on the embedded one")
    with sqlalchemy.create_engine(url).connect() as own:
        run(own)
        own.commit()
