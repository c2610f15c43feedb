"""Who was told that a part is there may rely on it for the grace (W3).

A young part is renewed in memory, and its row with others in the next batch. One that cleanup might take before then is renewed at once.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import text

from app.cache.changes import Transactions
from config import Settings

# Between two batches.
FLUSH_SECONDS = 5.0


class Uses:
    """Renews parts; `grace` in seconds."""

    def __init__(self, settings: Settings, transactions: Transactions) -> None:
        self._grace = settings.blob_grace_seconds
        self._transactions = transactions
        self._noted: set[tuple[int, str]] = set()

    def renew(self, repository_id: int, path: str, candidate_at: datetime) -> bool:
        """False when the part is not what it was: look again. `candidate_at` is since when nothing refers to it, as far as is known."""
        age = (datetime.now(UTC) - candidate_at).total_seconds()
        if age + 2 * FLUSH_SECONDS < self._grace / 2:
            self._noted.add((repository_id, path))
            return True
        return self._write({(repository_id, path)}) == 1

    def flush(self) -> None:
        """Called regularly."""
        noted, self._noted = self._noted, set()
        if noted:
            self._write(noted)

    def _write(self, parts: set[tuple[int, str]]) -> int:
        """How many were parts that nothing refers to, and still are."""
        in_order = sorted(parts)
        values = {"ids": [each[0] for each in in_order], "paths": [each[1] for each in in_order]}
        with self._transactions.begin() as transaction:
            return transaction.connection.execute(_RENEW, values).rowcount


_RENEW = text(
    # Rows are locked in the order of their ids, whatever the plan of the update.
    "with locked as materialized (select a.id from arkvory_artifacts a "
    "join unnest(cast(:ids as bigint[]), cast(:paths as text[])) as used(repository_id, path) "
    "on a.repository_id = used.repository_id and a.path = used.path where a.candidate_at is not null order by a.id for update of a) "
    "update arkvory_artifacts set candidate_at = now() where id in (select id from locked)"
)
