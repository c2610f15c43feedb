"""Whether an address gives sessions that are one client's from beginning to end, as locks and names of processes need them (DESIGN 2).

A pooler in transaction mode lends its own sessions to whoever has a statement. A lock that is taken in one stays with the pooler: it is
not the client's any more in its next statement, and does not go when the client does. Each of the two gives it away, whoever else uses
the pooler at the time, or nobody.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator

from sqlalchemy import Connection, Engine

from app.database.locks import TRIAL_CLASS
from app.database.pools import destroy
from app.database.statements import text
from app.errors import Unavailable

# A session that was closed is over at once; a loaded server may take a while.
OVER_SECONDS = 5.0
ASK_SECONDS = 0.02


def require_sessions(engine: Engine) -> None:
    """Raises Unavailable, saying what to set, when a transaction pooler is in the way; what the driver raises passes."""
    lock = {"c": TRIAL_CLASS, "o": secrets.randbelow(2**31)}
    with _alone(engine) as session:
        session.execute(text("select pg_advisory_lock(:c, :o)"), lock)
        if not session.execute(text(f"select exists ({_HELD} and pid = pg_backend_pid())"), lock).scalar_one():
            raise _not_ours("a lock was gone with the statement that took it")
    deadline = time.monotonic() + OVER_SECONDS
    with _alone(engine) as session:
        while session.execute(text(f"select exists ({_HELD})"), lock).scalar_one():
            if time.monotonic() > deadline:
                raise _not_ours("a lock outlived the session that took it")
            time.sleep(ASK_SECONDS)


@contextlib.contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """A session that ends with the block."""
    connection = engine.connect()
    try:
        yield connection.execution_options(isolation_level="AUTOCOMMIT")
    finally:
        destroy(connection, "a session on trial")


def _not_ours(seen: str) -> Unavailable:
    return Unavailable(
        f"the address for sessions leads through a transaction pooler ({seen}): set ARKVORY_DATABASE_SESSION_URL to the address of "
        "PostgreSQL itself, past the pooler. ARKVORY_DATABASE_URL may lead through it"
    )


_HELD = (
    "select 1 from pg_locks where locktype = 'advisory' and classid = :c and objid = :o and objsubid = 2 and granted "
    "and database = (select oid from pg_database where datname = current_database())"
)
