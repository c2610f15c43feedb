"""Mail between processes (DESIGN 4, M1 to M3): a row for each message and receiver, written in the transaction of the change.

    post          in the sender's transaction: one row for every other process whose heartbeat is young
    take          what lies in the mailbox of this process, whatever its numbers: lower ones may commit later
    acknowledge   done: the rows go
    reject        it failed: tried again shortly, a few times, then it is a dead letter

What a message says is the cache's business (`cache/messages.py`); here it is a body of JSON. A process that dies between doing
what a message says and its acknowledgement does it twice, or never reads it again: both are harmless.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from app.database.statements import text

# A process whose heartbeat is older gets no mail (M4).
SILENT_SECONDS = 30
TAKEN_AT_ONCE = 500
# Waits after the first, second... failure, in seconds; after the last one it is a dead letter.
RETRIES = (0.2, 0.5, 1.0)

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Letter:
    """A message in the mailbox; `age` is its seconds since it was sent, by the database's clock, when it was taken."""

    id: int
    body: Any
    attempts: int
    age: float


def post(connection: Connection, sender: int, bodies: Sequence[Body]) -> None:
    """To every process but `sender` (an instance's id), in the transaction of `connection`."""
    # The wall clock, since a transaction may be old: who was silent for 30 s by then has lost its place (membership.py).
    statement = text(
        "insert into arkvory_mail (instance_id, body) select i.id, b.body from arkvory_instances i "
        "cross join unnest(cast(:bodies as text[])::jsonb[]) as b(body) "
        "where i.id <> :sender and i.heartbeat_at > clock_timestamp() - make_interval(secs => :silent)"
    )
    connection.execute(
        statement, {"sender": sender, "bodies": [json.dumps(each) for each in bodies], "silent": SILENT_SECONDS}
    )


def take(connection: Connection, receiver: int) -> list[Letter]:
    """At most 500; fewer means that the mailbox was read to its end. They stay until they are acknowledged."""
    statement = text(
        "select id, body, attempts, extract(epoch from clock_timestamp() - sent_at)::float8 as age from arkvory_mail "
        "where instance_id = :receiver and (not_before is null or not_before <= clock_timestamp()) limit :most"
    )
    rows = connection.execute(statement, {"receiver": receiver, "most": TAKEN_AT_ONCE})
    return [Letter(*row) for row in rows]


def acknowledge(connection: Connection, letters: Sequence[Letter]) -> None:
    connection.execute(text("delete from arkvory_mail where id = any(:ids)"), {"ids": [each.id for each in letters]})


def reject(connection: Connection, letter: Letter, receiver: str, error: str) -> bool:
    """True when it was the last time: the message is a dead letter now, kept for inspection (M3)."""
    if letter.attempts < len(RETRIES):
        connection.execute(
            text(
                "update arkvory_mail set attempts = attempts + 1, "
                "not_before = clock_timestamp() + make_interval(secs => :wait) where id = :id"
            ),
            {"wait": RETRIES[letter.attempts], "id": letter.id},
        )
        return False
    died = connection.execute(
        text(
            "with dead as (delete from arkvory_mail where id = :id returning sent_at, body) "
            "insert into arkvory_dead_letters (instance, sent_at, error, body) select :receiver, sent_at, :error, body from dead"
        ),
        {"id": letter.id, "receiver": receiver, "error": error[:2000]},
    )
    # Two turns may have read it at once.
    return died.rowcount == 1


def delete_unread(connection: Connection, batch: int = 10_000) -> int:
    """Mail that nobody will read: of processes that left or lost their place. Returns how many rows went, at most `batch`."""
    statement = text(
        "delete from arkvory_mail where id in (select m.id from arkvory_mail m where not exists (select 1 from arkvory_instances i "
        "where i.id = m.instance_id and i.heartbeat_at > clock_timestamp() - make_interval(secs => :gone)) limit :batch)"
    )
    return connection.execute(statement, {"gone": 2 * SILENT_SECONDS, "batch": batch}).rowcount
