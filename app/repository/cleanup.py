"""Cleanup (DESIGN 5, W3): the only one that deletes bytes, always after the rows say that nobody needs them.

    abandoned uploads     open, their lease run out, or their repository gone → released
    garbage               replaced or deleted, past its grace            → released
    parts                 that nothing refers to, past their grace       → deleted
    deleted repositories  their artifacts in batches, then the row
    temporary files       of uploads that are not open any more
    blobs                 unreferenced, unpinned, past their grace       → deleting → unlink → gone
    cache rows, released uploads, mail that nobody will read, dead pins,
    what is told of uploads in parts that have ended                     → old ones go
    work of mirrors that are gone
    logins that nobody confirmed, tokens that expired a month ago        → gone

Each batch is a short transaction of its own; whatever ends half way is finished by the next run. Each step does what was due when it began.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gevent.lock import BoundedSemaphore
from sqlalchemy import Row
from sqlalchemy.exc import DBAPIError

from app.cache.changes import Transactions, UploadState
from app.cache.installation import read_switches
from app.cluster import mailbox, membership, pins
from app.database.engines import CACHE_ROW_WAIT_MS, Database, statements_within
from app.database.locks import Step
from app.database.statements import text
from app.database.uploads import GARBAGE_BY_AGE, OPEN_BY_LEASE, OPEN_BY_OWNER, RELEASED_BY_AGE
from app.errors import Unavailable
from app.repository.blobs import Blobs
from app.repository.mirrors.worklist import delete_orphans
from app.repository.publishing import delete_rows
from app.repository.references import is_part
from app.storage import BlobStore
from app.storage.threads import apart
from app.upload.admission import Admission
from app.upload.multipart import Multiparts
from config import Settings

log = logging.getLogger(__name__)

BATCH = 500
RELEASED_KEPT_SECONDS = 24 * 3600
# So long a list of tokens shows one that has expired.
EXPIRED_KEPT_SECONDS = 30 * 24 * 3600


@dataclass
class Cleaned:
    """What one run did, in rows and files."""

    abandoned: int = 0
    garbage: int = 0
    parts: int = 0
    blobs: int = 0
    artifacts: int = 0
    temporary: int = 0


class Cleanup:
    """One run at a time; safe beside everything else."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        transactions: Transactions,
        admission: Admission,
        blobs: Blobs,
        store: BlobStore,
        multiparts: Multiparts,
        unpinned_seconds: float = 0.0,
    ) -> None:
        """A download may go on without a pin for `unpinned_seconds` after its blob lost its last path: until then no grace is over."""
        self._grace = settings.blob_grace_seconds
        self._blob_grace = max(self._grace, unpinned_seconds)
        self._database = database
        self._transactions = transactions
        self._admission = admission
        self._blobs = blobs
        self._store = store
        self._multiparts = multiparts
        self._turn = BoundedSemaphore(1)
        self._check: Callable[[], None] = lambda: None

    def run(self, check: Callable[[], None] = lambda: None) -> Cleaned:
        """Everything once; `check` is called before each batch, and what it raises ends it.

        Raises NotOwner or Unavailable when it cannot go on; the next run does the rest.
        """
        with self._turn:
            self._check = check
            return self._run()

    def _run(self) -> Cleaned:
        done = Cleaned()
        done.abandoned = self._release_abandoned() + self._release_homeless()
        done.artifacts = self._sweep_deleted_repositories()
        done.parts = self._delete_parts()
        done.garbage = self._release_garbage()
        # Before the blobs: none goes while a file is there that may still be placed.
        done.temporary = self._remove_temporary_files()
        done.blobs = self._delete_blobs()
        self._purge_old_rows()
        if done != Cleaned():
            log.info("cleanup: %s", done)
        return done

    def _in_batches(self, step: Callable[[], int]) -> int:
        total = 0
        while (count := self._next(step)) > 0:
            total += count
        return total

    def _next(self, step: Callable[[], int]) -> int:
        self._check()
        return step()

    def _now(self) -> datetime:
        """By the database's clock. What falls due while a step runs is the next run's: under load it would come to no end."""
        with self._database.read() as connection:
            now: datetime = connection.execute(text("select now()")).scalar_one()
            return now

    # -- uploads

    def _release_abandoned(self) -> int:
        condition, now = f"{OPEN_BY_LEASE} and lease_until < :now and not (id = any(cast(:mine as uuid[])))", self._now()
        return self._in_batches(lambda: self._release(condition, "lease_until", now))

    def _release_homeless(self) -> int:
        """Those that take several requests and that nobody can go on with, and nobody moves bytes of."""
        now = self._now()
        return self._in_batches(lambda: self._release(_HOMELESS, "owner, key", now))

    def _release_garbage(self) -> int:
        condition, now = f"{GARBAGE_BY_AGE} and changed_at <= :now - make_interval(secs => :grace)", self._now()
        return self._in_batches(lambda: self._release(condition, "changed_at", now))

    def _release(self, condition: str, order: str, now: datetime) -> int:
        mine = [str(each) for each in self._admission.open_uploads]
        statement = text(
            "update arkvory_uploads set status = 'released', changed_at = now(), lease_until = null where id in "
            f"(select id from arkvory_uploads where {condition} order by {order} limit {BATCH} for update skip locked)"
        )
        values = {"now": now} | ({"mine": mine} if ":mine" in condition else {"grace": self._grace})
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.UPLOADS)
            return transaction.connection.execute(statement, values).rowcount

    # -- parts

    def _delete_parts(self) -> int:
        """By repository, in the order of their age. While all that is stored is frozen, none goes."""
        count, now = 0, self._now()
        with self._database.read() as connection:
            frozen = read_switches(connection).read_only
        while not frozen and (found := self._stale_parts(now)):
            for repository_id, ids in found.items():
                self._check()
                count += self._delete_parts_of(repository_id, ids, now)
        return count

    def _stale_parts(self, now: datetime) -> Mapping[int, list[int]]:
        statement = text(
            "select a.id, a.repository_id from arkvory_artifacts a join arkvory_repositories r on r.id = a.repository_id "
            f"where r.deleted_at is null and {_STALE} order by a.candidate_at limit {BATCH}"
        )
        found: dict[int, list[int]] = defaultdict(list)
        with self._database.read() as connection:
            for row in connection.execute(statement, {"grace": self._grace, "now": now}):
                found[row.repository_id].append(row.id)
        return found

    def _delete_parts_of(self, repository_id: int, ids: Sequence[int], now: datetime) -> int:
        """Under the repository's lock nothing new refers to them; under the rows' own nobody renews them (W3)."""
        with self._transactions.begin(repository_id) as transaction:
            connection = transaction.connection
            rows = connection.execute(_LOCKED_PARTS, {"ids": list(ids), "grace": self._grace, "now": now}).all()
            needed = [row.id for row in rows if is_part(connection, repository_id, row.path)]
            connection.execute(text("update arkvory_artifacts set candidate_at = null where id = any(:ids)"), {"ids": needed})
            going = [row for row in rows if row.id not in set(needed)]
            if going:
                transaction.advance(repository_id, "content", paths=[row.path for row in going])
                self._blobs.let_go(transaction, sorted({row.blob_id for row in going}))
                delete_rows(connection, repository_id, [row.upload_id for row in going])
                transaction.settle_uploads({row.upload_id: UploadState("garbage") for row in going})
        return len(going)

    # -- blobs

    def _delete_blobs(self) -> int:
        """Candidates in the order of their age; each is looked at again under its row's lock.

        Whoever places a blob stages its file, then touches the row. So nobody does, or can later, when the row was read first, then no
        file is staged, and the row is untouched when it is locked: a file that came to the address after its row went would lie there
        for ever.
        """
        count, now = 0, self._now()
        last: Any = None
        while rows := self._candidates(last, now):
            self._check()
            staged = apart(self._store.staged)
            count += sum(self._delete_blob(row) for row in rows if row.digest not in staged)
            last = (rows[-1].candidate_at, rows[-1].id)
        return count

    def _candidates(self, after: Any, now: datetime) -> list[Row[Any]]:
        later = "" if after is None else "and (candidate_at, id) > (:at, :id)"
        statement = text(
            "select id, digest, candidate_at, last_used_at from arkvory_blobs where candidate_at <= :now - make_interval(secs => :grace) "
            f"{later} order by candidate_at, id limit {BATCH}"
        )
        values = {"grace": self._blob_grace, "now": now} | ({} if after is None else {"at": after[0], "id": after[1]})
        with self._database.read() as connection:
            return list(connection.execute(statement, values))

    def _delete_blob(self, candidate: Row[Any]) -> int:
        if not self._mark_deleting(candidate):
            return 0
        self._blobs.finish_deleting(candidate.id, candidate.digest)
        return 1

    def _mark_deleting(self, candidate: Row[Any]) -> bool:
        """Lock the row, then look again in new statements, which see what a publisher or a pin session committed meanwhile (W3)."""
        blob_id = candidate.id
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.BLOB)
            connection = transaction.connection
            locked = connection.execute(text("select 1 from arkvory_blobs where id = :id for update skip locked"), {"id": blob_id})
            if locked.first() is None:
                return False
            if connection.execute(text("select 1 from arkvory_artifacts where blob_id = :id limit 1"), {"id": blob_id}).first() is not None:
                connection.execute(text("update arkvory_blobs set candidate_at = null, status = 'live' where id = :id"), {"id": blob_id})
                return False
            if pins.is_pinned(connection, blob_id):
                return False
            marked = connection.execute(
                text(
                    "update arkvory_blobs set status = 'deleting' where id = :id and candidate_at is not null "
                    "and last_used_at = :seen and last_used_at <= now() - make_interval(secs => :grace)"
                ),
                {"id": blob_id, "seen": candidate.last_used_at, "grace": self._blob_grace},
            )
            return marked.rowcount == 1

    # -- repositories

    def _sweep_deleted_repositories(self) -> int:
        with self._database.read() as connection:
            ids = connection.execute(text("select id from arkvory_repositories where deleted_at is not null order by id")).scalars().all()
        return sum(self._sweep(repository_id) for repository_id in ids)

    def _sweep(self, repository_id: int) -> int:
        count = self._in_batches(lambda: self._sweep_batch(repository_id))
        with self._transactions.begin(repository_id) as transaction:
            transaction.order.reach(Step.REPOSITORY_ROW)
            for table in ("arkvory_used_paths", "arkvory_holds", "arkvory_packages", "arkvory_access_rules", "arkvory_deploy_tokens"):
                transaction.connection.execute(text(f"delete from {table} where repository_id = :id"), {"id": repository_id})
            transaction.connection.execute(text("delete from arkvory_repositories where id = :id"), {"id": repository_id})
        return count

    def _sweep_batch(self, repository_id: int) -> int:
        with self._transactions.begin(repository_id) as transaction:
            connection = transaction.connection
            rows = connection.execute(
                text(f"select id, blob_id, upload_id from arkvory_artifacts where repository_id = :id limit {BATCH}"), {"id": repository_id}
            ).all()
            if rows:
                self._blobs.let_go(transaction, sorted({row.blob_id for row in rows}))
                connection.execute(text("delete from arkvory_artifacts where id = any(:ids)"), {"ids": [row.id for row in rows]})
                transaction.settle_uploads({row.upload_id: UploadState("garbage") for row in rows})
        return len(rows)

    # -- files and old rows

    def _remove_temporary_files(self) -> int:
        """Files whose upload is not open: of processes that died, or of a release that could not be written."""
        present = set(apart(self._store.temporary))
        with self._database.read() as connection:
            still_open = set(
                connection.execute(
                    text("select id from arkvory_uploads where status = 'open' and id = any(cast(:ids as uuid[]))"),
                    {"ids": [str(each) for each in present]},
                ).scalars()
            )
        # Asked last: an upload that opened meanwhile is in this process's own list.
        left = present - still_open - set(self._admission.open_uploads)
        self._check()
        for upload_id in left:
            apart(self._store.remove_temporary, upload_id)
        return len(left)

    def _purge_old_rows(self) -> None:
        self._purge_cache_rows()
        self._in_batches(lambda: delete_orphans(self._database))
        self._in_batches(self._purge_mail)
        self._multiparts.purge()
        with self._transactions.begin() as transaction:
            # Nothing else is locked, and nobody waits for these rows.
            pins.delete_dead(transaction.connection)
        self._purge_expired()
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.UPLOADS)
            transaction.connection.execute(
                text(
                    f"delete from arkvory_uploads where id in (select id from arkvory_uploads where {RELEASED_BY_AGE} "
                    "and changed_at < now() - make_interval(secs => :kept) order by changed_at limit 10000)"
                ),
                {"kept": RELEASED_KEPT_SECONDS},
            )
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.UPLOADS)
            # Rows of nothing, of repositories that are gone: capacity is summed over all rows.
            transaction.connection.execute(
                text(
                    "delete from arkvory_upload_bytes c where c.bytes = 0 and c.uploads = 0 "
                    "and not exists (select 1 from arkvory_repositories r where r.id = c.repository_id)"
                )
            )
        with self._database.write() as connection:
            connection.execute(_DELETE_DOWNLOADS_OF_NOTHING)

    def _purge_expired(self) -> None:
        """Nothing is believed of them any more. One with which others were made that hold still goes after these."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PEOPLE)
            for statement in _DELETE_EXPIRED:
                transaction.connection.execute(statement, {"kept": EXPIRED_KEPT_SECONDS})

    def _purge_mail(self) -> int:
        """M4: of processes that left without a word, and their rows."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.MAIL)
            membership.delete_gone(transaction.connection)
            return mailbox.delete_unread(transaction.connection)

    def _purge_cache_rows(self) -> None:
        try:
            with self._transactions.begin() as transaction, statements_within(transaction.connection, CACHE_ROW_WAIT_MS):
                transaction.order.reach(Step.CACHE)
                transaction.connection.execute(text("delete from arkvory_cache_rows where expires_at < now()"))
        except (DBAPIError, Unavailable) as error:
            # C6: whatever is wrong with them costs nothing else.
            log.warning("old cache rows could not be deleted: %s", error)


# Of those that come in parts more is to be told (`Multiparts.purge`).
_HOMELESS = (
    f"{OPEN_BY_OWNER} and owner is not null and (holder is null or held_until < :now) "
    "and not exists (select 1 from arkvory_repositories r where r.id = arkvory_uploads.repository_id and r.deleted_at is null) "
    "and not exists (select 1 from arkvory_multiparts m where m.upload_id = arkvory_uploads.id)"
)
_STALE = "a.candidate_at <= :now - make_interval(secs => :grace)"
_LOCKED_PARTS = text(f"select a.id, a.path, a.blob_id, a.upload_id from arkvory_artifacts a where a.id = any(:ids) and {_STALE} for update")
_EXPIRED = "expires_at < now() - make_interval(secs => :kept)"
_DELETE_EXPIRED = (
    text("delete from arkvory_logins where digest in (select digest from arkvory_logins where expires_at < now() for update skip locked)"),
    text(f"delete from arkvory_deploy_tokens where id in (select id from arkvory_deploy_tokens where {_EXPIRED} for update skip locked)"),
    text(
        f"delete from arkvory_tokens where id in (select id from arkvory_tokens t where {_EXPIRED} "
        "and not exists (select 1 from arkvory_tokens c where c.parent_id = t.id) "
        "and not exists (select 1 from arkvory_deploy_tokens c where c.parent_id = t.id) for update skip locked)"
    ),
)
_DELETE_DOWNLOADS_OF_NOTHING = text(
    "delete from arkvory_repository_downloads d where not exists (select 1 from arkvory_repositories r where r.id = d.repository_id)"
)
