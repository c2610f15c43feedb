"""What is wrong with an installation, and what to do about each thing; reads, and changes nothing.

    configuration.py   settings that contradict each other or are ignored
    storage.py         the data directory: modes, room, the disk
    mounts.py          the file system below the blobs
    database.py        PostgreSQL: reachable, migrated, counted right
    upkeep.py          jobs, mirrors, quotas
    cluster.py         the processes that work together
    findings.py        one line of the result

`examine` works inside of the running server, `examine_stopped` where none runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import gevent

from app.cluster.loop import Loop
from app.database import embedded, pools
from app.database.engines import Database
from app.http.doctor import configuration, storage
from app.http.doctor.cluster import examine_cluster, examine_process, expected_files
from app.http.doctor.database import examine_database
from app.http.doctor.findings import FAIL, OK, WARN, Finding, fail, ok, worst
from app.http.doctor.storage import Expected
from config import Settings

__all__ = ["FAIL", "OK", "WARN", "Finding", "configuration", "examine", "examine_stopped", "fail", "ok", "worst"]


def examine(settings: Settings, database: Database, owns_storage: Callable[[], bool], loop: Loop | None) -> list[Finding]:
    """All checks, from the server that runs with these settings; what blocks does so in the thread pool."""
    pool = gevent.get_hub().threadpool
    found, expected = _of_database(settings, database, owns_storage, loop)
    found += pool.apply(storage.examine_storage, (settings, expected))
    return [*found, *pool.apply(configuration.examine_configuration, (settings,))]


def examine_stopped(settings: Settings) -> list[Finding]:
    """All checks without a server. An embedded PostgreSQL that does not run is started for that time; nothing new is made."""
    pools.patch_for_gevent()
    found, expected = _database_of_stopped(settings)
    return [*found, *storage.examine_storage(settings, expected), *configuration.examine_configuration(settings)]


def _of_database(
    settings: Settings, database: Database, owns_storage: Callable[[], bool] | None, loop: Loop | None
) -> tuple[list[Finding], Expected]:
    found = examine_database(settings, database, owns_storage)
    reachable = found[0].status == OK
    if loop is not None:
        found.append(examine_process(loop))
    if not reachable:
        return found, Expected()
    return [*found, *examine_cluster(settings, database)], expected_files(settings, database)


def _database_of_stopped(settings: Settings) -> tuple[list[Finding], Expected]:
    with contextlib.ExitStack() as stack:
        url = settings.database_url
        if url is None:
            if not (settings.data_dir / "postgres").exists():
                return [ok("database", "there is none yet; the first start makes the embedded one")], Expected()
            try:
                url = stack.enter_context(embedded.start(settings)).url
            except embedded.CannotStart as error:
                advice = "correct what it says, or set ARKVORY_DATABASE_URL to a PostgreSQL of your own"
                return [fail("database", str(error), advice)], Expected()
        database = Database(settings, url)
        stack.callback(database.dispose)
        return _of_database(settings, database, None, None)
