"""psycopg2 under gevent, and what a pool of its connections does.

Every connect and every statement has an end: psycogreen ignores `connect_timeout`, so both run under gevent timeouts, and a connection
that was interrupted is destroyed. What the driver and the pool raise is told in the domain's words.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gevent
import psycopg2
import psycopg2.errors
import psycopg2.extensions
from gevent.local import local
from gevent.monkey import get_original
from psycogreen.gevent import gevent_wait_callback
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.database.delays import Delays
from app.database.outage import outage, reason
from app.errors import ArkvoryError, CapacitySpent, DatabaseAway, DatabaseRefuses, Invalid, Unavailable

log = logging.getLogger(__name__)

# Of a connect that fails psycopg2 tells no SQLSTATE. Where PostgreSQL speaks another language, it counts as away.
_REFUSALS = re.compile(
    r'FATAL: +(password authentication failed|no pg_hba\.conf entry|(database|role) ".*" does not exist|unsupported startup parameter)'
)


class TimedOut(psycopg2.OperationalError):
    """A connect or a statement did not end in time; its connection is closed."""


@dataclass
class _StatementLimit:
    """Longest run of one statement, in seconds: psycopg2's wait callback is one for the whole process."""

    seconds: float = 30.0


_limit = _StatementLimit()
# Of this greenlet alone, in place of the limit.
_patience = local()


@contextlib.contextmanager
def without_limit() -> Iterator[None]:
    """Statements of this greenlet may take as long as they take: migrations, which build indexes and wait for each other."""
    _patience.seconds = None
    try:
        yield
    finally:
        del _patience.seconds


def _wait(connection: psycopg2.extensions.connection) -> None:
    seconds = getattr(_patience, "seconds", _limit.seconds)
    try:
        with gevent.Timeout(seconds, TimedOut(f"PostgreSQL did not answer within {seconds or 0:g} s")):
            gevent_wait_callback(connection)
    except BaseException:
        _hang_up(connection)
        raise


def _hang_up(connection: psycopg2.extensions.connection) -> None:
    """Whoever is interrupted while it connects leaves nothing to close: its backend would wait for a password for a minute."""
    with contextlib.suppress(psycopg2.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def limit_statements(seconds: float) -> None:
    """How long a statement of this process may run, unless its greenlet says otherwise."""
    _limit.seconds = seconds


def patch_for_gevent() -> None:
    """Make psycopg2 yield to other greenlets while it waits, each statement under a timeout."""
    psycopg2.extensions.set_wait_callback(_wait)


def _is_stale(connection: psycopg2.extensions.connection) -> bool:
    """True when an idle connection has something to read: the server closed it or is about to."""
    if connection.closed:
        return True
    poller = get_original("select", "poll")()
    poller.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poller.poll(0))


class Pool:
    """One engine and its gauges; `name` is the metrics' label."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.engine = engine
        self.waiting = 0
        # Until a connection was free, or opened.
        self.waits = Delays()
        self.statements = 0
        # Open connections, in use or idle. The engine's own count goes on with those that were destroyed.
        self.connections = 0
        event.listen(engine, "connect", self._opened)
        event.listen(engine, "close", self._closed)
        event.listen(engine, "checkout", _refuse_stale)
        event.listen(engine, "handle_error", _keep_pool_on_timeout)
        event.listen(engine, "handle_error", _refuse_text)
        event.listen(engine, "after_cursor_execute", self._count)

    def _count(self, *_: Any) -> None:
        self.statements += 1
        outage.answered()

    def _opened(self, *_: Any) -> None:
        self.connections += 1

    def _closed(self, *_: Any) -> None:
        self.connections -= 1

    @property
    def idle(self) -> int:
        return max(0, self.connections - int(self.engine.pool.checkedout()))  # type: ignore[attr-defined]  # QueuePool's own

    def connect(self) -> Connection:
        """A connection of the pool. Raises DatabaseAway when none comes free in time or PostgreSQL is away."""
        self.waiting += 1
        began = time.monotonic()
        try:
            with database_errors():
                return self.engine.connect()
        finally:
            self.waiting -= 1
            self.waits.observe(time.monotonic() - began)


def destroy(connection: Connection, what: str) -> None:
    """End a session, and its locks with it: never back to the pool. No other greenlet may be waiting in it.

    `what` it was, for the log, where even that fails.
    """
    try:
        connection.invalidate()
        connection.close()
    except Exception as error:
        log.warning("closing %s: %s", what, error)


def _refuse_stale(connection: Any, _record: Any, _proxy: Any) -> None:
    if _is_stale(connection):
        raise DisconnectionError("closed while it was idle")


def _keep_pool_on_timeout(context: Any) -> None:
    # One slow statement says nothing about the other connections.
    if isinstance(context.original_exception, TimedOut):
        context.invalidate_pool_on_disconnect = False


def _refuse_text(context: Any) -> None:
    """Text of a client that PostgreSQL has no way to keep, or to compare with: with a NUL, or half a character in it."""
    error = context.original_exception
    if isinstance(error, UnicodeEncodeError) or (isinstance(error, ValueError) and "NUL" in str(error)):
        raise Invalid("a text in the request holds a NUL, or half a character")


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """Turn what the driver and the pool raise into the domain's words; other errors pass."""
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseAway("all database connections are in use; try again shortly") from error
    except DBAPIError as error:
        translated = _translated(error)
        if translated is None:
            raise
        raise translated from error
    except psycopg2.OperationalError as error:
        outage.missed(error)
        raise DatabaseAway("the database does not answer; try again shortly") from error


def _translated(error: DBAPIError) -> ArkvoryError | None:
    original = error.orig
    if error.connection_invalidated or isinstance(original, (TimedOut, psycopg2.InterfaceError)):
        outage.missed(error)
        return DatabaseAway("the database does not answer; try again shortly")
    if isinstance(original, psycopg2.errors.DiskFull):
        return CapacitySpent("the database's disk is full")
    if isinstance(original, psycopg2.errors.QueryCanceled):
        return Unavailable("the database took too long; try again shortly")
    if isinstance(original, psycopg2.errors.ReadOnlySqlTransaction):
        return Unavailable("the database accepts no writes at the moment")
    if isinstance(original, psycopg2.OperationalError):
        if original.pgcode is None:
            outage.missed(error)
        else:
            log.warning("database error: %s", reason(error))
        refused = _REFUSALS.search(str(original))
        return (DatabaseRefuses if refused else DatabaseAway)("the database cannot do that at the moment; try again shortly", retry_after=2)
    return None
