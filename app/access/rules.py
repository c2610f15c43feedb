"""Access rules of a repository: who may do what, and below which path. Changing them needs `manage`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.access.decision import MANAGE, PERMISSIONS, Access, find_repository
from app.access.identity import Caller
from app.cache.changes import Transaction, Transactions
from app.cache.snapshots import Snapshot
from app.database.engines import Database
from app.database.locks import Step
from app.database.paging import Page, page
from app.database.statements import text
from app.errors import Invalid, NotFound

EVERYONE = ("signed-in", "anonymous")
MOST_RULES = 1000


@dataclass(frozen=True, slots=True)
class NewRule:
    """`subject` is `user:NAME`, `group:NAME`, `signed-in` or `anonymous`; `path_prefix` null means the whole repository."""

    subject: str
    permissions: Sequence[str]
    path_prefix: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it is kept."""

    id: int
    subject: str
    permissions: Sequence[str]
    path_prefix: str | None
    created_at: datetime


class Rules:
    """Rules take effect on the next request: each change advances the repository's authorization epoch."""

    def __init__(self, database: Database, transactions: Transactions, access: Access) -> None:
        self._database = database
        self._transactions = transactions
        self._access = access

    def list(self, caller: Caller, repository: str, limit: int, after: int = 0) -> Page[Rule]:
        """By id. Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            snapshot = managed(self._access, connection, caller, repository)
            rows = connection.execute(
                text(f"{_RULES} where a.repository_id = :repository and a.id > :after order by a.id limit :limit"),
                {"repository": snapshot.id, "after": after, "limit": limit + 1},
            ).all()
        return page(rows, limit, lambda row: Rule(*row), lambda row: [row.id])

    def add(self, caller: Caller, repository: str, new: NewRule) -> Rule:
        """Raises Invalid, NotFound, Forbidden or Unauthenticated."""
        kind, name = _subject(new.subject)
        if not new.permissions or set(new.permissions) - set(PERMISSIONS):
            raise Invalid(f"permissions are some of {', '.join(PERMISSIONS)}", field="permissions")
        with self._database.read() as connection:
            found = managed(self._access, connection, caller, repository)
        with self._transactions.begin(found.id) as transaction:
            snapshot = managed(self._access, transaction.connection, caller, repository, found.id)
            _check_room(transaction.connection, snapshot.id)
            transaction.advance(snapshot.id, "authorization")
            return _insert(transaction, snapshot.id, kind, name, new)

    def delete(self, caller: Caller, repository: str, rule_id: int) -> None:
        """Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.read() as connection:
            found = managed(self._access, connection, caller, repository)
        with self._transactions.begin(found.id) as transaction:
            snapshot = managed(self._access, transaction.connection, caller, repository, found.id)
            transaction.advance(snapshot.id, "authorization")
            gone = transaction.connection.execute(
                text("delete from arkvory_access_rules where repository_id = :repository and id = :id"),
                {"repository": snapshot.id, "id": rule_id},
            )
            if not gone.rowcount:
                raise NotFound(f"repository {repository!r} has no rule {rule_id}")


def managed(access: Access, connection: Connection, caller: Caller, repository: str, same_as: int | None = None) -> Snapshot:
    """A repository that the caller manages as a whole; under its lock, `same_as` is the one that was locked (C10).

    Raises NotFound, Forbidden or Unauthenticated.
    """
    snapshot = find_repository(connection, caller, repository)
    access.require_whole(connection, caller, snapshot, MANAGE)
    if same_as is not None and snapshot.id != same_as:
        raise NotFound(f"repository {repository!r} was deleted meanwhile")
    return snapshot


def _subject(subject: str) -> tuple[str, str]:
    """The kind and the name, which is empty for `signed-in` and `anonymous`. Raises Invalid."""
    kind, colon, name = subject.partition(":")
    if (subject in EVERYONE) or (colon and name and kind in {"user", "group"}):
        return kind, name
    raise Invalid("a subject is user:NAME, group:NAME, signed-in or anonymous", field="subject")


def _check_room(connection: Connection, repository_id: int) -> None:
    count = connection.execute(
        text("select count(*) from arkvory_access_rules where repository_id = :id"), {"id": repository_id}
    ).scalar_one()
    if count >= MOST_RULES:
        raise Invalid(f"a repository has at most {MOST_RULES} rules; use groups", field="subject")


def _insert(transaction: Transaction, repository_id: int, kind: str, name: str, new: NewRule) -> Rule:
    named = {kind: lock_named(transaction, kind, name)} if name else {}
    made = transaction.connection.execute(
        text(
            "insert into arkvory_access_rules (repository_id, subject, user_id, group_id, permissions, path_prefix) "
            "values (:repository, :subject, :user, :group, cast(:permissions as text[]), :prefix) returning id"
        ),
        {
            "repository": repository_id,
            "subject": kind,
            "user": named.get("user"),
            "group": named.get("group"),
            "permissions": [each for each in PERMISSIONS if each in new.permissions],
            "prefix": new.path_prefix or None,
        },
    ).scalar_one()
    return Rule(*transaction.connection.execute(text(f"{_RULES} where a.id = :id"), {"id": made}).one())


def lock_named(transaction: Transaction, kind: str, name: str) -> int:
    """The id; the row cannot go before this transaction ends, so whoever deletes it sees the rule."""
    transaction.order.reach(Step.PEOPLE)
    found = transaction.connection.execute(
        text(f"select id from arkvory_{kind}s where name = :name for key share"), {"name": name}
    ).scalar()
    if found is None:
        raise Invalid(f"there is no {kind} {name!r}", field="subject")
    return int(found)


_RULES = (
    "select a.id, case a.subject when 'user' then 'user:' || u.name when 'group' then 'group:' || g.name else a.subject end as subject, "
    "a.permissions, a.path_prefix, a.created_at from arkvory_access_rules a "
    "left join arkvory_users u on u.id = a.user_id left join arkvory_groups g on g.id = a.group_id"
)
