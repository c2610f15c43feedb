"""What the tables tell about a cluster, for people: who is there, what lies unread, what died, who runs which job.

Reads; the only thing that it changes is that dead letters go when somebody has looked at them. They are never applied again (M3).
Ages are by the database's clock, so that they mean the same whoever asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from app.cluster.mailbox import SILENT_SECONDS
from app.database.statements import text

LETTERS_SHOWN = 20
# The kind of those that run jobs.
WORKER = "worker"


@dataclass(frozen=True)
class Instance:
    """One process; `age` (since its start), `heartbeat_age` and `oldest_unread` are seconds, the latter null without unread mail.

    `replaced`: a younger one has its slot, so it is gone, whatever its last heartbeat says. `settings`: those that are to be the same in
    all processes, by variable; null: it did not tell.
    """

    id: int
    name: str
    slot: int
    kind: str
    host: str
    pid: int
    version: str
    started_at: datetime
    age: float
    heartbeat_at: datetime
    heartbeat_age: float
    online: bool
    replaced: bool
    unread: int
    oldest_unread: float | None
    settings: Mapping[str, str] | None

    @property
    def label(self) -> str:
        return f"{self.name}/{self.slot}"


@dataclass(frozen=True)
class DeadLetter:
    """A message that failed every time; `instance` is whose."""

    id: int
    instance: str
    sent_at: datetime
    died_at: datetime
    error: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class DeadLetters:
    """How many there are, and the latest of them."""

    count: int
    latest: tuple[DeadLetter, ...]


@dataclass(frozen=True)
class Lease:
    """A job of the whole cluster, or a place; `holder` is who runs it or ran it last, and once `until` is past it is not `held`."""

    name: str
    holder: str
    until: datetime
    held: bool


@dataclass(frozen=True)
class Unread:
    """Mail of processes that are gone; `oldest` in seconds."""

    count: int
    oldest: float | None


def instances(connection: Connection) -> list[Instance]:
    """All that have a row, also those that fell silent lately; by name and slot, the youngest last."""
    statement = text(
        "select i.id, i.name, i.slot, i.kind, i.host, i.pid, i.version, i.started_at, "
        "extract(epoch from clock_timestamp() - i.started_at)::float8, i.heartbeat_at, "
        "extract(epoch from clock_timestamp() - i.heartbeat_at)::float8, "
        "i.heartbeat_at > clock_timestamp() - make_interval(secs => :silent) and not r.replaced, r.replaced, "
        "coalesce(m.unread, 0), m.oldest, i.settings "
        "from arkvory_instances i cross join lateral (select exists (select 1 from arkvory_instances n where n.name = i.name "
        "and n.slot = i.slot and n.id > i.id) as replaced) r left join (select instance_id, count(*) as unread, "
        "extract(epoch from clock_timestamp() - min(sent_at))::float8 as oldest from arkvory_mail group by 1) m on m.instance_id = i.id "
        "order by i.name, i.slot, i.id"
    )
    return [Instance(*row) for row in connection.execute(statement, {"silent": SILENT_SECONDS})]


@dataclass(frozen=True)
class Census:
    """Processes that are online, by server; `runners` of them run jobs."""

    servers: Mapping[str, int]
    runners: int


def census(connection: Connection, apart_from: str | None = None) -> Census:
    """Of the cluster; web processes of the server of this name are not counted, since it is about to start its own."""
    online = [each for each in instances(connection) if each.online and (each.kind != "web" or each.name != apart_from)]
    return Census(Counter(each.name for each in online), sum(each.kind == WORKER for each in online))


def mail_of_nobody(connection: Connection) -> Unread:
    """Mail whose receiver has no row any more; the cleanup deletes it."""
    statement = text(
        "select count(*), extract(epoch from clock_timestamp() - min(m.sent_at))::float8 from arkvory_mail m "
        "where not exists (select 1 from arkvory_instances i where i.id = m.instance_id)"
    )
    return Unread(*connection.execute(statement).one())


def dead_letters(connection: Connection, most: int = LETTERS_SHOWN) -> DeadLetters:
    count = int(connection.execute(text("select count(*) from arkvory_dead_letters")).scalar_one())
    statement = text("select id, instance, sent_at, died_at, error, body from arkvory_dead_letters order by id desc limit :most")
    return DeadLetters(count, tuple(DeadLetter(*row) for row in connection.execute(statement, {"most": most})))


def delete_dead_letters(connection: Connection, up_to: int | None = None) -> int:
    """Those up to this id, so that none goes that nobody saw; all without one. How many went."""
    statement = text("delete from arkvory_dead_letters where cast(:up_to as bigint) is null or id <= :up_to")
    return connection.execute(statement, {"up_to": up_to}).rowcount


def leases(connection: Connection) -> list[Lease]:
    statement = text("select name, holder, until, until > clock_timestamp() from arkvory_leases order by name")
    return [Lease(row[0], _process_of(row[0], row[1]), *row[2:]) for row in connection.execute(statement)]


def _process_of(name: str, holder: str) -> str:
    """The process behind what `leases` and `upload.shared_places` write."""
    if name.startswith("place/"):
        return " ".join(holder.split(" ")[2:])
    return holder.rpartition(" ")[0] or holder


def last_master(connection: Connection) -> Mapping[str, float]:
    """For each name in use, how many seconds ago its present gunicorn master took it."""
    statement = text("select name, extract(epoch from clock_timestamp() - taken_at)::float8 from arkvory_instance_names")
    return {row[0]: row[1] for row in connection.execute(statement)}
