"""Roles: named sets of rules for repositories, held by users and groups. The administrators'.

`arkvory_rules` is the view of all rules that speak of somebody, those of roles among them; whoever decides reads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from app.access.authority import Authority
from app.access.decision import PERMISSIONS
from app.access.identity import Caller, Identities
from app.access.people import check_name
from app.access.rules import MOST_RULES, lock_named
from app.cache.changes import Transaction, Transactions
from app.database.engines import Database
from app.database.paging import Page, page
from app.database.statements import text
from app.errors import AlreadyExists, Invalid, NotFound


@dataclass(frozen=True, slots=True)
class NewRoleRule:
    """`repository` null means every one, `path_prefix` null all that is in it."""

    permissions: Sequence[str]
    repository: str | None = None
    path_prefix: str | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """`rules` as documents with `id`, `repository`, `permissions` and `path_prefix`; `holders` as `user:NAME` or `group:NAME`."""

    name: str
    rules: Sequence[dict[str, Any]]
    holders: Sequence[str]
    created_at: datetime


class Roles:
    """Each change advances the installation's epoch: it binds on the next request of every holder."""

    def __init__(self, database: Database, transactions: Transactions, identities: Identities) -> None:
        self._database = database
        self._transactions = transactions
        self._authority = Authority(identities)

    def create(self, caller: Caller, name: str) -> Role:
        """Raises Invalid, AlreadyExists, Forbidden or Unauthenticated."""
        check_name(name, "role")
        with self._transactions.begin() as transaction:
            self._authority.administrator(transaction.connection, caller)
            insert = text("insert into arkvory_roles (name) values (:name) on conflict (name) do nothing returning id")
            if transaction.connection.execute(insert, {"name": name}).first() is None:
                raise AlreadyExists(f"there is a role {name!r} already")
            return _role(transaction.connection, name)

    def show(self, caller: Caller, name: str) -> Role:
        """Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            self._authority.administrator(connection, caller)
            return _role(connection, name)

    def list(self, caller: Caller, limit: int, after: str = "") -> Page[Role]:
        """By name. Raises Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            self._authority.administrator(connection, caller)
            rows = connection.execute(
                text(f"{_ROLES} where o.name > :after order by o.name limit :limit"), {"after": after, "limit": limit + 1}
            ).all()
        return page(rows, limit, _shown, lambda row: [row.name])

    def delete(self, caller: Caller, name: str) -> None:
        """Nobody holds it any more, and nothing that it gave."""
        with self._changing(caller, name) as (transaction, role_id):
            transaction.connection.execute(text("delete from arkvory_roles where id = :id"), {"id": role_id})

    def add_rule(self, caller: Caller, name: str, new: NewRoleRule) -> Role:
        """The role with it. Raises Invalid, NotFound, Forbidden or Unauthenticated."""
        if not new.permissions or set(new.permissions) - set(PERMISSIONS):
            raise Invalid(f"permissions are some of {', '.join(PERMISSIONS)}", field="permissions")
        with self._changing(caller, name) as (transaction, role_id):
            connection = transaction.connection
            count = connection.execute(text("select count(*) from arkvory_role_rules where role_id = :id"), {"id": role_id}).scalar_one()
            if count >= MOST_RULES:
                raise Invalid(f"a role has at most {MOST_RULES} rules", field="permissions")
            connection.execute(_INSERT_RULE, {
                "role": role_id,
                "repository": None if new.repository is None else _repository_id(connection, new.repository),
                "permissions": [each for each in PERMISSIONS if each in new.permissions],
                "prefix": new.path_prefix or None,
            })  # fmt: skip
            return _role(connection, name)

    def remove_rule(self, caller: Caller, name: str, rule_id: int) -> None:
        """Raises NotFound, Forbidden or Unauthenticated."""
        with self._changing(caller, name) as (transaction, role_id):
            gone = transaction.connection.execute(
                text("delete from arkvory_role_rules where role_id = :role and id = :id"), {"role": role_id, "id": rule_id}
            )
            if not gone.rowcount:
                raise NotFound(f"role {name!r} has no rule {rule_id}")

    def assign(self, caller: Caller, name: str, subject: str) -> None:
        """To `user:NAME` or `group:NAME`; twice is as good as once."""
        with self._changing(caller, name, subject) as (transaction, role_id):
            transaction.connection.execute(
                text(
                    "insert into arkvory_role_holders (role_id, user_id, group_id) values (:role, "
                    "(select id from arkvory_users where 'user:' || name = :subject), "
                    "(select id from arkvory_groups where 'group:' || name = :subject)) on conflict do nothing"
                ),
                {"role": role_id, "subject": subject},
            )

    def unassign(self, caller: Caller, name: str, subject: str) -> None:
        """Twice is as good as once."""
        with self._changing(caller, name, subject) as (transaction, role_id):
            transaction.connection.execute(
                text(
                    "delete from arkvory_role_holders where role_id = :role and (user_id = (select id from arkvory_users where "
                    "'user:' || name = :subject) or group_id = (select id from arkvory_groups where 'group:' || name = :subject))"
                ),
                {"role": role_id, "subject": subject},
            )

    @contextlib.contextmanager
    def _changing(self, caller: Caller, name: str, subject: str | None = None) -> Iterator[tuple[Transaction, int]]:
        """The role's id; the installation's row is locked, so changes of roles take turns."""
        with self._transactions.begin() as transaction:
            self._authority.administrator(transaction.connection, caller)
            if subject is not None:
                lock_named(transaction, *_holder(subject))
            transaction.advance_installation()
            query = text("select id from arkvory_roles where name = :name")
            role_id = transaction.connection.execute(query, {"name": name}).scalar()
            if role_id is None:
                raise NotFound(f"there is no role {name!r}")
            yield transaction, int(role_id)


def _holder(subject: str) -> tuple[str, str]:
    kind, _, name = subject.partition(":")
    if kind not in {"user", "group"} or not name:
        raise Invalid("a role is held by user:NAME or group:NAME", field="subject")
    return kind, name


def _repository_id(connection: Connection, name: str) -> int:
    query = text("select id from arkvory_repositories where tenant = 'default' and name = :name and deleted_at is null")
    found = connection.execute(query, {"name": name}).scalar()
    if found is None:
        raise Invalid(f"there is no repository {name!r}", field="repository")
    return int(found)


_INSERT_RULE = text(
    "insert into arkvory_role_rules (role_id, repository_id, permissions, path_prefix) "
    "values (:role, :repository, cast(:permissions as text[]), :prefix)"
)
_ROLES = (
    "select o.name, coalesce((select jsonb_agg(jsonb_build_object('id', e.id, 'repository', r.name, 'permissions', e.permissions, "
    "'path_prefix', e.path_prefix) order by e.id) from arkvory_role_rules e left join arkvory_repositories r on r.id = e.repository_id "
    "where e.role_id = o.id and r.deleted_at is null), '[]') as rules, "
    "array(select coalesce('user:' || u.name, 'group:' || g.name) as holder from arkvory_role_holders h "
    "left join arkvory_users u on u.id = h.user_id left join arkvory_groups g on g.id = h.group_id where h.role_id = o.id "
    "order by holder) as holders, o.created_at from arkvory_roles o"
)


def _role(connection: Connection, name: str) -> Role:
    row = connection.execute(text(f"{_ROLES} where o.name = :name"), {"name": name}).first()
    if row is None:
        raise NotFound(f"there is no role {name!r}")
    return _shown(row)


def _shown(row: Row[Any]) -> Role:
    return Role(row.name, row.rules, row.holders, row.created_at)
