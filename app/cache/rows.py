"""Rows of the shared regions in the database: they warm a process that has just started (C4, C6).

A row counts only while the epochs that it was built from equal those of its repository, read in the same statement. So whatever is
written is harmless, and one that cannot be read or written costs nothing but an entry in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy.exc import DBAPIError

from app.cache.store import Cache
from app.cache.view import Epochs
from app.database.engines import CACHE_ROW_WAIT_MS, Database, statements_within
from app.database.statements import text
from app.errors import ArkvoryError

log = logging.getLogger(__name__)

ROW_LIFETIME_SECONDS = 600


class Rows:
    """Those of one region."""

    def __init__(self, database: Database, cache: Cache, region: str) -> None:
        self._database = database
        self._cache = cache
        self._region = region

    def read(self, key: str, repository: str, values: Mapping[str, Any]) -> tuple[str, Epochs] | None:
        """The value and the epochs of its repository, which the condition `repository` tells by `values`."""
        statement = text(
            "select r.metadata_epoch, r.authorization_epoch, r.content_epoch, r.members_epoch, c.value from arkvory_cache_rows c "
            "join arkvory_repositories r on r.id = c.repository_id where c.region = :region and c.key = :key and c.expires_at > now() "
            f"and {repository} and r.deleted_at is null and c.metadata_epoch = r.metadata_epoch "
            "and c.authorization_epoch = r.authorization_epoch and c.members_epoch = r.members_epoch"
        )
        try:
            with self._database.request.connect() as connection, statements_within(connection, CACHE_ROW_WAIT_MS):
                row = connection.execute(statement, {"region": self._region, "key": key, **values}).first()
        except DBAPIError as error:
            self._count_error(error)
            return None
        return None if row is None else (row.value, Epochs._make(row[:4]))

    def write(self, key: str, value: str, repository_id: int, epochs: Epochs) -> None:
        """In a transaction of its own."""
        statement = text(
            "insert into arkvory_cache_rows (region, key, value, repository_id, metadata_epoch, authorization_epoch, members_epoch, "
            "expires_at) values (:region, :key, :value, :id, :m, :a, :g, now() + make_interval(secs => :lifetime)) "
            "on conflict (region, key) do update set value = excluded.value, repository_id = excluded.repository_id, "
            "metadata_epoch = excluded.metadata_epoch, authorization_epoch = excluded.authorization_epoch, "
            "members_epoch = excluded.members_epoch, expires_at = excluded.expires_at"
        )
        values = {
            "region": self._region, "key": key, "value": value, "id": repository_id, "m": epochs.metadata, "a": epochs.authorization,
            "g": epochs.members, "lifetime": ROW_LIFETIME_SECONDS,
        }  # fmt: skip
        try:
            with self._database.write() as connection, statements_within(connection, CACHE_ROW_WAIT_MS):
                connection.execute(statement, values)
        except (DBAPIError, ArkvoryError) as error:
            self._count_error(error)

    def _count_error(self, error: Exception) -> None:
        """C6: what the region holds then lives in memory alone, everything else works."""
        self._cache.row_errors += 1
        log.warning("cache rows cannot be used: %s", error)
