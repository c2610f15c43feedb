"""PostgreSQL as the doctor sees it. Each check is a short transaction that reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from app.cluster import inspection
from app.cluster.inspection import Census
from app.database import migrate
from app.database.engines import RESERVED_CONNECTIONS, Database
from app.database.locks import OWNERSHIP
from app.database.outage import reason
from app.database.pools import database_errors
from app.database.sessions import require_sessions
from app.database.statements import text
from app.database.uploads import OPEN_BY_LEASE
from app.errors import ArkvoryError, DatabaseAway, Unavailable
from app.http.doctor.findings import OK, Finding, fail, ok, shown, warn
from app.http.doctor.upkeep import examine_jobs, examine_mirrors, examine_quotas
from app.storage.filesystem import free_bytes
from config import Settings

OLDEST_VERSION = 14
CLOCK_WARN_SECONDS = 2.0
CLOCK_FAIL_SECONDS = 60.0
MOST_SHOWN = 5
Check = Callable[[Connection], Finding]
Checks = Callable[[Connection], Finding | list[Finding]]


def examine_database(settings: Settings, database: Database, owns_storage: Callable[[], bool] | None) -> list[Finding]:
    """All checks; only the first where PostgreSQL does not answer. `owns_storage` asks the running server, null where none runs."""
    found = [_reachable(database)]
    if found[0].status != OK:
        return found
    found += [run_check(database, "migrations", _migrations), _budget(database)]
    found.append(run_check(database, "clock", _clock))
    found.append(_sessions(database))
    if has_tables(database):
        for name, check in _table_checks(settings, owns_storage):
            found += run_checks(database, name, check)
    return found


def _table_checks(settings: Settings, owns_storage: Callable[[], bool] | None) -> Iterator[tuple[str, Checks]]:
    yield "ownership", lambda connection: _ownership(connection, owns_storage)
    yield "switches", _switches
    yield "counters", _counters
    yield "capacity", lambda connection: _capacity(connection, settings)
    yield "quotas", examine_quotas
    yield "jobs", lambda connection: examine_jobs(connection, serving=owns_storage is not None)
    yield "mirrors", examine_mirrors
    yield "uploads", lambda connection: _uploads(connection, settings)
    yield "blobs", lambda connection: _blobs(connection, settings)
    yield "administrator", lambda connection: _administrator(connection, settings)


def run_check(database: Database, name: str, check: Check) -> Finding:
    """In a transaction of its own. A check that cannot be made is no fault yet."""
    (found,) = run_checks(database, name, check)
    return found


def run_checks(database: Database, name: str, check: Checks) -> list[Finding]:
    """The same, of a check that may have several lines."""
    try:
        with database.read() as connection:
            found = check(connection)
            return found if isinstance(found, list) else [found]
    except (ArkvoryError, DBAPIError) as error:
        words = f"could not be checked: {reason(error)}"
        return [warn(name, words, "run the doctor again when the server is less busy, or look into PostgreSQL's log")]


def _reachable(database: Database) -> Finding:
    try:
        with database.read() as connection:
            version, number = connection.execute(
                text("select current_setting('server_version'), current_setting('server_version_num')::int")
            ).one()
    except (ArkvoryError, DBAPIError) as error:
        return fail(
            "database",
            f"PostgreSQL does not answer: {reason(error)}",
            "start it, and see that ARKVORY_DATABASE_URL leads to it; a running server reads on from memory, and recovers by itself",
        )
    if number // 10000 < OLDEST_VERSION:
        return fail("database", f"PostgreSQL {version} is too old", f"bring it to version {OLDEST_VERSION} or newer")
    return ok("database", f"PostgreSQL {version} answers")


def has_tables(database: Database) -> bool:
    """Whether this release's tables are there. Raises ArkvoryError."""
    with database.read() as connection:
        return connection.execute(text("select to_regclass('arkvory_quota_levels')")).scalar() is not None


def _migrations(connection: Connection) -> Finding:
    current, newest, known = migrate.state_of(connection)
    if current == newest:
        return ok("migrations", f"the tables are up to date ({current})")
    if current is not None and not known:
        return fail(
            "migrations", f"the tables are at {current}, which this program does not know", "they belong to a newer Arkvory: run that one"
        )
    return fail(
        "migrations",
        f"the tables are at {current or 'nothing'}, this program needs {newest}",
        "run `arkvory db upgrade`; a start does it too",
    )


def _processes(database: Database) -> Census:
    """Who shares PostgreSQL's connections, as far as can be told; all are taken to have pools like these."""
    alone = Census({"this server": 1}, 0 if database.settings.cluster else 1)
    if not database.settings.cluster or not has_tables(database):
        return alone
    with database.read() as connection:
        found = inspection.census(connection)
    return found if found.servers else alone


def _budget(database: Database) -> Finding:
    """The pools as they may grow, against what PostgreSQL has; and how many are left now."""
    try:
        found = _processes(database)
        database.check_budget(found.servers, found.runners)
        with database.read() as connection:
            used, most = connection.execute(
                text("select sum(numbackends)::int, current_setting('max_connections')::int from pg_stat_database")
            ).one()
    except DatabaseAway as error:
        return warn("connections", f"could not be checked: {reason(error)}", "run the doctor again")
    except Unavailable as error:
        return fail("connections", error.message, "the next start refuses until that is so")
    demand = database.demand(found.servers, found.runners)
    pools = f"the pools take up to {demand.total} connections"
    if demand.processes > 1:
        pools += f" in {demand.processes} processes"
    if database.pooled:
        pools += " beside the pooler's"
    pools += f", of {most}; {used} are in use"
    if used > most - RESERVED_CONNECTIONS:
        return warn("connections", pools, "something takes nearly all of them: look at pg_stat_activity, or raise max_connections")
    return ok("connections", pools)


def _sessions(database: Database) -> Finding:
    """Locks, names and ownership are sessions, which no transaction pooler gives."""
    where = "the direct address" if database.settings.database_session_url else "the database's address"
    try:
        with database_errors():
            require_sessions(database.session.engine)
    except DatabaseAway as error:
        advice = "correct ARKVORY_DATABASE_SESSION_URL: a direct address of the same database"
        return fail("sessions", f"{where} does not answer: {reason(error)}", advice)
    except (ArkvoryError, DBAPIError) as error:
        return fail("sessions", reason(error), "the next start refuses until that is so")
    return ok("sessions", f"{where} gives long-lived sessions")


def _clock(connection: Connection) -> Finding:
    """PostgreSQL's clock decides over leases and ages, ours over expiry of what is in memory."""
    began = time.time()
    there = float(connection.execute(text("select extract(epoch from clock_timestamp())::float8")).scalar_one())
    difference = there - (began + time.time()) / 2
    words = f"PostgreSQL's clock is {abs(difference):.1f} s {'ahead of' if difference > 0 else 'behind'} this machine's"
    advice = "set both machines' clocks by NTP; ages, leases and expiry depend on them"
    if abs(difference) > CLOCK_FAIL_SECONDS:
        return fail("clock", words, advice)
    if abs(difference) > CLOCK_WARN_SECONDS:
        return warn("clock", words, advice)
    return ok("clock", f"differs from PostgreSQL's by {abs(difference):.2f} s")


def _ownership(connection: Connection, owns_storage: Callable[[], bool] | None) -> Finding:
    holder = connection.execute(text("select holder from arkvory_owner where id = 1")).scalar() or "unknown"
    locked = connection.execute(
        text(
            "select 1 from pg_locks where locktype = 'advisory' and granted and classid = :c and objid = :o and objsubid = 2 "
            "and database = (select oid from pg_database where datname = current_database())"
        ),
        {"c": OWNERSHIP[0], "o": OWNERSHIP[1]},
    ).first()
    if owns_storage is not None:
        if owns_storage():
            return ok("ownership", f"the server owns the storage ({holder})")
        return fail(
            "ownership",
            f"the server does not own the storage ({holder} does or did): writes are refused",
            "see its log; it is replaced by itself",
        )
    if locked is None:
        return ok("ownership", "nobody owns the storage at the moment")
    return fail(
        "ownership",
        f"{holder} owns this storage, but no server answers here",
        "set ARKVORY_DATA_DIR to that server's folder; if this is its folder, see its log, and end it if it hangs",
    )


def _switches(connection: Connection) -> Finding:
    if connection.execute(text("select read_only from arkvory_installation where id = 1")).scalar():
        advice = "`arkvory installation update --writable`, unless it is meant so"
        return warn("switches", "the read-only switch is on: nothing can be published or deleted", advice)
    return ok("switches", "the installation takes writes")


def _counters(connection: Connection) -> Finding:
    """DESIGN 5: a counter that differs from its sum is a fault."""
    wrong = connection.execute(
        text(
            "select repository_id, status, coalesce(c.bytes, 0) as counted, coalesce(s.bytes, 0) as summed, "
            "coalesce(c.uploads, 0) as uploads_counted, coalesce(s.uploads, 0) as uploads from "
            "(select repository_id, status, bytes, uploads from arkvory_upload_bytes) c full join "
            "(select repository_id, status, sum(bytes)::bigint as bytes, count(*) as uploads "
            "from arkvory_uploads where status <> 'released' group by 1, 2) s using (repository_id, status) "
            "where (coalesce(c.bytes, 0), coalesce(c.uploads, 0)) <> (coalesce(s.bytes, 0), coalesce(s.uploads, 0)) order by 1, 2"
        )
    ).all()
    if not wrong:
        return ok("counters", "each equals the sum that it stands for")
    some = "; ".join(
        f"repository {row.repository_id} {row.status}: {row.counted} bytes of {row.uploads_counted} uploads counted, "
        f"{row.summed} of {row.uploads} summed"
        for row in wrong[:MOST_SHOWN]
    )
    return fail(
        "counters",
        f"{len(wrong)} differ from their sums ({some})",
        "report this fault; limits are kept by the counters, so that they are off by the difference",
    )


def _capacity(connection: Connection, settings: Settings) -> Finding:
    used = int(connection.execute(text("select coalesce(sum(bytes), 0) from arkvory_upload_bytes")).scalar_one())
    most = settings.capacity_bytes
    if most is None:
        return ok("capacity", f"{shown(used)} are counted; the disk decides")
    words = f"{shown(used)} of {shown(most)} are taken"
    if used >= most:
        return fail(
            "capacity",
            f"{words}: uploads are refused with 507",
            "delete something and run `arkvory cleanup`, or raise ARKVORY_CAPACITY_BYTES",
        )
    room = free_bytes(settings.data_dir) - settings.disk_reserve_bytes
    if most - used > max(room, 0):
        return warn("capacity", f"{words}, but the disk ends before that", "lower ARKVORY_CAPACITY_BYTES, or give it a larger disk")
    if used > most * 0.9:
        return warn("capacity", words, "make room soon, or raise ARKVORY_CAPACITY_BYTES")
    return ok("capacity", words)


def _uploads(connection: Connection, settings: Settings) -> Finding:
    """Those whose process died are released by their lease, at the next cleanup."""
    count, late = connection.execute(
        text(
            "select count(*), count(*) filter (where lease_until < now() - make_interval(secs => :patience)) "
            f"from arkvory_uploads where {OPEN_BY_LEASE}"
        ),
        {"patience": settings.cleanup_seconds * 2 + 60},
    ).one()
    if late:
        return warn(
            "uploads",
            f"{late} of {count} open uploads were left by their process and still count",
            "run `arkvory cleanup`, and see why it does not run by itself",
        )
    return ok("uploads", f"{count} are open" if count else "none are open")


def _blobs(connection: Connection, settings: Settings) -> Finding:
    """`deleting` is a matter of moments."""
    live, late = connection.execute(
        text(
            "select count(*) filter (where status = 'live'), count(*) filter (where status = 'deleting' "
            "and candidate_at < now() - make_interval(secs => :patience)) from arkvory_blobs"
        ),
        {"patience": settings.blob_grace_seconds + settings.cleanup_seconds * 2 + 60},
    ).one()
    if late:
        return warn(
            "blobs",
            f"the deletion of {late} was begun and not finished",
            "run `arkvory cleanup`; if they stay, see whether the store can be written",
        )
    return ok("blobs", f"{live} are live, no deletion is left half done")


def _administrator(connection: Connection, settings: Settings) -> Finding:
    users, able = connection.execute(
        text("select count(*), count(*) filter (where administrator and not disabled and password_hash is not null) from arkvory_users")
    ).one()
    if users and not able:
        return warn(
            "administrator",
            "no administrator can log in",
            "run `arkvory user update NAME --password` and `--enable` on the server's machine",
        )
    if users and settings.admin_password is not None:
        return warn(
            "administrator",
            "ARKVORY_ADMIN_PASSWORD is set and has no use after the first start",
            "take it out of the environment, where others may see it; `arkvory user update admin --password` changes the password",
        )
    return ok("administrator", f"{able} can log in" if users else "the first start makes one")
