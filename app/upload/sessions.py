"""Uploads that take several requests (DESIGN 5): their state is a row of `arkvory_uploads`, their bytes a temporary file of the blob store.

So any process may go on with one, and a restart loses nothing that was acknowledged. One request at a time moves bytes of it, and holds
it meanwhile, by a name of its own: whoever was taken for dead writes no more into the row, nor into the file that the next one goes on
with. A process that took in all bytes so far remembers their hashes; another one reads the file once more when it is complete.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from uuid import UUID, uuid4

import gevent
from sqlalchemy import Row

from app.cache.changes import Transactions
from app.database.engines import Database
from app.database.greenlets import to_the_end
from app.database.locks import Step
from app.database.statements import text
from app.database.uploads import OPEN_BY_OWNER
from app.errors import ArkvoryError, TooManyUploads, UploadUnknown, WrongOffset
from app.storage import BlobStore, Incoming
from app.storage.threads import apart, opened
from app.upload.admission import Admission, Reservation
from app.upload.receiving import Hashes, Progress
from config import Settings

# A client that cut a request off repeats it before the server has noticed.
BUSY_SECONDS = 2.0
MOST_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Address:
    """Which upload is meant: it belongs to a target in a repository and to whoever began it, and is unknown elsewhere."""

    repository_id: int
    target: str
    owner: str
    id: UUID


@dataclass(frozen=True, slots=True)
class Held:
    """An upload that this request alone moves bytes of."""

    reservation: Reservation
    incoming: Incoming
    progress: Progress


class Sessions:
    """Begins, holds, pauses and cancels them."""

    def __init__(self, settings: Settings, database: Database, transactions: Transactions, admission: Admission, store: BlobStore) -> None:
        self._settings = settings
        self._database = database
        self._transactions = transactions
        self._admission = admission
        self._store = store
        self._progress: OrderedDict[UUID, Progress] = OrderedDict()

    def begin(self, repository_id: int, target: str, owner: str, key: str, algorithms: Iterable[str] = ()) -> UUID:
        """A new one without bytes; digests by these algorithms will be asked for. Raises TooManyUploads, CapacitySpent or NotFound."""
        reservation = self._admission.open_session(repository_id, key, target, owner)
        self._remember(reservation.id, Progress(0, Hashes(algorithms, ())))
        try:
            opened(self._store.create, reservation.id, close=lambda made: made.discard()).close()
        except BaseException:
            # Nobody hears of it.
            to_the_end(lambda: self._admission.release([reservation.id]))
            raise
        return reservation.id

    def received(self, address: Address) -> int:
        """How many bytes are there. Raises UploadUnknown."""
        with self._database.read() as connection:
            found = connection.execute(text(f"select received from arkvory_uploads where {_CONDITION}"), _values(address)).scalar()
        if found is None:
            raise _unknown()
        return int(found)

    def hold(self, address: Address, offset: int | None = None) -> Held:
        """Take it for this request; `offset` is where the client means to go on.

        Raises UploadUnknown, WrongOffset (the upload stays as it is), or TooManyUploads when another request keeps it.
        """
        holder = uuid4()
        row = self._hold_row(address, holder)
        reservation = Reservation(address.id, address.repository_id, row.bytes, exact=False, written=row.received, holder=holder)
        if offset not in (None, row.received):
            to_the_end(lambda: self._let_go(reservation, row.received))
            raise WrongOffset(f"this upload has {row.received} bytes, and goes on behind them", row.received)
        try:
            incoming = opened(self._store.resume, address.id, row.received, holder, close=_close)
        except BaseException:
            to_the_end(lambda: self._let_go_if_held(reservation, row.received))
            raise
        self._admission.open_uploads[address.id] = reservation
        if incoming is None:
            to_the_end(lambda: self._admission.release([address.id]))
            raise _unknown()
        return Held(reservation, incoming, self._known(address.id, row.received))

    def pause(self, reservation: Reservation, progress: Progress) -> None:
        """Let others go on with it. Raises UploadUnknown when it was given up meanwhile."""
        self._remember(reservation.id, progress)
        self._admission.forget(reservation.id)
        self._let_go(reservation, progress.size)

    def note(self, reservation: Reservation, received: int) -> None:
        """So many bytes are on the disk, while they are still held: whoever goes on after a crash begins there. Raises UploadUnknown."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.UPLOADS)
            done = transaction.connection.execute(_NOTE, self._told(reservation, received))
        if not done.rowcount:
            raise _unknown()

    def cancel(self, address: Address) -> None:
        """Give its bytes back. Raises UploadUnknown, or TooManyUploads while a request moves some."""
        self._hold_row(address, uuid4())
        to_the_end(lambda: self._end(address.id))

    def _end(self, upload_id: UUID) -> None:
        self._admission.release([upload_id])
        apart(self._store.remove_temporary, upload_id)
        self._progress.pop(upload_id, None)

    def free_all(self) -> None:
        """Whoever held any is gone: the storage has a new owner."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.UPLOADS)
            transaction.connection.execute(
                text(
                    "update arkvory_uploads set holder = null, held_until = null "
                    f"where {OPEN_BY_OWNER} and owner is not null and holder is not null"
                )
            )

    def _remember(self, upload_id: UUID, progress: Progress) -> None:
        self._progress[upload_id] = progress
        while len(self._progress) > MOST_REMEMBERED:
            self._progress.popitem(last=False)

    def _known(self, upload_id: UUID, received: int) -> Progress:
        """Hashes of other bytes than those that count are of no use."""
        known = self._progress.pop(upload_id, None)
        return known if known is not None and known.size == received else Progress(received)

    def _hold_row(self, address: Address, holder: UUID) -> Row[tuple[int, int]]:
        deadline = time.monotonic() + BUSY_SECONDS
        while (row := self._try_to_hold(address, holder)) is None:
            self.received(address)
            if time.monotonic() > deadline:
                raise TooManyUploads("another request is sending bytes of this upload", retry_after=1)
            gevent.sleep(0.05)
        return row

    def _try_to_hold(self, address: Address, holder: UUID) -> Row[tuple[int, int]] | None:
        row = None
        try:
            with self._transactions.begin() as transaction:
                transaction.order.reach(Step.UPLOADS)
                row = transaction.connection.execute(
                    _HOLD, {"holder": str(holder), "lease": self._settings.upload_lease_seconds, **_values(address)}
                ).first()
        except BaseException:
            if row is not None:
                # Its COMMIT may have been through.
                held = Reservation(address.id, address.repository_id, row.bytes, exact=False, holder=holder)
                to_the_end(partial(self._let_go_if_held, held, row.received))
            raise
        return row

    def _told(self, reservation: Reservation, received: int) -> dict[str, object]:
        kept = self._settings.upload_session_seconds
        return {"received": received, "kept": kept, "id": str(reservation.id), "holder": str(reservation.holder)}

    def _let_go(self, reservation: Reservation, received: int) -> None:
        try:
            done = self._try_to_let_go(reservation, received)
        except ArkvoryError:
            self._let_go_if_held(reservation, received)
            raise
        if not done:
            raise _unknown()

    def _let_go_if_held(self, reservation: Reservation, received: int) -> None:
        """Of what nobody knows whether it is held: others are not to wait for its lease. Where that cannot be written, they do."""
        with contextlib.suppress(ArkvoryError):
            self._try_to_let_go(reservation, received)

    def _try_to_let_go(self, reservation: Reservation, received: int) -> bool:
        """Whether it was held."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.UPLOADS)
            done = transaction.connection.execute(
                text(
                    "update arkvory_uploads set received = :received, holder = null, held_until = null, changed_at = now(), "
                    "lease_until = now() + make_interval(secs => :kept) where id = cast(:id as uuid) and status = 'open' "
                    "and holder = cast(:holder as uuid)"
                ),
                self._told(reservation, received),
            )
        return bool(done.rowcount)


def _close(incoming: Incoming | None) -> None:
    if incoming is not None:
        incoming.close()


_NOTE = text(
    "update arkvory_uploads set received = :received, changed_at = now(), "
    "lease_until = greatest(lease_until, now() + make_interval(secs => :kept)) "
    "where id = cast(:id as uuid) and status = 'open' and holder = cast(:holder as uuid)"
)
_CONDITION = (
    "id = cast(:id as uuid) and repository_id = :repository and target = :target and owner = :owner and status = 'open' "
    "and lease_until > now()"
)
_HOLD = text(
    "update arkvory_uploads set holder = cast(:holder as uuid), held_until = now() + make_interval(secs => :lease), "
    f"lease_until = greatest(lease_until, now() + make_interval(secs => :lease)) where {_CONDITION} "
    "and (holder is null or held_until < now()) returning bytes, received"
)


def _values(address: Address) -> dict[str, object]:
    return {"id": str(address.id), "repository": address.repository_id, "target": address.target, "owner": address.owner}


def _unknown() -> UploadUnknown:
    return UploadUnknown("there is no such upload: it ended or expired, or belongs to another image or user; begin anew")
