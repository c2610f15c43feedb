"""Who was told that a part is there may rely on it for the grace (W3).

A young part is renewed in memory, and its row with others in the next batch. One that cleanup might take before then is renewed at once.
"""

from __future__ import annotations

from datetime import UTC, datetime

from app.cache.changes import Transactions
from app.database.statements import text
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
        # One row, so whoever has it is waited for.
        with self._transactions.begin() as transaction:
            return transaction.connection.execute(_RENEW, {"id": repository_id, "path": path}).rowcount == 1

    def flush(self) -> None:
        """Called regularly. Never waits for a row while it has others: whoever publishes or deletes locks them in an order of their own."""
        noted, self._noted = self._noted, set()
        if not noted:
            return
        values = {"ids": [each[0] for each in noted], "paths": [each[1] for each in noted]}
        # What somebody else had is renewed the next time, if they leave it a part that nothing refers to.
        left = noted
        try:
            with self._transactions.begin() as transaction:
                transaction.connection.execute(_RENEW_FREE, values)
                waiting = {(row.repository_id, row.path) for row in transaction.connection.execute(_NOT_RENEWED, values)}
            left = waiting
        finally:
            self._noted |= left


_RENEW = text("update arkvory_artifacts set candidate_at = now() where repository_id = :id and path = :path and candidate_at is not null")
_USED = (
    "arkvory_artifacts a join unnest(cast(:ids as bigint[]), cast(:paths as text[])) as used(repository_id, path) "
    "on a.repository_id = used.repository_id and a.path = used.path where a.candidate_at is not null"
)
_RENEW_FREE = text(
    f"with free as materialized (select a.id from {_USED} for update of a skip locked) "
    "update arkvory_artifacts set candidate_at = now() where id in (select id from free)"
)
_NOT_RENEWED = text(f"select a.repository_id, a.path from {_USED} and a.candidate_at < now()")
