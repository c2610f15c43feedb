"""Deploy tokens: they belong to a repository and to no user; stored hashed, shown once. Making them needs `manage`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.access.decision import DELETE, READ, WRITE, Access
from app.access.identity import Caller, new_token, token_digest
from app.access.rules import managed
from app.access.tokens import MOST_DAYS, NAME_LENGTH, check_within
from app.cache.changes import Transaction, Transactions
from app.database.engines import Database
from app.database.locks import Step
from app.database.paging import Page, page
from app.database.statements import text
from app.errors import Forbidden, Invalid, NotFound

DEPLOY_PERMISSIONS = (READ, WRITE, DELETE)
MOST_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class NewDeployToken:
    """What is asked for; `path_prefix` null means the whole repository."""

    name: str
    permissions: Sequence[str]
    path_prefix: str | None = None
    expires_in_days: int | None = None


@dataclass(frozen=True, slots=True)
class DeployToken:
    """A deploy token without its secret; `created_by` is null when that user is gone, or never was one."""

    id: int
    name: str
    repository: str
    permissions: Sequence[str]
    path_prefix: str | None
    created_by: str | None
    created_at: datetime
    expires_at: datetime | None


class DeployTokens:
    """Each change advances the repository's authorization epoch: it binds on the next request."""

    def __init__(self, database: Database, transactions: Transactions, access: Access) -> None:
        self._database = database
        self._transactions = transactions
        self._access = access

    def create(self, caller: Caller, repository: str, wanted: NewDeployToken) -> tuple[DeployToken, str]:
        """The token and its secret, which nobody can see again. Made with a token, it can do no more than that one, and ends with it.

        Raises Invalid, NotFound, Forbidden or Unauthenticated.
        """
        _check(wanted)
        with self._database.read() as connection:
            found = managed(self._access, connection, caller, repository)
        with self._transactions.begin(found.id) as transaction:
            connection = transaction.connection
            managed(self._access, connection, caller, repository, found.id)
            if caller.identity is not None:
                check_within(caller.identity, wanted.permissions, [found.id])
            _check_room(connection, found.id)
            transaction.advance(found.id, "authorization")
            self._hold_maker(transaction, caller)
            secret = new_token()
            return _token(connection, found.id, _insert(transaction, found.id, caller, wanted, secret)), secret

    def _hold_maker(self, transaction: Transaction, caller: Caller) -> None:
        """Under the lock of its owner's row no revocation can come between the look at the token and what is made with it."""
        maker = caller.identity
        if maker is not None and maker.token is not None:
            transaction.order.reach(Step.PEOPLE)
            transaction.connection.execute(text("select 1 from arkvory_users where id = :id for no key update"), {"id": maker.user_id})
            self._access.identities.read_again(transaction.connection, maker)

    def list(self, caller: Caller, repository: str, limit: int, after: int = 0) -> Page[DeployToken]:
        """By id. Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            snapshot = managed(self._access, connection, caller, repository)
            rows = connection.execute(
                text(f"{_TOKENS} where d.repository_id = :repository and d.id > :after order by d.id limit :limit"),
                {"repository": snapshot.id, "after": after, "limit": limit + 1},
            ).all()
        return page(rows, limit, lambda row: DeployToken(*row), lambda row: [row.id])

    def show(self, caller: Caller, repository: str, token_id: int) -> DeployToken:
        """Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.consistent() as connection:
            return _token(connection, managed(self._access, connection, caller, repository).id, token_id)

    def own(self, caller: Caller) -> DeployToken:
        """The one that the caller presented. Raises Unauthenticated when it is not good any more."""
        with self._database.consistent() as connection:
            identity = None if caller.identity is None else self._access.identities.read_again(connection, caller.identity)
            if identity is None or identity.deploy is None:
                raise Forbidden("this is no deploy token")
            return _token(connection, identity.deploy.repository_id, identity.deploy.id)

    def revoke(self, caller: Caller, repository: str, token_id: int) -> None:
        """Worth nothing from the next request on. Raises NotFound, Forbidden or Unauthenticated."""
        with self._database.read() as connection:
            found = managed(self._access, connection, caller, repository)
        with self._transactions.begin(found.id) as transaction:
            managed(self._access, transaction.connection, caller, repository, found.id)
            transaction.advance(found.id, "authorization")
            gone = transaction.connection.execute(
                text("delete from arkvory_deploy_tokens where repository_id = :repository and id = :id"),
                {"repository": found.id, "id": token_id},
            )
            if not gone.rowcount:
                raise NotFound(f"repository {repository!r} has no deploy token {token_id}")


def _check(wanted: NewDeployToken) -> None:
    if not 1 <= len(wanted.name.strip()) <= NAME_LENGTH:
        raise Invalid(f"a token's name has 1 to {NAME_LENGTH} characters", field="name")
    if not wanted.permissions or set(wanted.permissions) - set(DEPLOY_PERMISSIONS):
        raise Invalid(f"a deploy token's permissions are some of {', '.join(DEPLOY_PERMISSIONS)}", field="permissions")
    if wanted.expires_in_days is not None and not 1 <= wanted.expires_in_days <= MOST_DAYS:
        raise Invalid(f"a token lasts 1 to {MOST_DAYS} days, or null: until it is revoked", field="expires_in_days")


def _check_room(connection: Connection, repository_id: int) -> None:
    query = text("select count(*) from arkvory_deploy_tokens where repository_id = :id")
    if connection.execute(query, {"id": repository_id}).scalar_one() >= MOST_TOKENS:
        raise Invalid(f"a repository has at most {MOST_TOKENS} deploy tokens", field="name")


def _insert(transaction: Transaction, repository_id: int, caller: Caller, wanted: NewDeployToken, secret: str) -> int:
    maker = caller.identity.token if caller.identity else None
    statement = text(
        "insert into arkvory_deploy_tokens (repository_id, parent_id, name, digest, permissions, path_prefix, created_by, expires_at) "
        "values (:repository, :maker, :name, :digest, cast(:permissions as text[]), :prefix, :by, "
        "least(now() + make_interval(days => cast(:days as integer)), (select p.expires_at from arkvory_tokens p where p.id = :maker))) "
        "returning id"
    )
    values = {
        "repository": repository_id,
        "name": wanted.name,
        "digest": token_digest(secret),
        "permissions": [each for each in DEPLOY_PERMISSIONS if each in wanted.permissions],
        "prefix": wanted.path_prefix or None,
        "by": caller.user_id if caller.user_id > 0 else None,
        "days": wanted.expires_in_days,
        "maker": maker.id if maker else None,
    }
    return int(transaction.connection.execute(statement, values).scalar_one())


_TOKENS = (
    "select d.id, d.name, r.name as repository, d.permissions, d.path_prefix, u.name as created_by, d.created_at, d.expires_at "
    "from arkvory_deploy_tokens d join arkvory_repositories r on r.id = d.repository_id left join arkvory_users u on u.id = d.created_by"
)


def _token(connection: Connection, repository_id: int, token_id: int) -> DeployToken:
    query = text(f"{_TOKENS} where d.repository_id = :repository and d.id = :id")
    row = connection.execute(query, {"repository": repository_id, "id": token_id}).first()
    if row is None:
        raise NotFound(f"there is no deploy token {token_id}")
    return DeployToken(*row)
