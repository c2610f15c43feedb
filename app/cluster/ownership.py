"""Storage ownership (DESIGN 5): a session lock and a generation number.

The lock says who may start; the generation says who may write. Each write transaction share-locks the
owner's row `where generation = mine`, so a predecessor that lingers (stopped, cut off, slow to die) can
write nothing once a successor has counted the generation up.

    SingleOwnership    one process owns the storage; without its session for 8 s it has lost it for good
    SharedOwnership    the processes of a cluster own it together, under one generation (cluster/sharing.py)
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import gevent
from sqlalchemy import Connection

from app.database.engines import IDLE_IN_TRANSACTION_MS, Database
from app.database.greenlets import end
from app.database.locks import OWNERSHIP
from app.database.outage import outage
from app.database.pools import database_errors, destroy, without_limit
from app.database.statements import text
from app.errors import ArkvoryError, DatabaseAway, NotOwner

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
LOST_AFTER_SECONDS = 8.0
RETRY_SECONDS = 0.25
_LOCK = {"c": OWNERSHIP[0], "o": OWNERSHIP[1]}


class Ownership:
    """The right of this process to write; one for each process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._on_lost: Callable[[], None] | None = None
        self._session: Connection | None = None
        self._loop: gevent.Greenlet | None = None
        self._last_good = 0.0
        self.generation: int | None = None
        self.lost = False

    @property
    def held(self) -> bool:
        return self.generation is not None and not self.lost

    def acquire(self, wait_seconds: float, given_up: Callable[[], bool] = lambda: False) -> None:
        """Become an owner, waiting for whoever is in the way. Raises NotOwner, naming it, when it does not leave.

        What it will refuse for is said at once: whoever is in the way may be meant to stay. Returns without ownership when the caller
        has `given_up`.
        """
        deadline = time.monotonic() + wait_seconds
        said = False
        while (obstacle := self._take()) is not None:
            if time.monotonic() >= deadline:
                raise NotOwner(f"{obstacle} and did not leave within {wait_seconds:g} s; {self._advice()}")
            if not said:
                said = True
                log.warning("%s; waiting up to %g s for it to leave. If it is to stay: %s", obstacle, wait_seconds, self._advice())
            if given_up():
                return
            gevent.sleep(RETRY_SECONDS)
        self.generation = self._fresh_generation()
        self.lost = False
        self._last_good = time.monotonic()

    def watch(self, on_lost: Callable[[], None] | None = None) -> None:
        """Start checking the session every 2 s, in a greenlet of its own.

        `on_lost` is called once, when ownership is lost for good and PostgreSQL answers again: the process should
        then be replaced by a fresh one.
        """
        self._on_lost = on_lost
        self._loop = gevent.spawn(self._watch)

    def require(self) -> None:
        """Raises NotOwner unless this process may write, as far as it knows."""
        if not self.held:
            raise NotOwner("this process does not own the storage at the moment; try again shortly")

    def share_lock(self, connection: Connection, then: str = "true", values: Mapping[str, Any] | None = None) -> Any:
        """First step of each write transaction: raises NotOwner when a successor has taken over.

        `then` is what the same statement does behind it, where it is asked for the next lock in the order; its result.
        """
        self.require()
        row = connection.execute(
            # The row is locked before anything else is looked at, whatever the plan.
            text(
                "with mine as materialized (select 1 from arkvory_owner where id = 1 and generation = :mine for share) "
                f"select {then} from mine"
            ),
            {"mine": self.generation, **(values or {})},
        ).first()
        if row is None:
            self._lose("a successor has taken the storage over")
            raise NotOwner("another process has taken the storage over; try again shortly")
        return row[0]

    def release(self) -> None:
        """Give ownership up, after the last write."""
        if self._loop is not None:
            end(self._loop)
            self._loop = None
        self.generation = None
        self._close_session()

    # -- what differs

    def _take(self) -> str | None:
        """Take what the session holds, or say who is in the way; then nothing is held."""
        raise NotImplementedError

    def _advice(self) -> str:
        """What to do about the obstacle that was met last."""
        raise NotImplementedError

    def _fresh_generation(self) -> int:
        """The generation to write under, after the locks were taken."""
        raise NotImplementedError

    def _still_mine(self) -> bool:
        """True when the session answers, holds its locks (taken again after a break) and nobody counted up since."""
        if self._session is None and self._take() is not None:
            return False
        assert self._session is not None
        with database_errors():
            now = int(self._session.execute(text("select generation from arkvory_owner where id = 1")).scalar_one())
        if now != self.generation:
            self._lose("a successor has taken the storage over")
        return now == self.generation

    def _missed(self) -> None:
        """A check was not good."""

    # -- the session

    def _opened(self) -> Connection:
        if self._session is None:
            self._session = self._database.session.connect()
        return self._session

    def _holder(self) -> str:
        with self._database.read() as connection:
            return str(connection.execute(text("select holder from arkvory_owner where id = 1")).scalar_one_or_none() or "")

    def _close_session(self) -> None:
        """End the session, and its locks with it: never back to the pool."""
        session, self._session = self._session, None
        if session is not None:
            destroy(session, "the ownership session")

    def _count_up(self, holder: str, *, shared: bool = False) -> int:
        """A new generation; `shared`: unless `holder` was the last to make one. Returns the one that counts now."""
        statement = text(
            "update arkvory_owner set generation = generation + 1, holder = :holder, acquired_at = now() "
            "where id = 1 and not (:shared and holder = :holder)"
        )
        # A write of the predecessor that hangs is ended by PostgreSQL, later than a statement of ours may usually take.
        hanging = NotOwner(f"a write of the predecessor ({self._holder() or 'unknown'}) does not end; try again shortly")
        with database_errors(), without_limit(), gevent.Timeout(IDLE_IN_TRANSACTION_MS / 1000 + 5, hanging):
            session = self._opened()
            session.execute(statement, {"holder": holder, "shared": shared})
            return int(session.execute(text("select generation from arkvory_owner where id = 1")).scalar_one())

    # -- watching it

    def _watch(self) -> None:
        while not self.lost:
            gevent.sleep(CHECK_SECONDS)
            self._check()
        self._close_session()
        self._wait_for_database()
        if self._on_lost is not None:
            self._on_lost()

    def _check(self) -> None:
        began = time.monotonic()
        try:
            with gevent.Timeout(CHECK_SECONDS, DatabaseAway(f"the database did not answer within {CHECK_SECONDS:g} s")):
                good = self._still_mine_after_a_break()
        except ArkvoryError as error:
            good = False
            self._close_session()
            outage.consequence(log, "storage ownership could not be checked: %s", error)
        if good:
            self._last_good = began
        elif not self.lost:
            self._missed()

    def _still_mine_after_a_break(self) -> bool:
        """A session that broke is replaced at once: PostgreSQL may be back already, and the next check is far away."""
        try:
            return self._still_mine()
        except ArkvoryError as error:
            outage.consequence(log, "the session of the storage ownership broke: %s", error)
            self._close_session()
            return self._still_mine()

    def _lose(self, reason: str) -> None:
        if not self.lost:
            self.lost = True
            log.error("storage ownership is lost: %s; writes stop, reads go on", reason)
            if self._loop is None or gevent.getcurrent() is self._loop:
                self._close_session()
            # Else it is the loop's: psycopg2 holds a mutex while a greenlet waits in a connection, and closing it from another one
            # would stop the whole process for ever.

    def _wait_for_database(self) -> None:
        while True:
            try:
                with self._database.read() as connection:
                    connection.execute(text("select 1"))
                return
            except ArkvoryError:
                gevent.sleep(CHECK_SECONDS)


class SingleOwnership(Ownership):
    """Of the one process of a single node (S1)."""

    def _take(self) -> str | None:
        with database_errors():
            taken = bool(self._opened().execute(text("select pg_try_advisory_lock(:c, :o)"), _LOCK).scalar_one())
        if taken:
            return None
        self._close_session()
        return f"another Arkvory owns this storage ({self._who()})"

    def _who(self) -> str:
        sharers = self._sharers()
        if sharers:
            return f"a cluster, {sharers} of its processes run"
        return self._holder() or "unknown"

    def _sharers(self) -> int:
        statement = text(
            "select count(*) from pg_locks where locktype = 'advisory' and classid = :c and objid = :o and objsubid = 2 and granted "
            "and mode = 'ShareLock' and database = (select oid from pg_database where datname = current_database())"
        )
        with self._database.read() as connection:
            return int(connection.execute(statement, _LOCK).scalar_one())

    def _advice(self) -> str:
        return (
            "stop it first, or give this one another database and data directory. "
            "Several processes over one storage need ARKVORY_DEPLOYMENT=cluster"
        )

    def _fresh_generation(self) -> int:
        return self._count_up(f"process {os.getpid()} on {socket.gethostname()}")

    def _missed(self) -> None:
        if time.monotonic() - self._last_good >= LOST_AFTER_SECONDS:
            self._lose(f"no good check for {LOST_AFTER_SECONDS:g} s")
