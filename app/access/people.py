"""Users and groups.

Order of the rows locked here, all at `PEOPLE`: groups, then users by id. A user or group that rules name is
deleted under the locks of the repositories whose rules go with it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from app.access.authority import Authority
from app.access.ending import Ending, end_with_repositories
from app.access.identity import Caller, Identities
from app.cache.changes import Transaction, Transactions
from app.database.engines import Database
from app.database.locks import Step
from app.database.paging import Page, page
from app.database.statements import text
from app.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")
PASSWORD_MOST_BYTES = 1024


@dataclass(frozen=True, slots=True)
class User:
    """An account; never its password. A `robot` signs in by tokens alone, which administrators make for it."""

    name: str
    administrator: bool
    robot: bool
    disabled: bool
    groups: Sequence[str]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Group:
    """A named set of users, for rules."""

    name: str
    members: Sequence[str]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class UserChange:
    """What to change of a user; null leaves it as it is."""

    disabled: bool | None = None
    password: str | None = None
    administrator: bool | None = None

    @property
    def weakens(self) -> bool:
        """Whether an administrator could be lost by it."""
        return bool(self.disabled) or self.administrator is False


def check_name(name: str, whose: str) -> str:
    """Raises Invalid for anything but `[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}`."""
    if not _NAME.fullmatch(name):
        raise Invalid(f"a {whose}'s name has 1 to 128 of A-Z a-z 0-9 . _ @ + - and begins with a letter or digit", field="name")
    return name


def check_password(password: str, least: int) -> str:
    """Raises Invalid for a password of fewer than `least` characters, a very long one or one with a NUL."""
    if len(password) < least:
        raise Invalid(f"a password has at least {least} characters here (ARKVORY_PASSWORD_LENGTH)", field="password")
    if len(password.encode("utf-8", "surrogatepass")) > PASSWORD_MOST_BYTES:
        raise Invalid(f"a password has at most {PASSWORD_MOST_BYTES} bytes", field="password")
    if "\x00" in password or not _is_utf8(password):
        raise Invalid("a password is text without a NUL", field="password")
    if password.startswith("arkv_"):
        raise Invalid("a password does not begin like a token (arkv_)", field="password")
    return password


def _is_utf8(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_new(name: str, password: str | None, least: int, *, administrator: bool, robot: bool) -> None:
    """Raises Invalid with the field. People have a password, robots have none and are no administrators."""
    check_name(name, "user")
    if robot:
        _check_robot(has_password=password is not None, administrator=administrator)
    elif password is None:
        raise Invalid("a user needs a password, unless it is a robot", field="password")
    else:
        check_password(password, least)


def _check_robot(*, has_password: bool, administrator: bool) -> None:
    if has_password:
        raise Invalid("a robot signs in by tokens alone; it has no password", field="password")
    if administrator:
        raise Invalid("a robot cannot be an administrator; give it rules", field="administrator")


class Users:
    """Accounts. Everyone may see their own and change its password; the rest is the administrators'."""

    def __init__(self, database: Database, transactions: Transactions, identities: Identities, password_length: int = 1) -> None:
        self._database = database
        self._transactions = transactions
        self._identities = identities
        self._password_length = password_length
        self._authority = Authority(identities)

    def create(self, caller: Caller, name: str, password: str | None, *, administrator: bool = False, robot: bool = False) -> User:
        """Raises Invalid, AlreadyExists, Forbidden or Unauthenticated."""
        check_new(name, password, self._password_length, administrator=administrator, robot=robot)
        with self._database.read() as connection:
            if self._authority.administrator(connection, caller).token is not None and administrator:
                raise _lasting()
        hashed = None if password is None else self._identities.passwords.hash(password)
        with self._transactions.begin() as transaction:
            self._authority.administrator(transaction.connection, caller)
            transaction.order.reach(Step.PEOPLE)
            made = transaction.connection.execute(
                text(
                    "insert into arkvory_users (name, password_hash, administrator, robot) values (:name, :hash, :administrator, :robot) "
                    "on conflict (name) do nothing returning id"
                ),
                {"name": name, "hash": hashed, "administrator": administrator, "robot": robot},
            ).first()
            if made is None:
                raise AlreadyExists(f"there is a user {name!r} already")
            return _user(transaction.connection, name)

    def show(self, caller: Caller, name: str) -> User:
        """Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            if self._authority.signed_in(connection, caller).name != name:
                self._authority.administrator(connection, caller)
            return _user(connection, name)

    def list(self, caller: Caller, limit: int, after: str = "") -> Page[User]:
        """By name. Raises Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            self._authority.administrator(connection, caller)
            rows = connection.execute(
                text(f"{_USERS} where u.name > :after order by u.name limit :limit"), {"after": after, "limit": limit + 1}
            ).all()
        return page(rows, limit, lambda row: User(*row), lambda row: [row.name])

    def update(self, caller: Caller, name: str, change: UserChange) -> User:
        """Binds on the user's next request. Raises Conflict rather than lose the last administrator that can sign in."""
        if change.password is not None:
            check_password(change.password, self._password_length)
        with self._database.read() as connection:
            self._check_may_change(connection, caller, name, change)
        hashed = None if change.password is None else self._identities.passwords.hash(change.password)
        with self._transactions.begin() as transaction:
            connection = transaction.connection
            self._check_may_change(connection, caller, name, change)
            before = _lock_user(transaction, name, keeps_administrator=not change.weakens)
            if before.robot:
                _check_robot(has_password=change.password is not None, administrator=bool(change.administrator))
            after = (_either(change.administrator, before.administrator), _either(change.disabled, before.disabled), hashed)
            if after != (before.administrator, before.disabled, None):
                transaction.advance_users([before.id])
                connection.execute(
                    text(
                        "update arkvory_users set administrator = :administrator, disabled = :disabled, "
                        "password_hash = coalesce(:hash, password_hash) where id = :id"
                    ),
                    {"administrator": after[0], "disabled": after[1], "hash": hashed, "id": before.id},
                )
            shown = _user(connection, name)
        if transaction.changed_nothing:
            self._transactions.catch_up()
        return shown

    def delete(self, caller: Caller, name: str) -> None:
        """Their tokens, memberships and rules go with them; what they created stays."""
        end_with_repositories(self._transactions, lambda transaction: self._delete(transaction, caller, name))

    def _delete(self, transaction: Transaction, caller: Caller, name: str) -> Ending:
        self._authority.administrator(transaction.connection, caller)
        return Ending(
            "select a.repository_id from arkvory_access_rules a join arkvory_users u on u.id = a.user_id where u.name = :name "
            "union select d.repository_id from arkvory_deploy_tokens d join arkvory_tokens t on t.id = d.parent_id "
            "join arkvory_users u on u.id = t.user_id where u.name = :name",
            {"name": name},
            lock=lambda: _lock_user(transaction, name, keeps_administrator=False),
            end=lambda row: _delete_user(transaction, row.id),
        )

    def _check_may_change(self, connection: Connection, caller: Caller, name: str, change: UserChange) -> None:
        identity = self._authority.signed_in(connection, caller)
        if identity.administrator:
            self._authority.unlimited(identity)
            if identity.token is not None and (change.administrator or change.password is not None):
                raise _lasting()
        elif identity.name != name or change.disabled is not None or change.administrator is not None:
            raise Forbidden(f"{identity.name!r} is not an administrator")
        elif identity.token is not None:
            # Otherwise a token could make itself as much as its owner, and outlive its own end.
            raise Forbidden("a password is changed with the former password, not with a token")


def _lasting() -> Forbidden:
    return Forbidden("what outlives a token is not given with one: log in with the password to make administrators or set passwords")


class Groups:
    """Groups of users; the administrators'."""

    def __init__(self, database: Database, transactions: Transactions, identities: Identities) -> None:
        self._database = database
        self._transactions = transactions
        self._authority = Authority(identities)

    def create(self, caller: Caller, name: str) -> Group:
        """Raises Invalid, AlreadyExists, Forbidden or Unauthenticated."""
        check_name(name, "group")
        with self._transactions.begin() as transaction:
            self._authority.administrator(transaction.connection, caller)
            transaction.order.reach(Step.PEOPLE)
            made = transaction.connection.execute(
                text("insert into arkvory_groups (name) values (:name) on conflict (name) do nothing returning id"), {"name": name}
            ).first()
            if made is None:
                raise AlreadyExists(f"there is a group {name!r} already")
            return _group(transaction.connection, name)

    def show(self, caller: Caller, name: str) -> Group:
        """Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            self._authority.administrator(connection, caller)
            return _group(connection, name)

    def list(self, caller: Caller, limit: int, after: str = "") -> Page[Group]:
        """By name. Raises Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            self._authority.administrator(connection, caller)
            rows = connection.execute(
                text(f"{_GROUPS} where g.name > :after order by g.name limit :limit"), {"after": after, "limit": limit + 1}
            ).all()
        return page(rows, limit, lambda row: Group(*row), lambda row: [row.name])

    def add_member(self, caller: Caller, group: str, user: str) -> None:
        """Twice is as good as once. Binds on the user's next request."""
        with self._membership(caller, group, user) as (transaction, ids):
            transaction.connection.execute(
                text("insert into arkvory_group_members (group_id, user_id) values (:group, :user) on conflict do nothing"), ids
            )

    def remove_member(self, caller: Caller, group: str, user: str) -> None:
        """Twice is as good as once. Binds on the user's next request."""
        with self._membership(caller, group, user) as (transaction, ids):
            transaction.connection.execute(text("delete from arkvory_group_members where group_id = :group and user_id = :user"), ids)

    @contextlib.contextmanager
    def _membership(self, caller: Caller, group: str, user: str) -> Iterator[tuple[Transaction, dict[str, int]]]:
        with self._transactions.begin() as transaction:
            self._authority.administrator(transaction.connection, caller)
            group_id = _lock_group(transaction, group, "key share").id
            user_id = _lock_user(transaction, user).id
            transaction.advance_users([user_id])
            yield transaction, {"group": group_id, "user": user_id}

    def delete(self, caller: Caller, name: str) -> None:
        """Rules that name the group go with it."""
        end_with_repositories(self._transactions, lambda transaction: self._delete(transaction, caller, name))

    def _delete(self, transaction: Transaction, caller: Caller, name: str) -> Ending:
        self._authority.administrator(transaction.connection, caller)
        return Ending(
            "select a.repository_id from arkvory_access_rules a join arkvory_groups g on g.id = a.group_id where g.name = :name",
            {"name": name},
            lock=lambda: _lock_group(transaction, name, "update"),
            end=lambda row: _delete_group(transaction, row.id),
        )


# Deleting whom rules name


def _delete_user(transaction: Transaction, user_id: int) -> None:
    transaction.advance_users([user_id])
    transaction.connection.execute(text("delete from arkvory_users where id = :id"), {"id": user_id})


def _delete_group(transaction: Transaction, group_id: int) -> None:
    members = transaction.connection.execute(
        text("select user_id from arkvory_group_members where group_id = :id"), {"id": group_id}
    ).scalars()
    transaction.advance_users(list(members))
    transaction.connection.execute(text("delete from arkvory_groups where id = :id"), {"id": group_id})


# Rows


def _lock_user(transaction: Transaction, name: str, *, keeps_administrator: bool = True) -> Row[Any]:
    """Lock a user's row. When an administrator may be lost by what follows, the rows of all that can sign in are locked too.

    All in one statement, by id: of two that would each leave the other as the last one, the second sees what the first did.
    """
    transaction.order.reach(Step.PEOPLE)
    others = "" if keeps_administrator else "or (administrator and not disabled)"
    rows = transaction.connection.execute(
        text(f"select id, name, administrator, disabled, robot from arkvory_users where name = :name {others} order by id for update"),
        {"name": name},
    ).all()
    user = next((row for row in rows if row.name == name), None)
    if user is None:
        raise NotFound(f"there is no user {name!r}")
    if not keeps_administrator and user.administrator and not user.disabled and len(rows) == 1:
        raise Conflict(f"{name!r} is the last administrator who can sign in; make another one first")
    return user


def _lock_group(transaction: Transaction, name: str, strength: str) -> Row[Any]:
    transaction.order.reach(Step.PEOPLE)
    row = transaction.connection.execute(text(f"select id from arkvory_groups where name = :name for {strength}"), {"name": name}).first()
    if row is None:
        raise NotFound(f"there is no group {name!r}")
    return row


_USERS = (
    "select u.name, u.administrator, u.robot, u.disabled, array(select g.name from arkvory_group_members m join arkvory_groups g "
    "on g.id = m.group_id where m.user_id = u.id order by g.name) as groups, u.created_at from arkvory_users u"
)
_GROUPS = (
    "select g.name, array(select u.name from arkvory_group_members m join arkvory_users u on u.id = m.user_id "
    "where m.group_id = g.id order by u.name) as members, g.created_at from arkvory_groups g"
)


def _user(connection: Connection, name: str) -> User:
    row = connection.execute(text(f"{_USERS} where u.name = :name"), {"name": name}).first()
    if row is None:
        raise NotFound(f"there is no user {name!r}")
    return User(*row)


def _group(connection: Connection, name: str) -> Group:
    row = connection.execute(text(f"{_GROUPS} where g.name = :name"), {"name": name}).first()
    if row is None:
        raise NotFound(f"there is no group {name!r}")
    return Group(*row)


def _either(changed: bool | None, before: bool) -> bool:
    return before if changed is None else changed
