"""Engines and their pools, made after the fork and never shared across one (DESIGN 2).

Three pools: `request` for requests, held for a transaction and never while bytes move; `session`, AUTOCOMMIT, for long-lived
sessions; and `write-lock` where jobs run (database/writelocks.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gevent
import psycopg2.extensions
import sqlalchemy
from sqlalchemy import Connection, CursorResult, Engine, Row, event
from sqlalchemy.engine import make_url

from app.database import writelocks
from app.database.fairness import FairPool
from app.database.outage import outage
from app.database.pools import Pool, TimedOut, database_errors, limit_statements
from app.database.statements import text
from app.database.writelocks import WriteLocks
from app.errors import Unavailable
from config import Settings

KEEPALIVE_SECONDS = 10
IDLE_IN_TRANSACTION_MS = 60_000
# What still waits or runs for a client that hung up ends this soon: else it might take a lock, or commit, when everybody has gone on.
HUNG_UP_MS = 2_000
RESERVED_CONNECTIONS = 10
# Cache rows only save time: whoever locks them costs a moment, and nothing else (C6).
CACHE_ROW_WAIT_MS = 1_000
ROWS_AT_ONCE = 1_000


def all_rows(result: CursorResult[Any]) -> list[Row[Any]]:
    """Every row of a result. Making thousands takes long: others get their turns in between."""
    rows: list[Row[Any]] = []
    for part in result.partitions(ROWS_AT_ONCE):
        if rows:
            gevent.sleep(0)
        rows += part
    return rows


@contextlib.contextmanager
def statements_within(connection: Connection, milliseconds: int) -> Iterator[None]:
    """A shorter limit for the statements of the block; after an error in them the (sub)transaction can only be rolled back."""
    former = connection.execute(text("select current_setting('statement_timeout')")).scalar_one()
    connection.execute(text("select set_config('statement_timeout', :limit, true)"), {"limit": str(milliseconds)})
    yield
    connection.execute(text("select set_config('statement_timeout', :former, true)"), {"former": former})


def make_engine(settings: Settings, url: str, *, size: int, autocommit: bool, overflow: int = 0) -> Engine:
    """An engine over `url` whose connects are bounded; opens nothing yet."""
    # Ends what a client that stood still left running.
    server_limit = 0 if autocommit else int(settings.database_statement_seconds * 1000) + 1000
    parameters = {
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
        "statement_timeout": server_limit,
        "client_connection_check_interval": HUNG_UP_MS,
        "timezone": "UTC",
        "tcp_keepalives_idle": KEEPALIVE_SECONDS,
        "tcp_keepalives_interval": 3,
        "tcp_keepalives_count": 3,
    }
    arguments: dict[str, Any] = {
        "application_name": "arkvory",
        "options": " ".join(f"-c {name}={value}" for name, value in parameters.items()),
        "keepalives_idle": KEEPALIVE_SECONDS,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "connect_timeout": max(2, int(settings.database_connect_seconds)),
    }
    engine = sqlalchemy.create_engine(
        make_url(url),
        poolclass=FairPool,
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
    engine.dialect.set_isolation_level = _set_isolation_level  # type: ignore[method-assign, assignment]
    return engine


_LEVELS = {
    "AUTOCOMMIT": psycopg2.extensions.ISOLATION_LEVEL_AUTOCOMMIT,
    "READ COMMITTED": psycopg2.extensions.ISOLATION_LEVEL_READ_COMMITTED,
    "REPEATABLE READ": psycopg2.extensions.ISOLATION_LEVEL_REPEATABLE_READ,
}


def _set_isolation_level(connection: psycopg2.extensions.connection, level: str) -> None:
    """Without a word to PostgreSQL: it hears of a level with the next BEGIN.

    psycopg2 sets it for the session of one in autocommit, which costs a round trip when the connection is given back; and SQLAlchemy
    loses a connection whose giving back is broken off.
    """
    if connection.autocommit:
        connection.autocommit = False
    if level == "AUTOCOMMIT":
        connection.isolation_level = connection.readonly = None
    connection.set_isolation_level(_LEVELS[level])


def _bounded_connect(seconds: float) -> Callable[..., Any]:
    def connect(dialect: Any, _record: Any, arguments: Any, keywords: Any) -> Any:
        with gevent.Timeout(seconds, TimedOut(f"PostgreSQL did not accept a connection within {seconds:g} s")):
            return dialect.connect(*arguments, **keywords)

    return connect


@dataclass(frozen=True)
class Demand:
    """What pools may grow to: `sizes` in each of the processes of `servers`, and `write_locks` connections in each that runs jobs.

    `workers` of them have pools of `worker_sizes` instead.
    """

    sizes: Mapping[str, int]
    servers: Mapping[str, int]
    write_locks: int
    runners: int
    workers: int
    worker_sizes: Mapping[str, int]

    @property
    def processes(self) -> int:
        return sum(self.servers.values())

    @property
    def total(self) -> int:
        pools = sum(self.sizes.values()) * (self.processes - self.workers) + sum(self.worker_sizes.values()) * self.workers
        return pools + self.write_locks * self.runners

    def __str__(self) -> str:
        pools = " + ".join(f"{name} {size}" for name, size in self.sizes.items())
        workers = f", less in {self.workers} of them" if self.workers and self.worker_sizes != self.sizes else ""
        jobs = f", and write-lock {self.write_locks} in {self.runners} of them" if self.runners else ""
        return f"the pools ({pools}) of {self.processes} process(es){_listed(self.servers)}{workers}{jobs}"


def _listed(processes: Mapping[str, int]) -> str:
    return "" if len(processes) < 2 else f" ({', '.join(f'{count} of {name}' for name, count in processes.items())})"


def _server(url: str) -> tuple[object, ...]:
    """Who answers there, as far as the address tells."""
    parts = make_url(url)
    return parts.host, parts.port or 5432, parts.query.get("host")


class Database:
    """The three pools of this process and the three kinds of transactions."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.settings = settings
        outage.watch(settings, url)
        limit_statements(settings.database_statement_seconds)
        direct = settings.database_session_url or url
        self.pooled = _server(direct) != _server(url)
        sizes = settings.pool_sizes(worker=settings.is_worker)
        self.request = Pool("request", make_engine(settings, url, size=sizes["request"], autocommit=False))
        self.session = Pool("session", make_engine(settings, direct, size=sizes["session"], autocommit=True))
        self.write_lock = WriteLocks(make_engine(settings, direct, size=writelocks.MOST, autocommit=True), settings.database_wait_seconds)

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (self.request, self.session, self.write_lock)

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """For single statements, each a transaction of its own: without BEGIN and ROLLBACK it is a third of the round trips."""
        with database_errors(), self.request.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

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
        """Statements sent since the start, all pools."""
        return sum(pool.statements for pool in self.pools)

    def demand(self, servers: Mapping[str, int], runners: int) -> Demand:
        """What the pools of so many processes may open, `runners` of which run jobs and so have write locks.

        Without any the web processes run them, each job in one of them: together they take as many as one runner.
        """
        web, worker = (self._counted(self.settings.pool_sizes(worker=each)) for each in (False, True))
        # On a single node the web process runs them.
        return Demand(web, servers, self.write_lock.size, max(1, runners), runners if self.settings.cluster else 0, worker)

    def _counted(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        return {name: size for name, size in sizes.items() if not (self.pooled and name == "request")}

    def check_budget(self, processes: Mapping[str, int], runners: int = 1) -> None:
        """`processes` by server, `runners` of them run jobs.

        Raises Unavailable, showing the sum, when their pools could ask for more than PostgreSQL has. What a pooler opens for the request
        pools is not among it.
        """
        with self.read() as connection:
            most = int(connection.execute(text("select current_setting('max_connections')")).scalar_one())
        demand = self.demand(processes, runners)
        if demand.total > most - RESERVED_CONNECTIONS:
            raise Unavailable(
                f"{demand} may open {demand.total} connections, but PostgreSQL allows {most} less "
                f"{RESERVED_CONNECTIONS} for others; raise its max_connections or lower "
                + ("" if self.pooled else "ARKVORY_DATABASE_POOL_SIZE and ")
                + "ARKVORY_SESSION_POOL_SIZE"
            )

    def dispose(self) -> None:
        """Close every idle connection."""
        for pool in self.pools:
            pool.engine.dispose()
