"""One object carries a transaction's changes (DESIGN 3, "Epochs").

A write says what it changes; this advances the epochs in the same transaction, deletes cache rows under a
savepoint (C4), takes the locks in their order, and invalidates this process's memory after the commit
(C2). No protocol code touches a cache.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import gevent
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.cache.messages import bodies_of
from app.cache.outcomes import Outcome, RepositoryChange
from app.cache.store import Cache, CurrentNumbers
from app.cache.view import Epochs
from app.cluster import mailbox
from app.cluster.loop import Loop
from app.cluster.ownership import Ownership
from app.database.engines import CACHE_ROW_WAIT_MS, Database, statements_within
from app.database.locks import ADMISSION, LockOrder, Step, repository_lock
from app.database.pools import database_errors
from app.database.statements import text
from app.database.turns import RepositoryTurns
from app.errors import ArkvoryError, DatabaseAway, OutcomeUnknown, Unavailable, UploadGivenUp

log = logging.getLogger(__name__)

LOCK_WAIT_MS = 10_000
OUTCOME_WAIT_SECONDS = 5.0
_IDENTITY = "pg_current_xact_id()::text::bigint as transaction_id, pg_postmaster_start_time() as server_started"
_TRY = "pg_try_advisory_xact_lock(:c, :o)"
CLASSES = ("metadata", "authorization", "content", "members")


@dataclass(frozen=True)
class UploadState:
    """What an upload becomes at the end of a transaction; `bytes` null keeps its size. Null as `holder`: whoever holds it."""

    status: str
    bytes: int | None = None
    holder: UUID | None = None


class Transaction:
    """A business transaction; its methods are the steps of the order of locks."""

    def __init__(self, connection: Connection, sender: int | None = None) -> None:
        """`sender` is this process's instance id in cluster mode; null: there is nobody to tell."""
        self.connection = connection
        self._sender = sender
        self.order = LockOrder()
        self.outcome = Outcome()
        self.row_errors = 0
        self._uploads_settled = False

    # -- locks and epochs

    def lock_owner(self, ownership: Ownership) -> None:
        """Against a successor. Raises NotOwner."""
        self.order.reach(Step.OWNER)
        ownership.share_lock(self.connection)

    def lock_admission(self, ownership: Ownership) -> None:
        """The owner's row and the global lock; what is read under it must be read by a later statement (READ COMMITTED)."""
        self.order.reach(Step.OWNER)
        self.order.reach(Step.GLOBAL)
        ownership.share_lock(self.connection, "pg_advisory_xact_lock(:c, :o)", {"c": ADMISSION[0], "o": ADMISSION[1]})

    def lock_repositories(self, ownership: Ownership, repository_ids: Sequence[int]) -> None:
        """The owner's row and advisory locks of repositories, by id. Raises NotOwner, and Unavailable after 10 s."""
        self.order.reach(Step.OWNER)
        self.order.reach(Step.REPOSITORY)
        first, *others = (dict(zip("co", repository_lock(each), strict=True)) for each in sorted(set(repository_ids)))
        if not ownership.share_lock(self.connection, _TRY, first):
            self._wait_for_repository(first)
        for lock in others:
            if not self.connection.execute(text(f"select {_TRY}"), lock).scalar_one():
                self._wait_for_repository(lock)

    def _wait_for_repository(self, lock: Mapping[str, int]) -> None:
        try:
            with database_errors(), statements_within(self.connection, LOCK_WAIT_MS):
                self.connection.execute(text("select pg_advisory_xact_lock(:c, :o)"), lock)
        except DatabaseAway:
            raise
        except Unavailable as error:
            raise Unavailable("another change of this repository takes long; try again shortly") from error

    def advance(
        self, repository_id: int, *classes: str, paths: Sequence[str] | None = None, former_names: Sequence[tuple[str, str]] = ()
    ) -> Epochs:
        """Advance these epochs of a repository by one; the new numbers. Several repositories: in the order of their ids."""
        assert classes and set(classes) <= set(CLASSES)
        self.order.reach(Step.REPOSITORY_ROW)
        moved = ", ".join(f"{name}_epoch = {name}_epoch + 1" for name in CLASSES if name in classes)
        row = self.connection.execute(
            text(
                f"update arkvory_repositories set {moved} where id = :id returning metadata_epoch, authorization_epoch, content_epoch, "
                f"members_epoch, tenant, name, {_IDENTITY}"
            ),
            {"id": repository_id},
        ).one()
        epochs = Epochs._make(row[:4])
        names = ((row.tenant, row.name), *former_names)
        known_paths = tuple(paths) if paths is not None else None
        self.outcome.remember(row)
        self.outcome.repositories.append(RepositoryChange(repository_id, epochs, frozenset(classes), names, known_paths))
        return epochs

    def take_name(self, repository_id: int) -> None:
        """A new repository: what this process, or one that missed a message, remembers under its name is of another one."""
        query = text(
            "select metadata_epoch, authorization_epoch, content_epoch, members_epoch, tenant, name, "
            f"{_IDENTITY} from arkvory_repositories where id = :id"
        )
        row = self.connection.execute(query, {"id": repository_id}).one()
        self.outcome.remember(row)
        names = ((row.tenant, row.name),)
        self.outcome.repositories.append(RepositoryChange(repository_id, Epochs._make(row[:4]), frozenset({"metadata"}), names, ()))

    def advance_users(self, user_ids: Sequence[int]) -> None:
        """Advance the revisions of these users: revoked token, disabled, password, right or membership changed."""
        self.order.reach(Step.PEOPLE)
        for user_id in sorted(set(user_ids)):
            row = self.connection.execute(
                text(
                    f"update arkvory_users set revision = revision + 1 where id = :id returning revision, {_IDENTITY}"
                ),
                {"id": user_id},
            ).first()
            if row is not None:
                self.outcome.users[user_id] = int(row.revision)
                self.outcome.remember(row)

    def advance_installation(self) -> None:
        """Advance the installation's epoch."""
        self.order.reach(Step.PEOPLE)
        row = self.connection.execute(
            text(f"update arkvory_installation set epoch = epoch + 1 where id = 1 returning epoch, {_IDENTITY}")
        ).one()
        self.outcome.installation = int(row.epoch)
        self.outcome.remember(row)

    @property
    def changed_nothing(self) -> bool:
        """As far as memory is concerned."""
        return self.outcome.empty

    # -- the end

    def settle_uploads(self, states: Mapping[UUID, UploadState]) -> None:
        """Last step: all uploads that this transaction changes, in one statement. Nothing may be locked after it.

        Raises UploadGivenUp when one to be published is not open any more, or not its holder's.
        """
        self._delete_cache_rows()
        self._post()
        self.order.reach(Step.UPLOADS)
        self._uploads_settled = True
        if not states:
            return
        values = ", ".join(f"(cast(:i{n} as uuid), :s{n}, cast(:b{n} as bigint), cast(:h{n} as uuid))" for n in range(len(states)))
        parameters: dict[str, Any] = {"ids": [str(each) for each in states]}
        for number, (upload_id, state) in enumerate(states.items()):
            holder = None if state.holder is None else str(state.holder)
            parameters |= {f"i{number}": str(upload_id), f"s{number}": state.status, f"b{number}": state.bytes, f"h{number}": holder}
        changed = self.connection.execute(
            text(
                # Rows are locked in the order of their ids, whatever the plan of the update.
                "with locked as materialized (select id from arkvory_uploads where id = any(cast(:ids as uuid[])) order by id for update) "
                "update arkvory_uploads as u set status = v.status, bytes = coalesce(v.bytes, u.bytes), changed_at = now(), "
                f"lease_until = null from (values {values}) as v(id, status, bytes, holder) "
                "where u.id = v.id and u.id in (select id from locked) and (v.status <> 'published' or u.status = 'open') "
                "and (v.holder is null or u.holder = v.holder) "
                "returning u.status"
            ),
            parameters,
        )
        if _published(changed.scalars()) < _published(state.status for state in states.values()):
            raise UploadGivenUp

    def _delete_cache_rows(self) -> None:
        """C4: under a savepoint; C6: rows that cannot be deleted cost nothing but an entry in the log."""
        touched = [change.repository_id for change in self.outcome.repositories if change.touches_snapshot]
        if not touched:
            return
        self.order.reach(Step.CACHE)
        try:
            with self.connection.begin_nested(), statements_within(self.connection, CACHE_ROW_WAIT_MS):
                self.connection.execute(text("delete from arkvory_cache_rows where repository_id = any(:ids)"), {"ids": touched})
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            self.row_errors += 1
            log.warning("cache rows could not be deleted: %s", error.orig)

    def _post(self) -> None:
        """M1: one message for each repository, in the transaction itself."""
        if self._sender is None or self.outcome.empty:
            return
        self.order.reach(Step.MAIL)
        mailbox.post(self.connection, self._sender, bodies_of(self.outcome))

    def before_commit(self) -> None:
        if not self._uploads_settled:
            self._delete_cache_rows()
            self._post()


class Transactions:
    """Opens business transactions and does what follows their commit."""

    def __init__(self, database: Database, cache: Cache, ownership: Ownership, loop: Loop | None = None) -> None:
        """`loop` is that of a process in cluster mode; null: no other process has to hear of anything."""
        self.database = database
        self.cache = cache
        self.ownership = ownership
        self._loop = loop
        self.turns = RepositoryTurns()
        self.active = 0

    @contextlib.contextmanager
    def begin(self, *repository_ids: int, admission: bool = False) -> Iterator[Transaction]:
        """A transaction under the locks of these repositories, or under the global one of admission; committed at the end of the block.

        Raises NotOwner, DatabaseAway or Unavailable when it cannot begin, and OutcomeUnknown when the
        answer to COMMIT was lost and could not be found out in time.
        """
        assert not (admission and repository_ids)
        self.ownership.require()
        self.active += 1
        try:
            with self.turns.of(repository_ids), self._opened(repository_ids, admission) as transaction:
                yield transaction
        finally:
            self.active -= 1

    @contextlib.contextmanager
    def _opened(self, repository_ids: Sequence[int], admission: bool) -> Iterator[Transaction]:
        with contextlib.ExitStack() as stack:
            with self.turns.slot() if repository_ids else contextlib.nullcontext():
                stack.enter_context(database_errors())
                connection = stack.enter_context(self.database.request.connect())
                transaction = Transaction(connection, None if self._loop is None else self._loop.instance_id or 0)
                if repository_ids:
                    transaction.lock_repositories(self.ownership, repository_ids)
                elif admission:
                    transaction.lock_admission(self.ownership)
                else:
                    transaction.lock_owner(self.ownership)
            yield transaction
            transaction.before_commit()
            with self.cache.committing(transaction.outcome):
                self._commit(transaction)

    def _commit(self, transaction: Transaction) -> None:
        self.cache.row_errors += transaction.row_errors
        outcome = transaction.outcome
        try:
            transaction.connection.commit()
        except BaseException as error:
            if outcome.empty or not _leaves_doubt(error):
                raise
            self.cache.doubt(outcome)
            transaction.connection.invalidate()
            log.warning("the answer to COMMIT of transaction %s was lost: %r", outcome.transaction_id, error)
            if not isinstance(error, Exception):
                # Whoever is told to end ends: one that went on here would never hear of it again. `settle_doubts` finds out.
                raise
            self._find_out(outcome, error)
            return
        self.cache.apply(outcome)

    def _find_out(self, outcome: Outcome, error: BaseException) -> None:
        """Returns when the transaction turns out to be committed; raises when it was not, or when nobody can tell yet."""
        deadline = time.monotonic() + OUTCOME_WAIT_SECONDS
        while (status := self._settled_status(outcome)) is None and time.monotonic() < deadline:
            gevent.sleep(0.1)
        if status in {None, "unknown"}:
            raise OutcomeUnknown("the database went away while it stored this; look whether it is there, or send it again") from error
        if status != "committed":
            raise DatabaseAway("the database went away before this was stored; try again shortly") from error

    def _settled_status(self, outcome: Outcome) -> str | None:
        """`committed`, `aborted` or `unknown` for good, with the cache settled accordingly; None while it cannot be told."""
        try:
            with self.database.read() as connection:
                status = _status_now(connection, outcome)
                if status == "in progress":
                    return None
                numbers = _current_numbers(connection, outcome)
        except ArkvoryError:
            return None
        self.cache.settle(outcome, numbers)
        return status

    def catch_up(self) -> None:
        """When somebody is told that it is so already: another process may have made it so, and this one must know of it too.

        Raises DatabaseAway.
        """
        if self._loop is not None:
            self._loop.catch_up()

    def settle_doubts(self) -> None:
        """Called every second or so: find out what became of transactions whose outcome is still unknown."""
        for outcome in tuple(self.cache.doubts.open.values()):
            self._settled_status(outcome)


def _published(statuses: Iterable[str]) -> int:
    return sum(1 for each in statuses if each == "published")


def _status_now(connection: Connection, outcome: Outcome) -> str:
    """What PostgreSQL says of the transaction; `unknown` where it cannot be believed."""
    try:
        status, started = connection.execute(
            text("select pg_xact_status(cast(cast(:xid as text) as xid8)), pg_postmaster_start_time()"),
            {"xid": str(outcome.transaction_id)},
        ).one()
    except DataError:
        # "In the future": a crash took it, with all that it wrote.
        return "aborted"
    if status == "committed" and started != outcome.server_started:
        # After a crash the number may be another transaction's, when nothing of this one had reached the disk.
        return "unknown"
    # Null: so old that PostgreSQL has forgotten it. The rows say what is; the caller cannot know more.
    return str(status or "unknown")


def _current_numbers(connection: Connection, outcome: Outcome) -> CurrentNumbers:
    repositories = connection.execute(
        text(
            "select id, metadata_epoch, authorization_epoch, content_epoch, members_epoch from arkvory_repositories where id = any(:ids)"
        ),
        {"ids": [change.repository_id for change in outcome.repositories]},
    )
    users = connection.execute(text("select id, revision from arkvory_users where id = any(:ids)"), {"ids": list(outcome.users)})
    installation = connection.execute(text("select epoch from arkvory_installation where id = 1")).scalar_one()
    return CurrentNumbers({row[0]: Epochs._make(row[1:]) for row in repositories}, {row[0]: row[1] for row in users}, int(installation))


def _leaves_doubt(error: BaseException) -> bool:
    """False when PostgreSQL itself said that the transaction did not commit."""
    if isinstance(error, PoolTimeout):
        return False
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or getattr(error.orig, "pgcode", None) is None
    return True
