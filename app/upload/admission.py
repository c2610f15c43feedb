"""Admission: may these bytes come in? (DESIGN 5)

Creating an upload, and each growth of one, takes the global lock and, under it, in a later statement,
reads counters only. Never a sum over uploads, and never before the lock is held.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from app.access.identity import NOBODYS
from app.cache.changes import Transaction, Transactions
from app.database.greenlets import is_told_to_end, to_the_end
from app.database.locks import Step
from app.database.statements import text
from app.database.turns import TURN_SECONDS, Turns
from app.database.uploads import OPEN_BY_OWNER
from app.errors import ArkvoryError, CapacitySpent, NotFound, TooLarge, TooManyUploads, UploadGivenUp
from app.storage import BlobStore
from app.storage.threads import apart
from config import Settings

log = logging.getLogger(__name__)

MIB = 1024 * 1024
# How old the sizes of what other processes have written may be.
LOOK_SECONDS = 2.0
FIRST_STEP = MIB
LARGEST_STEP = 256 * MIB
# When whoever has too many uploads open may come again.
MANY_OPEN_SECONDS = 30


@dataclass
class Reservation:
    """An open upload: `reserved` bytes are counted for it, `written` are on the disk already.

    `holder` is who moves bytes of one that takes several requests: when another one took over, this one is worth nothing.
    """

    id: UUID
    repository_id: int
    reserved: int
    exact: bool
    written: int = 0
    holder: UUID | None = None


@dataclass(frozen=True)
class _Row:
    """What stands in the rows of new uploads beside their sizes; `target` and `owner` where one takes several requests."""

    key: str
    lease_seconds: float
    target: str | None = None
    owner: str | None = None

    @property
    def stored_key(self) -> str:
        return self.key[:200]


def _insert(transaction: Transaction, reservations: Sequence[Reservation], row: _Row) -> None:
    transaction.order.reach(Step.UPLOADS)
    transaction.connection.execute(
        text(
            "insert into arkvory_uploads (id, repository_id, status, bytes, key, lease_until, target, owner, received) "
            "select id, :repository, 'open', bytes, :key, now() + make_interval(secs => :lease), :target, :owner, "
            "case when cast(:target as text) is null then null else 0 end "
            "from unnest(cast(:ids as uuid[]), cast(:sizes as bigint[])) as each(id, bytes)"
        ),
        {
            "ids": [str(each.id) for each in reservations],
            "sizes": [each.reserved for each in reservations],
            "repository": reservations[0].repository_id,
            "key": row.stored_key,
            "lease": row.lease_seconds,
            "target": row.target,
            "owner": row.owner,
        },
    )


class Admission:
    """Opens, grows and releases uploads; remembers those of this process, whose leases it renews."""

    def __init__(self, settings: Settings, transactions: Transactions, store: BlobStore) -> None:
        self._settings = settings
        self._transactions = transactions
        self._store = store
        # At most one connection of this process waits for the global lock; the others wait here.
        self._turns = Turns(1, TURN_SECONDS, "many uploads are waiting for their room; try again shortly")
        self.open_uploads: dict[UUID, Reservation] = {}
        self._written_elsewhere = 0
        self._resting = 0
        self._looked_at = float("-inf")
        # Uploads whose owner had too many open.
        self.refused = 0

    def open(self, repository_id: int, size: int | None, key: str, at_most: int | None = None) -> Reservation:
        """Reserve `size` bytes (null: unknown, in steps, the first one no longer than `at_most`).

        Raises TooLarge, CapacitySpent or NotFound.
        """
        if size is not None:
            return self.open_all(repository_id, [size], key)[0]
        reservation = self._open_unknown(repository_id, at_most or FIRST_STEP, _Row(key, self._settings.upload_lease_seconds))
        self.open_uploads[reservation.id] = reservation
        return reservation

    def open_session(self, repository_id: int, key: str, target: str, owner: str) -> Reservation:
        """Reserve a first step for an upload that takes several requests, the first of which moves no bytes.

        Raises as `open`, and TooManyUploads when its owner has as many open as one may have.
        """
        return self._open_unknown(repository_id, FIRST_STEP, _Row(key, self._settings.upload_session_seconds, target, owner))

    def open_all(self, repository_id: int, sizes: Sequence[int], key: str) -> list[Reservation]:
        """Reserve exactly these sizes, each for an upload of its own, all or none. Raises as `open`."""
        for size in sizes:
            self.check_size(size)
        reservations = [Reservation(uuid4(), repository_id, size, exact=True) for size in sizes]
        with self._opening([each.id for each in reservations]) as transaction:
            self.check_room(transaction, repository_id, sum(sizes))
            _insert(transaction, reservations, _Row(key, self._settings.upload_lease_seconds))
        self.open_uploads |= {each.id: each for each in reservations}
        return reservations

    def open_parts(self, repository_id: int, size: int, key: str, also: Callable[[Transaction, UUID], tuple[str, str]]) -> UUID:
        """Reserve `size` bytes for an upload that comes in parts. `also` writes what else is to be known of it, and says target and owner.

        What it raises takes all of it back, and comes before all other refusals. Raises as `open_session`.
        """
        self.check_size(size)
        reservation = Reservation(uuid4(), repository_id, size, exact=True)
        with self._opening([reservation.id]) as transaction:
            target, owner = also(transaction, reservation.id)
            row = _Row(key, self._settings.upload_session_seconds, target, owner)
            self._check_count(transaction, row)
            self.check_room(transaction, repository_id, size)
            _insert(transaction, [reservation], row)
        # Until the next look.
        self._resting += size
        return reservation.id

    @contextlib.contextmanager
    def _opening(self, upload_ids: Sequence[UUID]) -> Iterator[Transaction]:
        """Under the global lock. Nobody answers for uploads whose maker is told to end: the COMMIT may have been through."""
        try:
            with self.locked() as transaction:
                yield transaction
        except BaseException as error:
            if is_told_to_end(error):
                to_the_end(lambda: self.release(upload_ids))
            raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[Transaction]:
        """A transaction under the global lock. Raises Unavailable, also when this process has too many that want it."""
        self._look_elsewhere()
        with self._turns.of("global"), self._transactions.begin(admission=True) as transaction:
            yield transaction

    def _open_unknown(self, repository_id: int, reserved: int, row: _Row) -> Reservation:
        """A nearly spent quota still takes a small body of unknown length."""
        bounds = (FIRST_STEP, reserved, self._settings.max_upload_bytes)
        reserved = min(each for each in bounds if each is not None)
        reservation = Reservation(uuid4(), repository_id, reserved, exact=False)
        with self._opening([reservation.id]) as transaction:
            self._check_count(transaction, row)
            reservation.reserved = reserved = max(1, min(reserved, self._room(transaction, repository_id)))
            self.check_room(transaction, repository_id, reserved)
            _insert(transaction, [reservation], row)
        return reservation

    def grow(self, reservation: Reservation, needed: int, *, exactly: bool = False) -> None:
        """Reserve more, in steps unless `exactly` so much is wanted, until `needed` bytes fit.

        Raises TooLarge, CapacitySpent or UploadGivenUp.
        """
        self.check_size(needed)
        step = 0 if exactly else min(LARGEST_STEP, max(FIRST_STEP, reservation.reserved))
        with self.locked() as transaction:
            room = self._room(transaction, reservation.repository_id)
            wanted = max(needed - reservation.reserved, min(step, room))
            self.check_room(transaction, reservation.repository_id, wanted)
            transaction.order.reach(Step.UPLOADS)
            grown = transaction.connection.execute(
                text(
                    "update arkvory_uploads set bytes = :bytes, changed_at = now() where id = cast(:id as uuid) and status = 'open' "
                    "and holder is not distinct from cast(:holder as uuid)"
                ),
                {"bytes": reservation.reserved + wanted, "id": str(reservation.id), "holder": _text(reservation.holder)},
            )
            if not grown.rowcount:
                raise UploadGivenUp
        reservation.reserved += wanted

    def release(self, upload_ids: Iterable[UUID]) -> None:
        """Give reserved bytes back. When the database is away, cleanup does it once the lease has run out.

        Only what is open, without waiting: one whose publishing is in doubt may turn out to be published (C2). And nothing that
        another one has taken over.
        """
        ids = list(upload_ids)
        holders = [_text(known.holder) if (known := self.open_uploads.get(each)) else None for each in ids]
        try:
            with self._transactions.begin() as transaction:
                transaction.order.reach(Step.UPLOADS)
                transaction.connection.execute(
                    text(
                        "update arkvory_uploads set status = 'released', changed_at = now(), lease_until = null where id in "
                        "(select u.id from arkvory_uploads u "
                        "join unnest(cast(:ids as uuid[]), cast(:holders as uuid[])) as mine(id, holder) on mine.id = u.id "
                        "where u.status = 'open' and (mine.holder is null or mine.holder = u.holder) "
                        "order by u.id for update of u skip locked)"
                    ),
                    {"ids": [str(each) for each in ids], "holders": holders},
                )
        except ArkvoryError as error:
            log.warning("%d upload(s) are left to the cleanup: %s", len(ids), error)
        finally:
            for each in ids:
                self.forget(each)

    def forget(self, upload_id: UUID) -> None:
        """No longer this process's: published, released or left to the cleanup."""
        self.open_uploads.pop(upload_id, None)

    def renew_leases(self) -> None:
        """Called regularly: uploads of this process are alive."""
        if not self.open_uploads:
            return
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.UPLOADS)
            transaction.connection.execute(
                text(
                    "update arkvory_uploads set lease_until = greatest(lease_until, now() + make_interval(secs => :lease)), "
                    "held_until = case when holder is not null then now() + make_interval(secs => :lease) end "
                    # One that is being published right now is passed over: no waiting, no circle.
                    "where id in (select id from arkvory_uploads where id = any(cast(:ids as uuid[])) and status = 'open' "
                    "order by id for update skip locked)"
                ),
                {"lease": self._settings.upload_lease_seconds, "ids": [str(each) for each in self.open_uploads]},
            )

    @property
    def most_bytes(self) -> int | None:
        """Of one file; null: as many as there is room for."""
        return self._settings.max_upload_bytes

    def check_size(self, size: int) -> None:
        """Raises TooLarge."""
        most = self.most_bytes
        if most is not None and size > most:
            raise TooLarge(f"a file may have at most {most} bytes here")

    def _check_count(self, transaction: Transaction, row: _Row) -> None:
        """Of uploads that take several requests: resting, they cost their owner nothing. Under the global lock. Raises TooManyUploads."""
        if row.owner is None:
            return
        statement, most = _OPEN_OF_NETWORK if row.owner == NOBODYS else _OPEN_OF_OWNER, self._settings.max_open_uploads_per_user
        count = transaction.connection.execute(statement, {"owner": row.owner, "key": row.stored_key}).scalar_one()
        if count >= most:
            self.refused += 1
            words = f"{count} uploads of {_whose(row.owner)} are open, of at most {most}; complete or cancel some, or come back later"
            kept = self._settings.upload_session_seconds
            raise TooManyUploads(f"{words}: what nobody goes on with ends after {kept:g} s", retry_after=MANY_OPEN_SECONDS)

    def _room(self, transaction: Transaction, repository_id: int) -> int:
        return min(limit - used for limit, used, _ in self._limits(transaction, repository_id))

    def check_room(self, transaction: Transaction, repository_id: int, size: int) -> None:
        """Under the global lock. Raises CapacitySpent or NotFound."""
        for limit, used, whose in self._limits(transaction, repository_id):
            if used + size > limit or limit == 0:
                raise CapacitySpent(f"{size} bytes do not fit {whose}: {used} of {limit} bytes are taken or reserved by uploads")

    def _limits(self, transaction: Transaction, repository_id: int) -> list[tuple[int, int, str]]:
        """Each limit with what is taken of it and its name; must be called under the global lock."""
        cluster, capacity = self._settings.cluster, self._settings.capacity_bytes
        counted = transaction.connection.execute(
            _COUNTED, {"id": repository_id, "capacity": capacity is not None, "elsewhere": cluster}
        ).first()
        if counted is None:
            raise NotFound("the repository is gone")
        limits = [self._disk_limit(int(counted.open))]
        if counted.quota_bytes is not None:
            limits.append((counted.quota_bytes, int(counted.used), "into the repository's quota"))
        if capacity is not None:
            limits.append((capacity, int(counted.all_used), "into the server's capacity"))
        return limits

    def _disk_limit(self, open_bytes: int) -> tuple[int, int, str]:
        """The disk: free bytes less the reserve, against what open uploads have still to write; `open_bytes` is theirs everywhere."""
        coming = sum(max(0, each.reserved - each.written) for each in self.open_uploads.values())
        coming += self._coming_elsewhere(open_bytes) if self._settings.cluster else self._resting
        return max(0, self._store.free_bytes() - self._settings.disk_reserve_bytes), coming, "on the server's disk"

    def _coming_elsewhere(self, open_bytes: int) -> int:
        """What other processes have reserved and not written yet."""
        reserved = open_bytes - sum(each.reserved for each in self.open_uploads.values())
        return max(0, reserved - self._written_elsewhere)

    def _look_elsewhere(self) -> None:
        """What is to come of uploads that no request of this process moves; before any lock is taken, since the disk may be far away.

        On a single node these are all idle. In a cluster it is told by how much of them is on the disk already.
        """
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        if self._settings.cluster:
            sizes = apart(self._store.temporary)
            self._written_elsewhere = sum(size for upload_id, size in sizes.items() if upload_id not in self.open_uploads)
        else:
            self._resting = self._still_to_come()

    def _still_to_come(self) -> int:
        with self._transactions.database.read() as connection:
            return int(connection.execute(_STILL_TO_COME, {"mine": [str(each) for each in self.open_uploads]}).scalar_one())


# `open` and `published` of the repository; of the server those and `garbage`; what is open everywhere. Only what is asked for is summed.
_COUNTED = text(
    "select r.quota_bytes, case when r.quota_bytes is null then 0 else (select coalesce(sum(c.bytes), 0) from arkvory_upload_bytes c "
    "where c.repository_id = r.id and c.status in ('open', 'published')) end as used, "
    "case when :capacity then (select coalesce(sum(c.bytes), 0) from arkvory_upload_bytes c) else 0 end as all_used, "
    "case when :elsewhere then (select coalesce(sum(c.bytes), 0) from arkvory_upload_bytes c where c.status = 'open') else 0 end as open "
    "from arkvory_repositories r where r.id = :id and r.deleted_at is null"
)

# Whose network it is that nobody in particular uploads from, the key tells.
_OPEN_OF_OWNER = text(f"select count(*) from arkvory_uploads where {OPEN_BY_OWNER} and owner = :owner")
_OPEN_OF_NETWORK = text(f"select count(*) from arkvory_uploads where {OPEN_BY_OWNER} and owner = :owner and key = :key")

# Of those that take several requests: few, whatever the table's size.
_STILL_TO_COME = text(
    f"select coalesce(sum(greatest(bytes - received, 0)), 0) from arkvory_uploads where {OPEN_BY_OWNER} and owner is not null "
    "and id <> all(cast(:mine as uuid[]))"
)


def _whose(owner: str) -> str:
    """For people who count as one."""
    if owner == NOBODYS:
        return "one network without a login"
    return "one deploy token" if owner.startswith("deploy-token:") else "one user"


def _text(upload_id: UUID | None) -> str | None:
    return None if upload_id is None else str(upload_id)
