"""Parts on their way into the file of their upload: each is one request's for a while, by a name that its row has (ADR 12).

Whoever sends a part opens the file after its row says so, writes into the part's own range alone, and says how it ended only after the
file is closed again. So a row without a holder means that nobody can write there; and one that was taken from a holder that never told
its end has a stray: somebody who may still write, whenever it wakes up. Then the bytes are copied before they are published, unless the
kernel knows that nobody has the file open any more.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import gevent
from sqlalchemy import Connection

from app.cache.changes import Transaction, Transactions
from app.database.clock import now
from app.database.greenlets import to_the_end
from app.database.locks import Step
from app.database.statements import text
from app.errors import ArkvoryError, Invalid, TooManyUploads, UploadClosed, UploadGivenUp
from app.storage import BlobStore, Incoming
from app.storage.threads import opened
from app.upload.admission import Admission
from app.upload.multipart import Part, Upload, touch, unknown
from config import Settings

log = logging.getLogger(__name__)

LEASE_SECONDS = 25.0
# A client that cut a request off repeats it before the server has noticed.
BUSY_SECONDS = 2.0


def machine() -> str:
    """This machine, since its last start; processes that share it have one kernel, which knows all of their open files."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _UNTOLD


_UNTOLD = f"unknown/{uuid4()}"


@dataclass
class Attempt:
    """A request that sends a part: `holder` is its name, `reserved` bytes are counted for it alone (none where the whole's size is known).

    Without a sign of life it is taken for dead, after `good_until` on the clock that counts sleep. `closed`: it writes nothing any more;
    `ended`: its row says so.
    """

    upload_id: UUID
    number: int
    holder: UUID
    reserved: int
    good_until: float
    closed: bool = False
    ended: bool = False


class Guarded:
    """A part's range, for as long as the attempt has not been taken for dead: it stops as soon as it sees that itself."""

    def __init__(self, range: Incoming, attempt: Attempt) -> None:
        self._range = range
        self._attempt = attempt
        self.path = range.path

    def write(self, piece: bytes | memoryview) -> None:
        if now() > self._attempt.good_until:
            raise UploadGivenUp
        self._range.write(piece)

    def sync(self) -> None:
        self._range.sync()
        self._attempt.closed = True

    def close(self) -> None:
        self._range.close()
        self._attempt.closed = True

    def discard(self) -> None:
        self.close()


class PartHolds:
    """Takes parts for requests, and says of each how it ended."""

    def __init__(self, settings: Settings, transactions: Transactions, admission: Admission, store: BlobStore) -> None:
        self._kept = settings.upload_session_seconds
        self._transactions = transactions
        self._admission = admission
        self._store = store
        self._attempts: dict[UUID, Attempt] = {}
        self._machine = machine()

    @contextlib.contextmanager
    def hold(self, upload: Upload, number: int, size: int) -> Iterator[tuple[Attempt, Incoming]]:
        """Send a part of at most `size` bytes: what was there of it is there no more. The range is to be closed within the block.

        Raises TooManyUploads while another request sends it, UploadUnknown, UploadClosed, CapacitySpent, TooLarge, and Invalid for a short
        part that is not the last.
        """
        offset = (number - 1) * upload.plan.part_size
        self._admission.check_size(offset + size)
        attempt = self._take(upload, number, size)
        self._attempts[attempt.holder] = attempt
        try:
            yield attempt, Guarded(self._opened(upload, offset, size, attempt), attempt)
        finally:
            del self._attempts[attempt.holder]
            # Where a thread may still be writing, only the lease tells.
            if attempt.closed and not attempt.ended:
                to_the_end(lambda: self._give_up(attempt))

    def _opened(self, upload: Upload, offset: int, size: int, attempt: Attempt) -> Incoming:
        """Raises UploadUnknown, or Unavailable; whatever is raised, nothing is open then that anybody writes into."""
        try:
            window = opened(self._store.window, upload.id, offset, size, close=_close)
        except BaseException:
            attempt.closed = True
            raise
        if window is None:
            attempt.closed = True
            raise unknown()
        return window

    def finish(self, upload: Upload, attempt: Attempt, size: int, sha256: str) -> Part:
        """It is there, on the disk, and its file closed.

        Raises UploadGivenUp when it is another one's by now, UploadClosed when the upload is to be completed without it, UploadUnknown, and
        Invalid for a short part that is not the last.
        """
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PARTS)
            _require_open(transaction.connection, attempt.upload_id)
            _require_fit(transaction.connection, upload, attempt.number, size)
            values = {"id": attempt.upload_id, "number": attempt.number, "holder": attempt.holder, "size": size, "sha256": sha256}
            counted = size if upload.plan.size is None else 0
            if not transaction.connection.execute(_FINISH, values | {"bytes": counted}).rowcount:
                raise UploadGivenUp
            touch(transaction, attempt.upload_id, self._kept, received=size, reserved=counted - attempt.reserved)
        attempt.ended = True
        return Part(attempt.number, size, sha256)

    def renew(self) -> None:
        """Called regularly: what this process receives is alive."""
        attempts = list(self._attempts.values())
        if not attempts:
            return
        until = now() + LEASE_SECONDS
        values = {"ids": [str(each.upload_id) for each in attempts], "holders": [str(each.holder) for each in attempts]}
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PARTS)
            renewed = transaction.connection.execute(_RENEW, values | {"lease": LEASE_SECONDS}).scalars().all()
            transaction.order.reach(Step.UPLOADS)
            transaction.connection.execute(_RENEW_UPLOADS, values | {"lease": self._kept})
        for each in attempts:
            if each.holder in renewed:
                each.good_until = until

    def free_all(self) -> None:
        """Whoever held any is gone, or lingers: the storage has a new owner."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PARTS)
            transaction.connection.execute(
                text(f"update arkvory_parts set {_STRAYS}, holder = null, held_until = null where holder is not null")
            )

    def _take(self, upload: Upload, number: int, size: int) -> Attempt:
        deadline = time.monotonic() + BUSY_SECONDS
        while (attempt := self._try_to_take(upload, number, size)) is None:
            if time.monotonic() > deadline:
                raise TooManyUploads(f"another request is sending part {number} of this upload", retry_after=1)
            gevent.sleep(0.1)
        return attempt

    def _try_to_take(self, upload: Upload, number: int, size: int) -> Attempt | None:
        """Null while somebody has it. Of an upload of unknown size, what is still missing for this part is reserved."""
        until, key = now() + LEASE_SECONDS, {"id": upload.id, "number": number}
        attempt: Attempt | None = None
        try:
            with self._admission.locked() if upload.plan.size is None else self._transactions.begin() as transaction:
                transaction.order.reach(Step.PARTS)
                connection = transaction.connection
                _require_open(connection, upload.id)
                _require_fit(connection, upload, number, size)
                connection.execute(text("insert into arkvory_parts (upload_id, number) values (:id, :number) on conflict do nothing"), key)
                before = connection.execute(_LOOK, key).one()
                if before.busy:
                    return None
                reserved = max(size, before.bytes) if upload.plan.size is None else 0
                self._reserve(transaction, upload, reserved - before.bytes)
                attempt = Attempt(upload.id, number, uuid4(), reserved, until)
                connection.execute(
                    _TAKE, key | {"holder": attempt.holder, "lease": LEASE_SECONDS, "machine": self._machine, "bytes": reserved}
                )
                touch(transaction, upload.id, self._kept, received=-(before.size or 0), reserved=reserved - before.bytes)
        except BaseException:
            if attempt is not None:
                # Its COMMIT may have been through.
                to_the_end(partial(self._give_up, attempt))
            raise
        return attempt

    def _reserve(self, transaction: Transaction, upload: Upload, more: int) -> None:
        if more > 0:
            self._admission.check_room(transaction, upload.plan.repository_id, more)

    def _give_up(self, attempt: Attempt) -> None:
        """It ended without a part, in order. What cannot be written now is found out by its lease."""
        try:
            with self._transactions.begin() as transaction:
                transaction.order.reach(Step.PARTS)
                transaction.connection.execute(
                    text(
                        "update arkvory_parts set holder = null, held_until = null "
                        "where upload_id = :id and number = :number and holder = :holder"
                    ),
                    {"id": attempt.upload_id, "number": attempt.number, "holder": attempt.holder},
                )
        except ArkvoryError as error:
            log.warning("part %d of upload %s is left to its lease: %s", attempt.number, attempt.upload_id, error)


def _close(window: Incoming | None) -> None:
    if window is not None:
        window.close()


def _require_open(connection: Connection, upload_id: UUID) -> None:
    """Nobody completes it as long as this transaction runs. Raises UploadUnknown or UploadClosed."""
    row = connection.execute(
        text("select completing_at, ended_at from arkvory_multiparts where upload_id = :id for share"), {"id": upload_id}
    ).first()
    if row is None:
        raise unknown()
    if row.completing_at is not None or row.ended_at is not None:
        raise UploadClosed("this upload is being completed, or was; it takes no more parts")


def _require_fit(connection: Connection, upload: Upload, number: int, size: int) -> None:
    """Of an upload of unknown size, a short part is the last: here as far as the highest one that is there tells; the end looks at all.

    Raises Invalid.
    """
    whole = upload.plan.part_size
    last = connection.execute(_HIGHEST, {"id": upload.id, "number": number}).first() if upload.plan.size is None else None
    if last is None:
        return
    if last.number < number and last.size < whole:
        words = f"part {last.number} is there with {last.size} bytes: fewer than the {whole} of a part, so it is the last one"
        raise Invalid(f"{words}; send that as a whole first", field="number")
    if last.number > number and size < whole:
        words = f"part {last.number} is there, so part {number} is not the last, and has {whole} bytes; these are {size}"
        raise Invalid(words, field="Content-Length")


# Who held it without telling its end may still write.
_STRAYS = "strays = case when holder is null or machine = any(strays) then strays else strays || machine end"
_LOOK = text(
    "select bytes, size, coalesce(held_until > clock_timestamp(), false) as busy "
    "from arkvory_parts where upload_id = :id and number = :number for update"
)
_HIGHEST = text(
    "select number, size from arkvory_parts where upload_id = :id and number <> :number and sha256 is not null order by number desc limit 1"
)
_TAKE = text(
    f"update arkvory_parts set {_STRAYS}, holder = :holder, held_until = clock_timestamp() + make_interval(secs => :lease), "
    "machine = :machine, bytes = :bytes, size = null, sha256 = null where upload_id = :id and number = :number"
)
_FINISH = text(
    "update arkvory_parts set size = :size, sha256 = :sha256, bytes = :bytes, holder = null, held_until = null "
    "where upload_id = :id and number = :number and holder = :holder"
)
_RENEW = text(
    "update arkvory_parts set held_until = clock_timestamp() + make_interval(secs => :lease) where (upload_id, number) in ("
    "select p.upload_id, p.number from arkvory_parts p "
    "join unnest(cast(:ids as uuid[]), cast(:holders as uuid[])) as mine(id, holder) on p.upload_id = mine.id and p.holder = mine.holder "
    # One that is being finished right now is passed over: no waiting, no circle.
    "order by p.upload_id, p.number for update of p skip locked) returning holder"
)
_RENEW_UPLOADS = text(
    "update arkvory_uploads set lease_until = greatest(lease_until, now() + make_interval(secs => :lease)) where id in ("
    "select id from arkvory_uploads where id = any(cast(:ids as uuid[])) and status = 'open' order by id for update skip locked)"
)
