"""Uploads that come in parts: what each is to become, and how far it is (DESIGN 5, ADR 12).

    arkvory_uploads      its bytes are counted there, and whether it is still open is told there alone
    arkvory_multiparts   what it is to become, who began it, whether it is being completed
    arkvory_parts        which parts are there (parts.py)

    open → completing → published        `completing` is durable: whoever is alive takes it to its end
      ↑________|      → failed           back, when the bytes of a part turn out to be damaged

A transaction locks in the order of `Step`: the row of `arkvory_multiparts`, those of its parts, and last the upload's.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Row

from app.cache.changes import Transaction, Transactions
from app.database.engines import Database
from app.database.greenlets import to_the_end
from app.database.locks import Step
from app.database.paging import Page, page
from app.database.statements import text
from app.errors import ArkvoryError, Invalid, KeyReused, UploadClosed, UploadGivenUp, UploadIncomplete, UploadUnknown
from app.storage import BlobStore
from app.storage.threads import apart
from app.upload.admission import Admission
from config import Settings

MOST_PARTS = 10_000
LARGEST_PART = 1024**3
# Network file systems may write whole pages: none belongs to two parts, which two machines may write at once.
GRAIN = 64 * 1024
# Of a default: times the smallest part, where the size is known and where it is not.
USUAL, UNTOLD = 2, 8
# Whoever is to complete an upload and cannot (a full disk) gives it up after so long.
COMPLETION_SECONDS = 24 * 3600
# How long the end of one can be read.
KEPT_SECONDS = 24 * 3600
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be uploaded; `size` and `sha256` null: not known. ETags as in `Conditions`. `door_id` is the repository as addressed."""

    repository_id: int
    door_id: int
    owner: str
    path: str
    size: int | None
    sha256: str | None
    content_type: str
    part_size: int
    if_match: frozenset[str] | None = None
    if_none_match: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts as it stands: `received` bytes of whole parts; `error` has `code` and `detail`. `state` as drawn above."""

    id: UUID
    plan: Plan
    received: int
    state: str
    expires_at: datetime | None
    error: Mapping[str, str] | None

    @property
    def count(self) -> int | None:
        """How many parts it has; null: not known before its end."""
        size = self.plan.size
        return None if size is None else -(-size // self.plan.part_size)

    def length_of(self, number: int, announced: int | None) -> int:
        """The most bytes of a part, all of them where the size is known. Raises Invalid for what it cannot be."""
        count = self.count
        if not 1 <= number <= (MOST_PARTS if count is None else count):
            raise Invalid(f"this upload has parts from 1 to {MOST_PARTS if count is None else count}", field="number")
        most = self.plan.part_size
        if self.plan.size is not None:
            most = min(most, self.plan.size - (number - 1) * most)
            if announced not in (None, most):
                raise Invalid(f"part {number} has {most} bytes, the body {announced}", field="Content-Length")
        elif announced is not None and not 0 < announced <= most:
            raise Invalid(f"a part has 1 to {most} bytes here, the body {announced}", field="Content-Length")
        return most if announced is None else announced

    def require_open(self) -> None:
        """Raises UploadClosed."""
        if self.state != "open":
            raise _closed(self.state)


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is there; `sha256` in hexadecimal."""

    number: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Job:
    """An upload that this process completes: `asked_by` is the reference to a credential, `holder` the name by which it holds it.

    `strays` are machines on which a request may still write into its file.
    """

    upload: Upload
    holder: UUID
    bytes: int
    asked_by: Mapping[str, Any]
    parts: Sequence[Part]
    strays: frozenset[str]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.parts)


class _Known(Exception):
    """The key stands for an upload already."""


class Multiparts:
    """Begins, finds, closes and ends them."""

    def __init__(self, settings: Settings, database: Database, transactions: Transactions, admission: Admission, store: BlobStore) -> None:
        self._settings = settings
        self._database = database
        self._transactions = transactions
        self._admission = admission
        self._store = store

    # -- beginning and finding

    def begin(self, plan: Plan, upload_key: str, idempotency_key: str | None, request: str) -> tuple[Upload, bool]:
        """The upload, and whether it is new: the same `request` under the same key is the same one.

        Raises KeyReused, TooLarge, TooManyUploads, CapacitySpent or NotFound.
        """
        for _ in range(3):
            known, fresh = self._known(plan, idempotency_key, request), False
            if known is None:
                try:
                    known, fresh = self._begin(plan, upload_key, idempotency_key, request), True
                except _Known:
                    continue
            if known.state == "open" and not known.received:
                # Also of one whose process died before it made the file.
                self._spread(known, fresh)
            return known, fresh
        raise UploadGivenUp

    def _spread(self, upload: Upload, fresh: bool) -> None:
        """Raises CapacitySpent or Unavailable; then one that nobody knows of yet is given back."""
        try:
            apart(self._store.spread, upload.id)
        except BaseException:
            if fresh:
                to_the_end(lambda: self._cancel_quietly(upload.id))
            raise

    def _cancel_quietly(self, upload_id: UUID) -> None:
        with contextlib.suppress(ArkvoryError):
            self.cancel(upload_id)

    def _known(self, plan: Plan, key: str | None, request: str) -> Upload | None:
        if key is None:
            return None
        with self._database.read() as connection:
            row = connection.execute(
                text(f"{_UPLOADS} where m.door_id = :door and m.owner = :owner and m.idempotency_key = :key and {_THERE}"),
                {"door": plan.door_id, "owner": plan.owner, "key": key},
            ).first()
        if row is not None and row.request != request:
            raise KeyReused("this Idempotency-Key stands for another upload; take a new one", field="Idempotency-Key")
        return None if row is None else _upload(row)

    def _begin(self, plan: Plan, upload_key: str, key: str | None, request: str) -> Upload:
        def also(transaction: Transaction, upload_id: UUID) -> tuple[str, str]:
            transaction.order.reach(Step.PARTS)
            values = _columns(plan) | {"id": upload_id, "key": key, "request": request}
            # One that ended without a result gives its key back.
            transaction.connection.execute(_FREE_KEY, values)
            if transaction.connection.execute(_INSERT, values).first() is None:
                raise _Known
            return plan.path, plan.owner

        return self.find(self._admission.open_parts(plan.repository_id, plan.size or 0, upload_key, also))

    def find(self, upload_id: UUID) -> Upload:
        """Raises UploadUnknown for one that was cancelled or expired."""
        with self._database.read() as connection:
            row = connection.execute(text(f"{_UPLOADS} where m.upload_id = :id and {_THERE}"), {"id": upload_id}).first()
        if row is None:
            raise unknown()
        return _upload(row)

    def of_repository(self, repository_id: int, owner: str | None, limit: int, after: str) -> Page[Upload]:
        """Of a repository, by id; `owner` null: everybody's."""
        statement = text(
            f"{_UPLOADS} where m.repository_id = :repository and (cast(:owner as text) is null or m.owner = :owner) "
            f"and (cast(:after as uuid) is null or m.upload_id > cast(:after as uuid)) and {_THERE} order by m.upload_id limit :limit"
        )
        values = {"repository": repository_id, "owner": owner, "after": after or None, "limit": limit + 1}
        with self._database.read() as connection:
            return page(connection.execute(statement, values).all(), limit, _upload, lambda row: (str(row.upload_id),))

    def parts(self, upload_id: UUID, limit: int, after: int) -> Page[Part]:
        """Those that are there, by number."""
        with self._database.read() as connection:
            rows = connection.execute(
                text(f"{_PARTS} and number > :after order by number limit :limit"), {"id": upload_id, "after": after, "limit": limit + 1}
            ).all()
        return page(rows, limit, _part, lambda row: (row.number,))

    def part(self, upload_id: UUID, number: int) -> Part | None:
        """One of them; null when it is not there."""
        with self._database.read() as connection:
            row = connection.execute(text(f"{_PARTS} and number = :number"), {"id": upload_id, "number": number}).first()
        return None if row is None else _part(row)

    # -- from open to completing, and away

    def cancel(self, upload_id: UUID) -> None:
        """Its bytes are given back; requests that send parts of it write into a file without a name, and end in vain.

        Raises UploadClosed or UploadUnknown.
        """
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PARTS)
            gone = transaction.connection.execute(_CANCEL, {"id": upload_id}).first()
            if gone is not None and gone.ended_at is None:
                transaction.order.reach(Step.UPLOADS)
                released = transaction.connection.execute(_RELEASE, {"id": upload_id})
                if not released.rowcount:
                    raise _closed("being completed")
        if gone is None:
            raise _closed(self.find(upload_id).state)
        apart(self._store.remove_temporary, upload_id)

    def close(self, upload: Upload, sha256: str | None, asked_by: Mapping[str, Any]) -> None:
        """All parts are there and none is taken any more; from now on it is for whoever completes it. Harmless when it is so already.

        Raises UploadIncomplete or UploadUnknown.
        """
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PARTS)
            values = {"id": upload.id, "sha256": sha256, "by": json.dumps(dict(asked_by))}
            if not transaction.connection.execute(_CLOSE, values).rowcount:
                return
            # A statement of its own: it sees what those did whom this one waited for.
            _require_all(transaction.connection, upload)
            touch(transaction, upload.id, COMPLETION_SECONDS)

    # -- completing

    def claim(self, upload_id: UUID) -> Job | None:
        """Hold it, to complete it; null when somebody else does, it has ended, or was sent back."""
        holder, held = uuid4(), None
        try:
            with self._transactions.begin() as transaction:
                transaction.order.reach(Step.PARTS)
                if transaction.connection.execute(_COMPLETING, {"id": upload_id}).first() is None:
                    return None
                transaction.order.reach(Step.UPLOADS)
                held = transaction.connection.execute(
                    _CLAIM, {"id": upload_id, "holder": holder, "lease": self._settings.upload_lease_seconds}
                ).scalar()
            return None if held is None else self._claimed(upload_id, holder, int(held))
        except BaseException:
            if held is not None:
                to_the_end(lambda: self._unclaim(upload_id, holder))
            raise

    def _claimed(self, upload_id: UUID, holder: UUID, held: int) -> Job:
        with self._database.read() as connection:
            row = connection.execute(text(f"{_UPLOADS} where m.upload_id = :id"), {"id": upload_id}).one()
            parts = connection.execute(text(f"{_PARTS} order by number"), {"id": upload_id}).all()
            strays = frozenset(connection.execute(_ALL_STRAYS, {"id": upload_id}).scalars())
        return Job(_upload(row), holder, held, row.asked_by, [_part(each) for each in parts], strays)

    def _unclaim(self, upload_id: UUID, holder: UUID) -> None:
        """The COMMIT of a claim may have been through: nobody is to wait for its lease. Where that cannot be written, they do."""
        with contextlib.suppress(ArkvoryError), self._transactions.begin() as transaction:
            transaction.order.reach(Step.UPLOADS)
            transaction.connection.execute(
                text("update arkvory_uploads set holder = null, held_until = null where id = :id and status = 'open' and holder = :holder"),
                {"id": upload_id, "holder": holder},
            )

    def put_off(self, job: Job, error: ArkvoryError, seconds: float) -> None:
        """Try again later; what was in the way can be read meanwhile."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PARTS)
            transaction.connection.execute(
                text(
                    "update arkvory_multiparts set not_before = now() + make_interval(secs => :pause), error = cast(:error as jsonb) "
                    "where upload_id = :id and ended_at is null"
                ),
                {"id": job.upload.id, "pause": seconds, "error": _told(error)},
            )
            _let_go(transaction, job, "")

    def reopen(self, job: Job, numbers: Sequence[int]) -> UploadIncomplete:
        """These parts are not what they were when they were taken: they are to be sent again. The error that says so.

        Raises UploadGivenUp when the job is somebody else's by now.
        """
        error = UploadIncomplete(f"the bytes of {_named(numbers)} were damaged on the way to the disk; send them again, and complete again")
        lost = sum(each.size for each in job.parts if each.number in set(numbers))
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PARTS)
            connection = transaction.connection
            connection.execute(
                text("update arkvory_multiparts set completing_at = null, error = cast(:error as jsonb) where upload_id = :id"),
                {"id": job.upload.id, "error": _told(error)},
            )
            connection.execute(
                text("update arkvory_parts set size = null, sha256 = null where upload_id = :id and number = any(:numbers)"),
                {"id": job.upload.id, "numbers": list(numbers)},
            )
            again = ", received = received - :lost, lease_until = now() + make_interval(secs => :kept)"
            _let_go(transaction, job, again, lost=lost, kept=self._settings.upload_session_seconds)
        return error

    def fail(self, job: Job, error: ArkvoryError) -> None:
        """It has ended, for this reason; its bytes are given back. Raises UploadGivenUp when the job is somebody else's by now."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PARTS)
            _end(transaction.connection, job.upload.id, _told(error))
            _let_go(transaction, job, ", status = 'released', lease_until = null")
        apart(self._store.remove_temporary, job.upload.id)

    def published(self, upload_id: UUID) -> None:
        """What nobody needs any more goes; how it ended can still be read."""
        with self._transactions.begin() as transaction:
            transaction.order.reach(Step.PARTS)
            _end(transaction.connection, upload_id, None)

    # -- cleanup

    def purge(self) -> None:
        """What became of uploads that ended without a word, what is old, and open ones of repositories that are gone.

        All of that stays true once it is.
        """
        with self._database.read() as connection:
            ended = connection.execute(_ENDED_UNSAID).scalars().all()
            old = connection.execute(_OLD, {"kept": KEPT_SECONDS}).scalars().all()
            homeless = connection.execute(_HOMELESS).scalars().all()
        for upload_id in ended:
            self.published(upload_id)
        for upload_id in homeless:
            # One that is being completed fails by itself.
            with contextlib.suppress(UploadClosed, UploadUnknown):
                self.cancel(upload_id)
        if old:
            with self._transactions.begin() as transaction:
                transaction.order.reach(Step.PARTS)
                transaction.connection.execute(
                    text("delete from arkvory_multiparts where upload_id = any(cast(:ids as uuid[]))"), {"ids": [str(each) for each in old]}
                )


def due(connection: Connection, limit: int) -> Sequence[UUID]:
    """Uploads that are to be completed and that nobody is at."""
    return connection.execute(_DUE, {"limit": limit}).scalars().all()


def touch(transaction: Transaction, upload_id: UUID, kept_seconds: float, *, received: int = 0, reserved: int = 0) -> None:
    """The last step of what changes an open upload: it stays open for so long, has so many bytes more. Raises UploadUnknown."""
    transaction.order.reach(Step.UPLOADS)
    values = {"id": upload_id, "kept": kept_seconds, "received": received, "reserved": reserved}
    if not transaction.connection.execute(_TOUCH, values).rowcount:
        raise unknown()


def unknown() -> UploadUnknown:
    """The error for one that is not there, or not the caller's."""
    return UploadUnknown("there is no such upload: it was cancelled or expired, or belongs to somebody else; begin anew")


def part_size_for(size: int | None, least: int) -> int:
    """What a client gets that does not ask for one."""
    if size is None:
        return min(UNTOLD * least, LARGEST_PART)
    chosen = USUAL * least
    while chosen * MOST_PARTS < size:
        chosen *= 2
    return min(chosen, LARGEST_PART)


def _closed(state: str) -> UploadClosed:
    return UploadClosed(f"this upload is {state}; it takes no parts, and is not cancelled any more")


def _require_all(connection: Connection, upload: Upload) -> None:
    values = {"id": upload.id, "count": upload.count, "part_size": upload.plan.part_size, "most": _NAMED + 1}
    wrong = connection.execute(_MISSING, values).all()
    missing, short = [row.number for row in wrong if row.size is None], [row for row in wrong if row.size is not None]
    words = [f"{_named(missing)} of this upload {'are' if len(missing) > 1 else 'is'} missing"] if missing else []
    words += [f"part {row.number} has {row.size} bytes, where all but the last have {upload.plan.part_size}" for row in short[:_NAMED]]
    if words:
        raise UploadIncomplete(f"{'; '.join(words)}; send what is wrong, then complete it")


def _named(numbers: Sequence[int]) -> str:
    more = ", ..." if len(numbers) > _NAMED else ""
    return f"part{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:_NAMED]))}{more}"


def _end(connection: Connection, upload_id: UUID, error: str | None) -> None:
    values = {"id": upload_id, "error": error}
    connection.execute(
        text("update arkvory_multiparts set ended_at = now(), error = cast(:error as jsonb) where upload_id = :id and ended_at is null"),
        values,
    )
    connection.execute(text("delete from arkvory_parts where upload_id = :id"), values)


def _let_go(transaction: Transaction, job: Job, also: str, **values: Any) -> None:
    """Raises UploadGivenUp, which takes the transaction back, when it is somebody else's job."""
    transaction.order.reach(Step.UPLOADS)
    done = transaction.connection.execute(
        text(
            f"update arkvory_uploads set holder = null, held_until = null, changed_at = now(){also} "
            "where id = :id and status = 'open' and holder = :holder"
        ),
        {"id": job.upload.id, "holder": job.holder, **values},
    )
    if not done.rowcount:
        raise UploadGivenUp


def _told(error: ArkvoryError) -> str:
    return json.dumps({"code": error.code, "detail": error.message})


def _columns(plan: Plan) -> dict[str, Any]:
    return {
        "repository": plan.repository_id,
        "door": plan.door_id,
        "owner": plan.owner,
        "path": plan.path,
        "size": plan.size,
        "sha256": plan.sha256,
        "type": plan.content_type,
        "part_size": plan.part_size,
        "if_match": _list(plan.if_match),
        "if_none_match": _list(plan.if_none_match),
    }


def _list(tags: frozenset[str] | None) -> list[str] | None:
    return None if tags is None else sorted(tags)


def _set(tags: Sequence[str] | None) -> frozenset[str] | None:
    return None if tags is None else frozenset(tags)


def _upload(row: Row[Any]) -> Upload:
    plan = Plan(
        row.repository_id, row.door_id, row.owner, row.path, row.size, row.sha256, row.content_type, row.part_size,
        _set(row.if_match), _set(row.if_none_match),
    )  # fmt: skip
    return Upload(row.upload_id, plan, row.received or 0, row.state, row.expires_at, row.error)


def _part(row: Row[Any]) -> Part:
    return Part(row.number, row.size, row.sha256)


_UPLOADS = (
    "select m.*, u.received, case when u.status = 'open' and m.completing_at is null then u.lease_until end as expires_at, "
    "case when u.status = 'open' then case when m.completing_at is null then 'open' else 'completing' end "
    "when u.status = 'released' then 'failed' else 'published' end as state "
    "from arkvory_multiparts m join arkvory_uploads u on u.id = m.upload_id"
)
# Not cancelled, and not expired.
_THERE = "(u.status in ('published', 'garbage') or (u.status = 'open' and u.lease_until > now()) or m.ended_at is not null)"
_PARTS = "select number, size, sha256 from arkvory_parts where upload_id = :id and sha256 is not null"
# Also of what lies behind the last part: who began to send that may make the file longer.
_ALL_STRAYS = text(
    "select distinct unnest(strays || case when holder is null then '{}'::text[] else array[machine] end) "
    "from arkvory_parts where upload_id = :id and (holder is not null or strays <> '{}')"
)
_INSERT = text(
    "insert into arkvory_multiparts (upload_id, repository_id, door_id, owner, path, size, sha256, content_type, part_size, if_match, "
    "if_none_match, idempotency_key, request) values (:id, :repository, :door, :owner, :path, :size, :sha256, :type, :part_size, "
    ":if_match, :if_none_match, :key, :request) on conflict do nothing returning 1"
)
_FREE_KEY = text(
    "delete from arkvory_multiparts m where m.door_id = :door and m.owner = :owner and m.idempotency_key = :key "
    f"and not exists (select 1 from arkvory_uploads u where u.id = m.upload_id and {_THERE})"
)
_CANCEL = text("delete from arkvory_multiparts where upload_id = :id and (ended_at is null or error is not null) returning ended_at")
_RELEASE = text(
    "update arkvory_uploads set status = 'released', changed_at = now(), lease_until = null "
    "where id = :id and status = 'open' and (holder is null or held_until < now())"
)
_CLOSE = text(
    "update arkvory_multiparts set completing_at = now(), not_before = now(), sha256 = coalesce(sha256, :sha256), "
    "asked_by = cast(:by as jsonb), error = null where upload_id = :id and completing_at is null and ended_at is null"
)
# Where the size is not known, the last part that is there, or on its way, is the last of all.
_MISSING = text(
    "with told as (select coalesce(cast(:count as int), (select max(number) from arkvory_parts "
    "where upload_id = :id and (sha256 is not null or held_until > now())), 0) as count) "
    "select n as number, p.size from told, generate_series(1, told.count) n "
    "left join arkvory_parts p on p.upload_id = :id and p.number = n "
    "where p.sha256 is null or (n < told.count and p.size <> :part_size) order by n limit :most"
)
_DUE = text(
    "select m.upload_id from arkvory_multiparts m join arkvory_uploads u on u.id = m.upload_id "
    # Farther ahead than it is ever put off: from before the clock was set back.
    "where m.completing_at is not null and m.ended_at is null and u.status = 'open' "
    "and m.not_before not between now() and now() + interval '2 minutes' "
    "and (u.holder is null or u.held_until < now()) order by m.completing_at limit :limit"
)
_COMPLETING = text(
    "select 1 from arkvory_multiparts where upload_id = :id and completing_at is not null and ended_at is null for share"
)
_CLAIM = text(
    "update arkvory_uploads set holder = :holder, held_until = now() + make_interval(secs => :lease), "
    "lease_until = greatest(lease_until, now() + make_interval(secs => :lease)) "
    "where id = :id and status = 'open' and lease_until > now() and (holder is null or held_until < now()) returning bytes"
)
_TOUCH = text(
    "update arkvory_uploads set received = received + :received, bytes = bytes + :reserved, changed_at = now(), "
    "lease_until = greatest(lease_until, now() + make_interval(secs => :kept)) where id = :id and status = 'open' "
    "and lease_until > now()"
)
_ENDED_UNSAID = text(
    "select m.upload_id from arkvory_multiparts m join arkvory_uploads u on u.id = m.upload_id "
    "where m.ended_at is null and u.status in ('published', 'garbage') limit 500"
)
_HOMELESS = text(
    "select m.upload_id from arkvory_multiparts m join arkvory_uploads u on u.id = m.upload_id and u.status = 'open' "
    "where not exists (select 1 from arkvory_repositories r where r.id = m.repository_id and r.deleted_at is null) limit 500"
)
_OLD = text(
    "select m.upload_id from arkvory_multiparts m left join arkvory_uploads u on u.id = m.upload_id "
    "where u.id is null or (u.status = 'released' and m.ended_at is null) or m.ended_at < now() - make_interval(secs => :kept) "
    "order by m.upload_id limit 500"
)
