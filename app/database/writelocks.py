"""Write locks: one process at a time works at an object, for as long as it takes (DESIGN 2, the pool `write-lock`).

Each is a session lock over a connection of its own, so that it ends with whoever has it, however that ends. A connection that held one
is destroyed and never returned: its locks are certainly gone. One that found the lock taken holds nothing, and goes back.

A lock keeps two workers from doing the same work. What may be written is decided by the transactions that write: a session that is
lost is found out seconds later, and meanwhile the lock may be another one's.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import gevent
from gevent.lock import BoundedSemaphore
from sqlalchemy import Connection, Engine

from app.database.clock import now
from app.database.greenlets import end, to_the_end
from app.database.locks import write_key
from app.database.outage import outage
from app.database.pools import Pool, database_errors, destroy
from app.database.statements import text
from app.errors import ArkvoryError, DatabaseAway, LockLost

log = logging.getLogger(__name__)

# Connections without any mirror, and with ever so many.
LEAST = 2
MOST = 16
CHECK_SECONDS = 2.0
# Of the beginning of the last good check, when the lock may no longer be believed in.
OLDEST_CHECK_SECONDS = 5.0
ASK_SECONDS = 0.25


def _answers(session: Connection) -> None:
    session.execute(text("select 1"))


class Held:
    """What this process has until its session is lost, which is looked at every two seconds; `look` raises when it is."""

    def __init__(self, session: Connection, name: str, look: Callable[[Connection], object] = _answers) -> None:
        self.lost = False
        self._session = session
        self._name = name
        self._look = look
        self._last_good = now()
        # A connection answers one greenlet at a time.
        self._turn = BoundedSemaphore(1)

    def require(self) -> None:
        """Between two steps of the work. Raises LockLost.

        Asks PostgreSQL first where the last look lies too far back: a process that stood still.
        """
        if not self.lost and now() - self._last_good > OLDEST_CHECK_SECONDS:
            self._check()
        if self.lost:
            raise self._lost()

    def watch(self) -> None:
        """Until it is lost; in a greenlet of its own."""
        while not self.lost:
            gevent.sleep(CHECK_SECONDS)
            self._check()

    def _check(self) -> None:
        began = now()
        with contextlib.suppress(ArkvoryError), self.use() as session:
            self._look(session)
            self._last_good = began

    @contextlib.contextmanager
    def use(self) -> Iterator[Connection]:
        """The session, for one greenlet at a time and for two seconds. Whatever goes wrong in it loses it; ArkvoryErrors are raised on."""
        with self._turn:
            if self.lost:
                raise self._lost()
            try:
                with gevent.Timeout(CHECK_SECONDS, DatabaseAway("the database did not answer in time")), database_errors():
                    yield self._session
            except BaseException as error:
                self._lose(error)
                raise

    def end(self) -> None:
        """The session ends, and what it held with it, once nobody waits in it: closing it under somebody would stop the whole process."""
        self.lost = True
        with self._turn:
            destroy(self._session, f"the session of {self._name}")

    def _lost(self) -> LockLost:
        return LockLost(f"this process has lost {self._name}: its session with the database broke; begin again")

    def _lose(self, error: BaseException) -> None:
        if not self.lost and not isinstance(error, gevent.GreenletExit):
            outage.consequence(log, "%s is lost: %s", error, self._name)
        self.lost = True


class WriteLocks(Pool):
    """The pool `write-lock`; `size` is how many of its connections may be open at once."""

    def __init__(self, engine: Engine, wait_seconds: float) -> None:
        super().__init__("write-lock", engine)
        self.size = LEAST
        self._wait_seconds = wait_seconds
        self._used = 0

    def expect(self, mirrors: int) -> None:
        """One more for each mirror, up to sixteen in all. Called before the connection budget is checked, and when mirrors come and go."""
        self.size = min(LEAST + mirrors, MOST)

    @contextlib.contextmanager
    def hold(self, name: str, wait_seconds: float = 0.0) -> Iterator[Held | None]:
        """Have `name` (`mirror/7`) to oneself inside; null when somebody else kept it for longer than the wait, which holds no connection.

        What happens to the session inside is for the caller to ask: `Held.require`. Raises DatabaseAway, also when no connection
        comes free in time.
        """
        session = self._taken(name, wait_seconds)
        if session is None:
            yield None
            return
        held = Held(session, f"its lock of {name}")
        watching = gevent.spawn(held.watch)
        try:
            yield held
        finally:
            to_the_end(lambda: self._give_back(held, watching))

    def _give_back(self, held: Held, watching: gevent.Greenlet) -> None:
        try:
            end(watching)
            held.end()
        finally:
            self._used -= 1

    def _taken(self, name: str, wait_seconds: float) -> Connection | None:
        deadline = time.monotonic() + wait_seconds
        while (session := self._try(name)) is None and time.monotonic() < deadline:
            gevent.sleep(ASK_SECONDS)
        return session

    def _try(self, name: str) -> Connection | None:
        """A connection that has the lock and counts as used, or null."""
        self._wait_for_room()
        self._used += 1
        session: Connection | None = None
        taken = False
        try:
            session = self.connect()
            with database_errors():
                statement = text("select pg_try_advisory_lock(hashtextextended(:key, 0))")
                taken = bool(session.execute(statement, {"key": write_key(name)}).scalar_one())
            if not taken:
                session.close()
            return session if taken else None
        except BaseException:
            # Whether it has the lock is not known.
            if session is not None:
                destroy(session, f"a connection that asked for the lock of {name}")
            raise
        finally:
            if not taken:
                self._used -= 1

    def _wait_for_room(self) -> None:
        deadline = time.monotonic() + self._wait_seconds
        self.waiting += 1
        try:
            while self._used >= self.size:
                if time.monotonic() >= deadline:
                    raise DatabaseAway(f"all {self.size} connections for write locks are in use; try again shortly")
                gevent.sleep(ASK_SECONDS / 5)
        finally:
            self.waiting -= 1
