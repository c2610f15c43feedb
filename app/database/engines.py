"""Engines and their pools, made after the fork and never shared across one (DESIGN 2).

Two pools: `request` for requests, held for a transaction and never while bytes move, and `session`,
AUTOCOMMIT, for long-lived sessions. Every connect and every statement has an end: psycogreen ignores
`connect_timeout`, so both run under gevent timeouts, and a connection that was interrupted is destroyed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gevent
import psycopg2
import psycopg2.errors
import psycopg2.extensions
import sqlalchemy
from gevent.local import local
from gevent.monkey import get_original
from psycogreen.gevent import gevent_wait_callback
from sqlalchemy import Connection, CursorResult, Engine, Row, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.database.outage import outage, reason
from app.errors import ArkvoryError, CapacitySpent, DatabaseAway, DatabaseRefuses, Invalid, Unavailable
from config import Settings

log = logging.getLogger(__name__)

KEEPALIVE_SECONDS = 10
IDLE_IN_TRANSACTION_MS = 60_000
RESERVED_CONNECTIONS = 10
# Cache rows only save time: whoever locks them costs a moment, and nothing else (C6).
CACHE_ROW_WAIT_MS = 1_000
ROWS_AT_ONCE = 1_000
# Of a connect that fails psycopg2 tells no SQLSTATE. Where PostgreSQL speaks another language, it counts as away.
_REFUSALS = re.compile(r'FATAL: +(password authentication failed|no pg_hba\.conf entry|(database|role) ".*" does not exist)')


def all_rows(result: CursorResult[Any]) -> list[Row[Any]]:
    """Every row of a result. Making thousands takes long: others get their turns in between."""
    rows: list[Row[Any]] = []
    for part in result.partitions(ROWS_AT_ONCE):
        if rows:
            gevent.sleep(0)
        rows += part
    return rows


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
        self.statements = 0
        event.listen(engine, "checkout", _refuse_stale)
        event.listen(engine, "handle_error", _keep_pool_on_timeout)
        event.listen(engine, "handle_error", _refuse_text)
        event.listen(engine, "after_cursor_execute", self._count)

    def _count(self, *_: Any) -> None:
        self.statements += 1
        outage.answered()

    @property
    def connections(self) -> int:
        """Connections that are open, in use or idle."""
        return self.idle + int(self.engine.pool.checkedout())  # type: ignore[attr-defined]  # QueuePool's own

    @property
    def idle(self) -> int:
        return int(self.engine.pool.checkedin())  # type: ignore[attr-defined]  # QueuePool's own

    def connect(self) -> Connection:
        """A connection of the pool. Raises DatabaseAway when none comes free in time or PostgreSQL is away."""
        self.waiting += 1
        try:
            with database_errors():
                return self.engine.connect()
        finally:
            self.waiting -= 1


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


@contextlib.contextmanager
def statements_within(connection: Connection, milliseconds: int) -> Iterator[None]:
    """A shorter limit for the statements of the block; after an error in them the (sub)transaction can only be rolled back."""
    former = connection.execute(text("select current_setting('statement_timeout')")).scalar_one()
    connection.execute(text("select set_config('statement_timeout', :limit, true)"), {"limit": str(milliseconds)})
    yield
    connection.execute(text("select set_config('statement_timeout', :former, true)"), {"former": former})


def make_engine(settings: Settings, url: str, *, size: int, autocommit: bool, overflow: int = 0) -> Engine:
    """An engine over `url` whose connects are bounded; opens nothing yet."""
    parameters = make_url(url)
    # The server's own limit ends what a client that gave up left running.
    server_limit = 0 if autocommit else int(settings.database_statement_seconds * 1000) + 1000
    options = f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_MS} -c statement_timeout={server_limit} -c timezone=UTC"
    arguments: dict[str, Any] = {
        "application_name": "arkvory",
        "options": f"{options} -c tcp_keepalives_idle={KEEPALIVE_SECONDS} -c tcp_keepalives_interval=3 -c tcp_keepalives_count=3",
        "keepalives_idle": KEEPALIVE_SECONDS,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "connect_timeout": max(2, int(settings.database_connect_seconds)),
    }
    engine = sqlalchemy.create_engine(
        parameters,
        pool_size=size,
        max_overflow=overflow,
        pool_timeout=settings.database_wait_seconds,
        pool_use_lifo=True,
        connect_args=arguments,
        isolation_level="AUTOCOMMIT" if autocommit else "READ COMMITTED",
        # Else each new connection asks for a type that nobody uses.
        use_native_hstore=False,
    )
    event.listen(engine, "do_connect", _bounded_connect(settings.database_connect_seconds))
    return engine


def _bounded_connect(seconds: float) -> Callable[..., Any]:
    def connect(dialect: Any, _record: Any, arguments: Any, keywords: Any) -> Any:
        with gevent.Timeout(seconds, TimedOut(f"PostgreSQL did not accept a connection within {seconds:g} s")):
            return dialect.connect(*arguments, **keywords)

    return connect


def _listed(processes: Mapping[str, int]) -> str:
    return "" if len(processes) < 2 else f" ({', '.join(f'{count} of {name}' for name, count in processes.items())})"


class Database:
    """The two pools of this process and the three kinds of transactions."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.settings = settings
        outage.watch(settings, url)
        _limit.seconds = settings.database_statement_seconds
        self.request = Pool("request", make_engine(settings, url, size=settings.database_pool_size, autocommit=False))
        session_url = settings.database_session_url or url
        self.session = Pool("session", make_engine(settings, session_url, size=settings.session_pool_size, autocommit=True))

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (self.request, self.session)

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A short READ COMMITTED transaction for single statements; ends with a rollback."""
        with database_errors(), self.request.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def consistent(self) -> Iterator[Connection]:
        """A REPEATABLE READ, READ ONLY transaction: all its statements see one state."""
        with database_errors(), self.request.connect() as connection:
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A READ COMMITTED transaction that commits at the end: for small changes that no cache knows of."""
        with database_errors(), self.request.connect() as connection:
            yield connection
            connection.commit()

    def statements(self) -> int:
        """Statements sent since the start, both pools."""
        return sum(pool.statements for pool in self.pools)

    def check_budget(self, processes: Mapping[str, int]) -> None:
        """`processes` by server. Raises Unavailable, showing the sum, when their pools could ask for more than PostgreSQL has."""
        with self.read() as connection:
            most = int(connection.execute(text("select current_setting('max_connections')")).scalar_one())
        sizes = {"request": self.settings.database_pool_size, "session": self.settings.session_pool_size}
        count = sum(processes.values())
        asked = sum(sizes.values()) * count
        if asked > most - RESERVED_CONNECTIONS:
            shown = " + ".join(f"{name} {size}" for name, size in sizes.items())
            raise Unavailable(
                f"the pools ({shown}) of {count} process(es){_listed(processes)} may open {asked} connections, but PostgreSQL allows "
                f"{most} less {RESERVED_CONNECTIONS} for others; raise its max_connections or lower "
                "ARKVORY_DATABASE_POOL_SIZE and ARKVORY_SESSION_POOL_SIZE"
            )

    def dispose(self) -> None:
        """Close every idle connection."""
        for pool in self.pools:
            pool.engine.dispose()
