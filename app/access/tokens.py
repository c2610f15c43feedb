"""Personal tokens: stored hashed, shown once, never more than what made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.access.authority import Authority, has_full_scope
from app.access.decision import PERMISSIONS
from app.access.ending import Ending, end_with_repositories
from app.access.identity import Caller, Identities, Identity, new_token, token_digest
from app.access.visibility import KNOWN, subject
from app.cache.changes import Transaction, Transactions
from app.database.engines import Database
from app.database.locks import Step
from app.database.paging import Page, page
from app.database.statements import text
from app.errors import Forbidden, Invalid, NotFound

NAME_LENGTH = 200
MOST_DAYS = 3650
MOST_REPOSITORIES = 1000
# `Tokens.list` hides the type's own name.
Words = list[str]
# Of the tokens that end with one, so many are named.
MOST_NAMED = 100


@dataclass(frozen=True, slots=True)
class NewToken:
    """What is asked for; `repositories` are names, null for all that the owner has; `user` is the owner, null for the caller."""

    name: str
    permissions: Sequence[str]
    repositories: Sequence[str] | None = None
    expires_in_days: int | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret; `repositories` are names, those that were deleted since left out.

    `made_with`: the token that made it, with which it ends; null: a password did.
    """

    id: int
    name: str
    user: str
    permissions: Sequence[str]
    repositories: Sequence[str] | None
    created_at: datetime
    expires_at: datetime | None
    made_with: int | None


class Tokens:
    """Everyone's own; administrators see and revoke others' too."""

    def __init__(self, database: Database, transactions: Transactions, identities: Identities) -> None:
        self._database = database
        self._transactions = transactions
        self._authority = Authority(identities)

    def create(self, caller: Caller, wanted: NewToken) -> tuple[Token, str]:
        """The token and its secret, which nobody can see again. Raises Invalid, Forbidden or Unauthenticated."""
        _check(wanted)
        with self._transactions.begin() as transaction:
            connection = transaction.connection
            identity = self._maker(connection, caller, wanted.user)
            # Under the lock of the owner's row no revocation can come between the look at the maker and the new row.
            owner = _lock_owner(transaction, wanted.user or identity.name)
            identity = self._maker(connection, caller, wanted.user)
            repositories = None if wanted.repositories is None else _ids(connection, identity, wanted.repositories)
            check_within(identity, wanted.permissions, repositories)
            secret = new_token()
            made = _insert(connection, owner, identity, wanted, repositories, secret)
            return _token(connection, made), secret

    def list(self, caller: Caller, limit: int, after: int = 0, user: str | None = None) -> Page[Token]:
        """By id: one's own, or with `user` someone else's (administrators). Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            identity = self._authority.signed_in(connection, caller)
            user_id = identity.user_id
            if user is None and user_id <= 0:
                raise Invalid("a token belongs to a user: say whose (`user`; on the command line --user NAME)", field="user")
            if user is not None and user != identity.name:
                self._authority.administrator(connection, caller)
                user_id = _user_id(connection, user)
            rows = connection.execute(
                text(f"{_TOKENS} where t.user_id = :user and t.id > :after order by t.id limit :limit"),
                {"user": user_id, "after": after, "limit": limit + 1},
            ).all()
        return page(rows, limit, lambda row: Token(*row), lambda row: [row.id])

    def show(self, caller: Caller, token_id: int) -> Token:
        """Raises NotFound, also for a token that is not the caller's, or Unauthenticated."""
        with self._database.consistent() as connection:
            self._reachable(connection, caller, token_id)
            return _token(connection, token_id)

    def revoke(self, caller: Caller, token_id: int) -> Sequence[str]:
        """It, and those made with it, are worth nothing from the next request on. What ended with it, in words.

        Deploy tokens too: of them the authorization epochs of their repositories tell. Raises NotFound, Forbidden or Unauthenticated.
        """
        ended: Words = []
        end_with_repositories(self._transactions, lambda transaction: self._revocation(transaction, caller, token_id, ended))
        return ended

    def _revocation(self, transaction: Transaction, caller: Caller, token_id: int, ended: Words) -> Ending:
        owner = self._reachable(transaction.connection, caller, token_id, revoking=True)

        def end(_: object) -> None:
            ended[:] = _made_with(transaction.connection, token_id)
            _delete(transaction, token_id)

        return Ending(_DEPLOYED_WITH, {"id": token_id}, lock=lambda: transaction.advance_users([owner]), end=end)

    def _maker(self, connection: Connection, caller: Caller, owner: str | None) -> Identity:
        """Others' tokens are made by administrators, and not with a token: what a token makes must end with it."""
        identity = self._authority.signed_in(connection, caller)
        if owner is not None and owner != identity.name:
            self._authority.administrator(connection, caller)
            if identity.token is not None:
                raise Forbidden("a token for another user is made with a password, not with a token")
        elif identity.user_id <= 0:
            raise Invalid("tokens belong to users: say whose (`user`; on the command line --user NAME)", field="user")
        return identity

    def _reachable(self, connection: Connection, caller: Caller, token_id: int, *, revoking: bool = False) -> int:
        """The owner's id. Others' tokens do not exist, except for administrators.

        A narrow token revokes itself, what it made, and its owner's tokens that can do no more than it.
        """
        identity = self._authority.signed_in(connection, caller)
        query = text("select user_id, parent_id, permissions, repositories from arkvory_tokens where id = :id")
        row = connection.execute(query, {"id": token_id}).first()
        if row is None or not (row.user_id == identity.user_id or (identity.administrator and has_full_scope(identity))):
            raise NotFound(f"there is no token {token_id}")
        own = identity.token is not None and identity.token.id in {token_id, row.parent_id}
        if revoking and not own and not (row.user_id == identity.user_id and _covers(identity, row.permissions, row.repositories)):
            self._authority.unlimited(identity)
        return int(row.user_id)


def _check(wanted: NewToken) -> None:
    if not 1 <= len(wanted.name.strip()) <= NAME_LENGTH:
        raise Invalid(f"a token's name has 1 to {NAME_LENGTH} characters", field="name")
    if not wanted.permissions or set(wanted.permissions) - set(PERMISSIONS):
        raise Invalid(f"permissions are some of {', '.join(PERMISSIONS)}", field="permissions")
    if wanted.repositories is not None and not 1 <= len(wanted.repositories) <= MOST_REPOSITORIES:
        raise Invalid(f"name 1 to {MOST_REPOSITORIES} repositories, or null for all", field="repositories")
    if wanted.expires_in_days is not None and not 1 <= wanted.expires_in_days <= MOST_DAYS:
        raise Invalid(f"a token lasts 1 to {MOST_DAYS} days, or null: until it is revoked", field="expires_in_days")


def check_within(identity: Identity, permissions: Sequence[str], repositories: Sequence[int] | None) -> None:
    """Raises Forbidden when the new token could do more, or elsewhere, than the one that makes it; it also ends no later."""
    maker = identity.token
    if maker is None:
        return
    if set(permissions) - maker.permissions:
        raise Forbidden(f"this token allows {', '.join(sorted(maker.permissions))} only, so one made with it cannot allow more")
    if maker.repositories is not None and (repositories is None or set(repositories) - maker.repositories):
        raise Forbidden("this token is for certain repositories only; name some of these for one made with it")


def _covers(identity: Identity, permissions: Sequence[str], repositories: Sequence[int] | None) -> bool:
    try:
        check_within(identity, permissions, repositories)
    except Forbidden:
        return False
    return True


def _lock_owner(transaction: Transaction, name: str) -> int:
    transaction.order.reach(Step.PEOPLE)
    query = text("select id from arkvory_users where name = :name for no key update")
    found = transaction.connection.execute(query, {"name": name}).scalar()
    if found is None:
        raise Invalid(f"there is no user {name!r}", field="user")
    return int(found)


def _ids(connection: Connection, identity: Identity, names: Sequence[str]) -> Sequence[int]:
    """Of repositories that the owner may know of; what they may do there is decided at each use of the token."""
    rows = connection.execute(
        text(
            "select r.name, r.id from arkvory_repositories r where r.tenant = 'default' and r.deleted_at is null "
            f"and r.name = any(:names) and {KNOWN}"
        ),
        {"names": list(names), **subject(identity)},
    )
    found = {row.name: row.id for row in rows}
    missing = sorted(set(names) - set(found))
    if missing:
        raise Invalid(f"there is no repository {missing[0]!r}, or you may not know of it", field="repositories")
    return sorted(found.values())


def _insert(connection: Connection, owner: int, maker: Identity, wanted: NewToken, repositories: Sequence[int] | None, secret: str) -> int:
    statement = text(
        "insert into arkvory_tokens (user_id, parent_id, name, digest, permissions, repositories, expires_at) "
        "values (:user, :parent, :name, :digest, cast(:permissions as text[]), cast(:repositories as bigint[]), "
        "least(now() + make_interval(days => cast(:days as integer)), (select p.expires_at from arkvory_tokens p where p.id = :parent))) "
        "returning id"
    )
    values = {
        "user": owner,
        "parent": maker.token.id if maker.token else None,
        "name": wanted.name,
        "digest": token_digest(secret),
        "permissions": [each for each in PERMISSIONS if each in wanted.permissions],
        "repositories": None if repositories is None else list(repositories),
        "days": wanted.expires_in_days,
    }
    return int(connection.execute(statement, values).scalar_one())


def _delete(transaction: Transaction, token_id: int) -> None:
    gone = transaction.connection.execute(text("delete from arkvory_tokens where id = :id"), {"id": token_id})
    if not gone.rowcount:
        raise NotFound(f"there is no token {token_id}")


def _made_with(connection: Connection, token_id: int) -> list[str]:
    """What ends with it, in words; of many the first."""
    rows = connection.execute(text(_ENDS_WITH), {"id": token_id, "most": MOST_NAMED + 1}).all()
    words = [
        f"token {row.id} ({row.name}) was made with it, and has ended too"
        if row.repository is None
        else f"deploy token {row.id} ({row.name}) of repository {row.repository} was made with it, and has ended too"
        for row in rows[:MOST_NAMED]
    ]
    return words + ["and more that were made with it"] * (len(rows) > MOST_NAMED)


def _user_id(connection: Connection, name: str) -> int:
    found = connection.execute(text("select id from arkvory_users where name = :name"), {"name": name}).scalar()
    if found is None:
        raise NotFound(f"there is no user {name!r}")
    return int(found)


_MADE = (
    "with recursive made as (select cast(:id as bigint) as id "
    "union all select t.id from arkvory_tokens t join made on t.parent_id = made.id) "
)
_DEPLOYED_WITH = f"{_MADE} select d.repository_id from arkvory_deploy_tokens d join made on made.id = d.parent_id"
_ENDS_WITH = (
    f"{_MADE} select t.id, t.name, null as repository from arkvory_tokens t join made on made.id = t.id where t.id <> :id "
    "union all select d.id, d.name, r.name from arkvory_deploy_tokens d join made on made.id = d.parent_id "
    "join arkvory_repositories r on r.id = d.repository_id and r.deleted_at is null order by 3 nulls first, 1 limit :most"
)
_TOKENS = (
    "select t.id, t.name, u.name as user_name, t.permissions, case when t.repositories is not null then "
    "array(select r.name from arkvory_repositories r where r.id = any(t.repositories) and r.deleted_at is null order by r.name) end, "
    "t.created_at, t.expires_at, t.parent_id from arkvory_tokens t join arkvory_users u on u.id = t.user_id"
)


def _token(connection: Connection, token_id: int) -> Token:
    row = connection.execute(text(f"{_TOKENS} where t.id = :id"), {"id": token_id}).first()
    if row is None:
        raise NotFound(f"there is no token {token_id}")
    return Token(*row)
