"""The probe (DESIGN 4, M5): the numbers of everything that this process has cached, compared with the database's.

Behind the mailbox: whatever message is lost, a process is not wrong for longer than from one probe to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from app.database.engines import all_rows
from app.database.statements import text
from app.database.turns import paced

Numbers = tuple[int, int, int, int]


@dataclass(frozen=True)
class Believed:
    """What this process believes of what it has cached: epochs by repository, revision by user, the installation's epoch."""

    repositories: Mapping[int, Numbers]
    users: Mapping[int, int]
    installation: int


@dataclass
class Differences:
    """Where the database has larger numbers; null: there is no such repository or user any more."""

    repositories: dict[int, Numbers | None] = field(default_factory=dict)
    users: dict[int, int | None] = field(default_factory=dict)
    installation: int | None = None


_QUERY = text(
    "select 'repository' as kind, v.id, r.metadata_epoch, r.authorization_epoch, r.content_epoch, r.members_epoch "
    "from unnest(cast(:ids as bigint[]), cast(:m as bigint[]), cast(:a as bigint[]), cast(:c as bigint[]), cast(:g as bigint[])) "
    "as v(id, m, a, c, g) left join arkvory_repositories r on r.id = v.id and r.deleted_at is null "
    "where r.id is null or r.metadata_epoch > v.m or r.authorization_epoch > v.a or r.content_epoch > v.c or r.members_epoch > v.g "
    "union all select 'user', v.id, u.revision, null, null, null "
    "from unnest(cast(:users as bigint[]), cast(:revisions as bigint[])) as v(id, revision) "
    "left join arkvory_users u on u.id = v.id where u.id is null or u.revision > v.revision "
    "union all select 'installation', 0, i.epoch, null, null, null from arkvory_installation i where i.epoch > :installation"
)


def compare(connection: Connection, believed: Believed) -> Differences:
    """One query, however much is cached; only what differs comes back. Others get their turns while it is put together."""
    epochs = believed.repositories.values()
    values = {
        "ids": _array(believed.repositories), **{column: _array(each[number] for each in epochs) for number, column in enumerate("macg")},
        "users": _array(believed.users), "revisions": _array(believed.users.values()), "installation": believed.installation,
    }  # fmt: skip
    found = Differences()
    for row in paced(all_rows(connection.execute(_QUERY, values))):
        kind, number, first, *others = tuple(row)
        if kind == "repository":
            found.repositories[number] = None if first is None else (first, *others)
        elif kind == "user":
            found.users[number] = first
        else:
            found.installation = first
    return found


def _array(numbers: Iterable[int]) -> str:
    """As PostgreSQL writes an array: the driver and its parser need a hundred times as long for a list of constants."""
    return f"{{{','.join(map(str, paced(numbers)))}}}"
