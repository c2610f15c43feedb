"""Membership (DESIGN 4, M4, M6, M7): who gets mail.

A process registers with a row of its own and keeps it alive by a heartbeat. A sender posts to rows whose heartbeat is younger than
30 s; a process may go on only while its former heartbeat is younger than 25 s, and takes one whose writing took longer than 4 s for
lost. So there is no moment in which it is passed over by senders and does not know: it has begun anew, with empty memory.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from app.cluster.mailbox import SILENT_SECONDS
from app.database.statements import text

HEARTBEAT_SECONDS = 10.0
# Of the former heartbeat, when the next one is written.
OLDEST_HEARTBEAT_SECONDS = 25
LONGEST_HEARTBEAT_SECONDS = 4.0
HORIZON_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Registration:
    """A row of `arkvory_instances`; transactions older than `horizon` may not have seen it when they posted."""

    id: int
    horizon: int


def register(
    connection: Connection, name: str, slot: int, kind: str, version: str, settings: Mapping[str, str] | None = None
) -> Registration:
    """`connection` is in AUTOCOMMIT: the row is committed before the horizon is drawn.

    A sender advances epochs before it posts, so it has a transaction id by then. One that posted without seeing the row had it before
    the row was committed, so it is below an id drawn after that. The id of the registration itself would not do: a transaction that
    began while the row was being written is younger, and may not have seen it. Nor would the end of a snapshot: it is the youngest
    that completed, not the youngest that runs.
    """
    instance_id = connection.execute(
        text(
            "insert into arkvory_instances (name, slot, kind, host, pid, version, settings) "
            "values (:name, :slot, :kind, :host, :pid, :version, cast(:settings as jsonb)) returning id"
        ),
        {
            "name": name, "slot": slot, "kind": kind, "host": socket.gethostname(), "pid": os.getpid(), "version": version,
            "settings": None if settings is None else json.dumps(dict(settings)),
        },
    ).scalar_one()
    horizon = connection.execute(text("select pg_current_xact_id()::text::bigint")).scalar_one()
    return Registration(int(instance_id), int(horizon))


def is_past(connection: Connection, horizon: int) -> bool:
    """M7: every transaction that may not have seen the registration has ended."""
    return bool(connection.execute(text("select pg_snapshot_xmin(pg_current_snapshot())::text::bigint > :h"), {"h": horizon}).scalar_one())


def heartbeat(connection: Connection, instance_id: int) -> bool:
    """False when this process lost its place: mail may have passed it over."""
    began = time.monotonic()
    found = connection.execute(
        text(
            "update arkvory_instances set heartbeat_at = clock_timestamp() where id = :id "
            "and heartbeat_at > clock_timestamp() - make_interval(secs => :oldest)"
        ),
        {"id": instance_id, "oldest": OLDEST_HEARTBEAT_SECONDS},
    ).rowcount
    return found == 1 and time.monotonic() - began < LONGEST_HEARTBEAT_SECONDS


def leave(connection: Connection, instance_id: int) -> None:
    """No mail any more, and none is left behind."""
    connection.execute(text("delete from arkvory_instances where id = :id"), {"id": instance_id})
    connection.execute(text("delete from arkvory_mail where instance_id = :id"), {"id": instance_id})


def delete_gone(connection: Connection) -> int:
    """Rows of processes that were not heard of for ten minutes: until then they are shown as offline."""
    statement = text("delete from arkvory_instances where heartbeat_at < clock_timestamp() - make_interval(secs => :gone)")
    return connection.execute(statement, {"gone": 20 * SILENT_SECONDS}).rowcount
