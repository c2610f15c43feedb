"""Storage ownership on a single node (DESIGN 5): a session lock and a generation number.

The lock says who may start; the generation says who may write. Each write transaction share-locks the
owner's row `where generation = mine`, so a predecessor that lingers (stopped, cut off, slow to die) can
write nothing once a successor has counted the generation up.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable

import gevent
from sqlalchemy import Connection, text

from app.database.engines import IDLE_IN_TRANSACTION_MS, Database, database_errors, without_limit
from app.database.locks import OWNERSHIP
from app.errors import ArkvoryError, NotOwner

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

    def acquire(self, wait_seconds: float) -> None:
        """Become the owner, waiting for a predecessor to leave. Raises NotOwner, naming it, when it does not."""
        deadline = time.monotonic() + wait_seconds
        said = False
        while not self._take_lock():
            if not said:
                said = True
                log.warning("the storage belongs to another Arkvory (%s); waiting up to %g s for it to leave", self._holder(), wait_seconds)
            if time.monotonic() >= deadline:
                raise NotOwner(
                    f"another Arkvory owns this storage ({self._holder() or 'unknown'}) and did not leave within {wait_seconds:g} s; "
                    "stop it first, or give this one another database and data directory"
                )
            gevent.sleep(RETRY_SECONDS)
        self.generation = self._count_up()
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

    def share_lock(self, connection: Connection) -> None:
        """First step of each write transaction: raises NotOwner when a successor has taken over."""
        self.require()
        row = connection.execute(
            text("select 1 from arkvory_owner where id = 1 and generation = :mine for share"), {"mine": self.generation}
        ).first()
        if row is None:
            self._lose("a successor has taken the storage over")
            raise NotOwner("another process has taken the storage over; try again shortly")

    def release(self) -> None:
        """Give ownership up, after the last write."""
        if self._loop is not None:
            self._loop.kill()
            self._loop = None
        self.generation = None
        self._close_session()

    def _take_lock(self) -> bool:
        if self._session is None:
            self._session = self._database.session.connect()
        with database_errors():
            taken = bool(self._session.execute(text("select pg_try_advisory_lock(:c, :o)"), _LOCK).scalar_one())
        if not taken:
            self._close_session()
        return taken

    def _count_up(self) -> int:
        assert self._session is not None
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        statement = text(
            "update arkvory_owner set generation = generation + 1, holder = :holder, acquired_at = now() where id = 1 returning generation"
        )
        # A write of the predecessor that hangs is ended by PostgreSQL, later than a statement of ours may usually take.
        hanging = NotOwner(f"a write of the predecessor ({self._holder() or 'unknown'}) does not end; try again shortly")
        with database_errors(), without_limit(), gevent.Timeout(IDLE_IN_TRANSACTION_MS / 1000 + 5, hanging):
            return int(self._session.execute(statement, {"holder": holder}).scalar_one())

    def _holder(self) -> str:
        with self._database.read() as connection:
            return str(connection.execute(text("select holder from arkvory_owner where id = 1")).scalar_one_or_none() or "")

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
            with gevent.Timeout(CHECK_SECONDS):
                good = self._still_mine()
        except (ArkvoryError, gevent.Timeout) as error:
            good = False
            self._close_session()
            log.warning("storage ownership could not be checked: %s", error)
        if good:
            self._last_good = began
        elif not self.lost and time.monotonic() - self._last_good >= LOST_AFTER_SECONDS:
            self._lose(f"no good check for {LOST_AFTER_SECONDS:g} s")

    def _still_mine(self) -> bool:
        """True when the session answers, holds the lock (taken again after a break) and nobody counted up since."""
        if self._session is None and not self._take_lock():
            return False
        assert self._session is not None
        with database_errors():
            now = int(self._session.execute(text("select generation from arkvory_owner where id = 1")).scalar_one())
        if now != self.generation:
            self._lose("a successor has taken the storage over")
        return now == self.generation

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

    def _close_session(self) -> None:
        """End the session, and its locks with it: never back to the pool."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.invalidate()
            session.close()
        except Exception as error:
            log.warning("closing the ownership session: %s", error)
