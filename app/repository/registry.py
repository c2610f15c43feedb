"""The repositories themselves: create, show, list, update, delete. What is in them is `listing.py`'s."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import IntegrityError

from app.access.authority import Authority
from app.access.decision import MANAGE, Access, find_repository
from app.access.identity import Caller
from app.access.visibility import KNOWN, subject
from app.cache.changes import Transaction, Transactions
from app.cache.snapshots import Snapshot, unknown_repository
from app.cache.view import Epochs
from app.database.engines import Database
from app.database.locks import Step
from app.database.paging import Page, page
from app.errors import AlreadyExists, Invalid, NotFound
from app.repository.formats import FORMATS, VERSION_POLICIES, WRITE_POLICIES
from app.repository.names import check_repository_name
from app.repository.writable import require_writable
from config import Settings

KINDS = ("hosted", "proxy", "group")
STATUSES = ("online", "offline", "maintenance")
MOST_QUOTA = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NewRepository:
    """What to create; `quota_bytes` null means none, 0 that nothing fits."""

    name: str
    format: str
    kind: str = "hosted"
    public: bool = False
    status: str = "online"
    quota_bytes: int | None = None
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RepositoryChange:
    """What to change; absent keys stay as they are. `settings` are merged in, null removes one."""

    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        assert set(self.values) <= {"name", "status", "public", "quota_bytes", "settings"}


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository as it is shown; `address` is the path that clients are pointed at."""

    name: str
    format: str
    kind: str
    status: str
    public: bool
    quota_bytes: int | None
    settings: Mapping[str, Any]
    creator: str | None
    created_at: datetime
    updated_at: datetime
    epochs: Epochs

    @property
    def address(self) -> str:
        return FORMATS[self.format].address(self.name)


class Registry:
    """Every change is decided and made from the database, under the repository's lock (C10)."""

    def __init__(self, settings: Settings, database: Database, transactions: Transactions, access: Access) -> None:
        self._settings = settings
        self._database = database
        self._transactions = transactions
        self._access = access
        self._authority = Authority(access.identities)

    def create(self, caller: Caller, new: NewRepository) -> Repository:
        """Raises Invalid with the field, AlreadyExists, Forbidden or Unauthenticated."""
        _check(new)
        with self._transactions.begin() as transaction:
            connection = transaction.connection
            creator_id = self._creator(connection, caller)
            transaction.order.reach(Step.REPOSITORY_ROW)
            values = asdict(new) | {"settings": json.dumps(dict(new.settings or {})), "creator": creator_id}
            made = connection.execute(_INSERT, values).scalar()
            if made is None:
                raise AlreadyExists(f"there is a repository {new.name!r} already")
            transaction.take_name(made)
            return _read(connection, new.name)

    def show(self, caller: Caller, name: str) -> Repository:
        """For everyone who may do anything in it. Raises NotFound or Unauthenticated."""
        with self._database.consistent() as connection:
            self._access.require_known(connection, caller, find_repository(connection, caller, name))
            return _read(connection, name)

    def list(self, caller: Caller, limit: int, after: str = "", format: str | None = None) -> Page[Repository]:
        """By name, those that `show` would show. Raises Unauthenticated for a credential that is not good any more."""
        with self._database.consistent() as connection:
            self._access.admit(connection, caller)
            identity = self._authority.present(connection, caller)
            rows = connection.execute(
                text(
                    f"{_REPOSITORIES} and r.name > :after and (cast(:format as text) is null or r.format = :format) "
                    f"and {KNOWN} order by r.name limit :limit"
                ),
                {"after": after, "limit": limit + 1, "format": format, **subject(identity)},
            ).all()
        return page(rows, limit, _shown, lambda row: [row.name])

    def update(self, caller: Caller, name: str, change: RepositoryChange) -> Repository:
        """Binds on the next request. Raises Invalid with the field, AlreadyExists, NotFound, Forbidden or Unauthenticated."""
        with self._database.read() as connection:
            found = self._managed(connection, caller, name)
        with self._transactions.begin(found.id) as transaction:
            connection = transaction.connection
            self._still_managed(connection, caller, name, found.id)
            before = _read(connection, name)
            after = _changed(before, change)
            _advance(transaction, found.id, before, after)
            if after != _values(before):
                _write(connection, found.id, after)
            shown = _read(connection, after["name"])
        if transaction.changed_nothing:
            self._transactions.catch_up()
        return shown

    def delete(self, caller: Caller, name: str) -> None:
        """Gone at once, its name free; rows and bytes follow in batches. Raises NotFound, Forbidden, Unauthenticated or ReadOnly."""
        with self._database.read() as connection:
            found = self._managed(connection, caller, name)
        with self._transactions.begin(found.id) as transaction:
            self._still_managed(transaction.connection, caller, name, found.id)
            require_writable(transaction.connection)
            transaction.advance(found.id, "authorization")
            transaction.connection.execute(
                text("update arkvory_repositories set deleted_at = now(), updated_at = now() where id = :id"), {"id": found.id}
            )

    def _creator(self, connection: Connection, caller: Caller) -> int | None:
        """Who the creator is to be; null for a command on this machine, which has no account."""
        if self._settings.repository_creation == "administrators":
            identity = self._authority.administrator(connection, caller)
        else:
            identity = self._authority.unlimited(self._authority.signed_in(connection, caller))
        return identity.user_id if identity.user_id > 0 else None

    def _managed(self, connection: Connection, caller: Caller, name: str) -> Snapshot:
        snapshot = find_repository(connection, caller, name)
        self._access.require_whole(connection, caller, snapshot, MANAGE)
        return snapshot

    def _still_managed(self, connection: Connection, caller: Caller, name: str, repository_id: int) -> None:
        if self._managed(connection, caller, name).id != repository_id:
            raise NotFound(f"repository {name!r} was deleted meanwhile")


def _check(new: NewRepository) -> None:
    check_repository_name(new.name)
    if new.format not in FORMATS:
        raise Invalid(f"the format is one of {', '.join(FORMATS)}", field="format")
    if new.kind not in KINDS:
        raise Invalid("the kind is hosted", field="kind")
    if new.kind != "hosted":
        raise Invalid(f"{new.kind} repositories are not in this release; the kind is hosted", field="kind")
    _check_values(new.format, new.status, new.quota_bytes, new.settings or {})


def _check_values(format: str, status: str, quota_bytes: int | None, settings: Mapping[str, Any]) -> None:
    if status not in STATUSES:
        raise Invalid(f"the status is one of {', '.join(STATUSES)}", field="status")
    if quota_bytes is not None and not 0 <= quota_bytes <= MOST_QUOTA:
        raise Invalid("the quota is a number of bytes, 0 (nothing fits) or more, or null (none)", field="quota_bytes")
    known = {"write_policy": WRITE_POLICIES} | ({"version_policy": VERSION_POLICIES} if FORMATS[format].snapshots else {})
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise Invalid(f"hosted {format} repositories have no setting {unknown[0]!r}; there is: {', '.join(known)}", field="settings")
    for name, value in settings.items():
        if value not in known[name]:
            raise Invalid(f"{name} is one of {', '.join(known[name])}", field=f"settings.{name}")


_Values = dict[str, Any]


def _changed(before: Repository, change: RepositoryChange) -> _Values:
    """All values after the change. Raises Invalid."""
    wanted = dict(change.values)
    merged = {**before.settings, **(wanted.pop("settings", None) or {})}
    settings = {key: value for key, value in merged.items() if value is not None}
    after = _values(before) | wanted | {"settings": settings}
    check_repository_name(after["name"])
    _check_values(before.format, after["status"], after["quota_bytes"], settings)
    return after


def _values(repository: Repository) -> _Values:
    return {name: getattr(repository, name) for name in ("name", "status", "public", "quota_bytes", "settings")}


def _advance(transaction: Transaction, repository_id: int, before: Repository, after: _Values) -> None:
    """The quota is read by admission alone, under its own lock: no epoch moves with it."""
    moved = {name for name, value in _values(before).items() if value != after[name]}
    classes = {"metadata"} if moved & {"name", "status", "settings"} else set()
    if "public" in moved:
        classes |= {"metadata", "authorization"}
    if "name" in moved and _is_taken(transaction.connection, after["name"]):
        raise AlreadyExists(f"there is a repository {after['name']!r} already")
    if classes:
        transaction.advance(repository_id, *classes, former_names=[("default", after["name"])])
    transaction.order.reach(Step.REPOSITORY_ROW)


def _is_taken(connection: Connection, name: str) -> bool:
    """Looked up before the row is touched: two repositories that swap their names would otherwise wait for each other in a circle."""
    query = text("select 1 from arkvory_repositories where tenant = 'default' and name = :name and deleted_at is null")
    return connection.execute(query, {"name": name}).first() is not None


def _write(connection: Connection, repository_id: int, after: _Values) -> None:
    try:
        connection.execute(
            text(
                "update arkvory_repositories set name = :name, status = :status, public = :public, quota_bytes = :quota_bytes, "
                "settings = cast(:settings as jsonb), updated_at = now() where id = :id"
            ),
            after | {"settings": json.dumps(after["settings"]), "id": repository_id},
        )
    except IntegrityError as error:
        # Taken since we looked.
        raise AlreadyExists(f"there is a repository {after['name']!r} already") from error


_INSERT = text(
    "insert into arkvory_repositories (name, format, kind, public, status, quota_bytes, settings, creator_id) "
    "values (:name, :format, :kind, :public, :status, :quota_bytes, cast(:settings as jsonb), :creator) "
    "on conflict (tenant, name) where deleted_at is null do nothing returning id"
)
_REPOSITORIES = (
    "select r.name, r.format, r.kind, r.status, r.public, r.quota_bytes, r.settings, u.name as creator, r.created_at, r.updated_at, "
    "r.metadata_epoch, r.authorization_epoch, r.content_epoch, r.members_epoch "
    "from arkvory_repositories r left join arkvory_users u on u.id = r.creator_id where r.tenant = 'default' and r.deleted_at is null"
)


def _shown(row: Row[Any]) -> Repository:
    values: list[Any] = [*row[:10], Epochs._make(row[10:14])]
    return Repository(*values)


def _read(connection: Connection, name: str) -> Repository:
    row = connection.execute(text(f"{_REPOSITORIES} and r.name = :name"), {"name": name}).first()
    if row is None:
        raise unknown_repository(name)
    return _shown(row)
