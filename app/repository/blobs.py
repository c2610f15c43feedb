"""The rows of blobs: placing, taking into use, letting go (W3).

A blob's row goes `placing` → `live` → `deleting` → gone. Only cleanup takes the second half of that way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.cache.changes import Transaction, Transactions
from app.database.locks import Step
from app.database.statements import text
from app.errors import NotFound, UploadGivenUp
from app.storage import BlobStore
from app.storage.threads import apart
from app.upload.admission import Reservation
from app.upload.receiving import Received


@dataclass(frozen=True)
class Linked:
    """A blob that is here already, for one more path: nothing of it is sent again. `checksums` are hex digests by algorithm."""

    reservation: Reservation
    sha256: str
    size: int
    checksums: Mapping[str, str]


# All locked in the order of their digests first, whatever the plan of the update; the ids of those that were changed.
_TAKE = text(
    "with locked as materialized (select id, id = any(:used) as used, status from arkvory_blobs where id = any(:ids) "
    "order by digest for update) "
    "update arkvory_blobs b set status = case when l.used then 'live' else b.status end, "
    "candidate_at = case when l.used then null else now() end, last_used_at = case when l.used then now() else b.last_used_at end "
    "from locked l where b.id = l.id and (not l.used or l.status in ('placing', 'live')) returning b.id"
)


class Blobs:
    """Blobs at their SHA-256, stored once however many paths point at them."""

    def __init__(self, transactions: Transactions, store: BlobStore) -> None:
        self._transactions = transactions
        self._store = store

    def place(self, received: Received | Linked) -> int:
        """Make or find the blob's row and put the file at its address; the row's id. Holds no lock meanwhile.

        The staged file comes first: from then on cleanup leaves the blob alone, however long this takes.
        Raises NotFound when what is to be linked went meanwhile.
        """
        if isinstance(received, Linked):
            return self._find_live(received)
        apart(self._store.stage, received.incoming, received.sha256)
        while True:
            blob_id, status = self._make_or_find(received)
            if status != "deleting":
                break
            # Its cleanup may have died half way; finishing it is harmless for one that is alive.
            self.finish_deleting(blob_id, received.sha256)
        if status == "live" and apart(self._store.holds, received.sha256, blob_id, received.size):
            return blob_id
        apart(self._store.place, received.incoming, received.sha256, blob_id)
        return blob_id

    def _find_live(self, linked: Linked) -> int:
        """As for what is sent, cleanup leaves it alone for its grace from now on."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.BLOB)
            found = transaction.connection.execute(
                text("update arkvory_blobs set last_used_at = now() where digest = :digest and status = 'live' returning id"),
                {"digest": linked.sha256},
            ).scalar()
        if found is None:
            raise NotFound("what is to be copied was deleted meanwhile")
        return int(found)

    def _make_or_find(self, received: Received) -> tuple[int, str]:
        """`last_used_at` moves, so that cleanup leaves the blob alone for its grace."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.BLOB)
            connection = transaction.connection
            row = connection.execute(
                text(
                    "insert into arkvory_blobs (digest, size, status, checksums, candidate_at) "
                    "values (:digest, :size, 'placing', cast(:checksums as jsonb), now()) on conflict (digest) do nothing returning id"
                ),
                {"digest": received.sha256, "size": received.size, "checksums": json.dumps(dict(received.checksums))},
            ).first()
            if row is not None:
                return int(row.id), "placing"
            found = connection.execute(
                text(
                    "update arkvory_blobs set last_used_at = now(), checksums = checksums || cast(:checksums as jsonb) "
                    "where digest = :digest returning id, status"
                ),
                {"digest": received.sha256, "checksums": json.dumps(dict(received.checksums))},
            ).first()
        # Deleted between the two statements: once more from the start.
        return (int(found.id), str(found.status)) if found is not None else self._make_or_find(received)

    def take(self, transaction: Transaction, used: Sequence[int], replaced: Sequence[int]) -> None:
        """Lock the rows in the order of their digests; `used` become live, `replaced` candidates for the cleanup.

        Raises UploadGivenUp when one of `used` is being deleted or gone: whoever brought it was given up, and cleaned up after.
        """
        transaction.order.reach(Step.BLOB)
        rows = transaction.connection.execute(_TAKE, {"ids": [*used, *replaced], "used": list(used)})
        if frozenset(used) - frozenset(rows.scalars()):
            raise UploadGivenUp

    def let_go(self, transaction: Transaction, blob_ids: Sequence[int]) -> None:
        """Paths to these blobs went away; whether others remain is for the cleanup to see."""
        transaction.order.reach(Step.BLOB)
        transaction.connection.execute(
            text("select id from arkvory_blobs where id = any(:ids) order by digest for update"), {"ids": list(blob_ids)}
        )
        self._offer(transaction, blob_ids)

    def _offer(self, transaction: Transaction, blob_ids: Sequence[int]) -> None:
        if blob_ids:
            transaction.connection.execute(
                text("update arkvory_blobs set candidate_at = now() where id = any(:ids)"), {"ids": list(blob_ids)}
            )

    def finish_deleting(self, blob_id: int, digest: str) -> None:
        """Unlink, then delete the row: the end of a deletion, harmless when someone else is at it."""
        apart(self._store.remove, digest, blob_id)
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.BLOB)
            transaction.connection.execute(text("delete from arkvory_blobs where id = :id and status = 'deleting'"), {"id": blob_id})
