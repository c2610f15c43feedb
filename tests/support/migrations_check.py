"""`make migrations-check`: a database made by the migrations has exactly the tables that app.database.models declares."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from app.database import embedded, migrate, models
from config.settings import Settings


def differences(url: str) -> list[object]:
    """What would still have to change in that database for it to match the models."""
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), models.metadata))


def main() -> int:
    """Check on a PostgreSQL of its own; 1 and a line for each difference when there are any."""
    with tempfile.TemporaryDirectory(prefix="arkvory-migrations-") as folder:
        Path(folder).chmod(0o711)
        with embedded.start(Settings.from_environment({"ARKVORY_DATA_DIR": str(Path(folder) / "data")})) as postgres:
            migrate.upgrade(postgres.url)
            found = differences(postgres.url)
    for difference in found:
        print(difference)
    print("models and migrations differ" if found else "models and migrations agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
