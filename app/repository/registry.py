"""The repositories themselves: create, show, list, update, delete. What is in them is `listing.py`'s."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sqlalchemy import Connection, Row
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
from app.database.statements import text
from app.errors import AlreadyExists, Invalid, NotFound, Unavailable
from app.repository.formats import FORMATS, NAME_POLICIES, VERSION_POLICIES, WRITE_POLICIES
from app.repository.members import Members, Roll, groups_of, leave_groups, lost_by_groups, member_ids, warnings
from app.repository.names import check_repository_name
from app.repository.patterns import check_pattern
from app.repository.writable import require_writable
from app.upstream import upstream as upstreams
from app.upstream.placing import may_lie_inside
from app.upstream.secrets import Secrets
from config import Settings

KINDS = ("hosted", "proxy", "group")
LONGEST_TTL = 366 * 86400
MOST_DAYS = 3660
STATUSES = ("online", "offline", "maintenance")
MOST_QUOTA = 2**63 - 1
MOST_PATTERNS, LONGEST_PATTERN = 100, 200
LONGEST_HOST = 253
TRIES = 5
_FOLDER = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*){0,7}")
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")


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
    # A host name whose addresses all mean this repository.
    host: str | None = None
    # A proxy's: where it fetches from, and how (`upstream/upstream.py`).
    upstream_url: str | None = None
    upstream: Mapping[str, Any] | None = None
    # A group's: names of the repositories whose artifacts it has, in the order in which they are asked.
    members: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """Of a group: `position` from 1 on, as they are asked; what is published through the group goes to the `written` one."""

    position: int
    name: str
    written: bool


@dataclass(frozen=True, slots=True)
class RepositoryChange:
    """What to change; absent keys stay as they are. `settings` and `upstream` are merged in, null removes one; `members` replace them."""

    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        assert set(self.values) <= {"name", "status", "public", "quota_bytes", "settings", "host", "upstream_url", "upstream", "members"}


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
    host: str | None
    upstream_url: str | None
    # Without anything secret.
    upstream: Mapping[str, Any] | None
    # Null for those that are no groups.
    members: Sequence[str] | None
    epochs: Epochs
    # What whoever made or changed it should know.
    warnings: Sequence[str] = ()

    @property
    def roll(self) -> Roll:
        return Roll(tuple(self.members or ()), self.settings.get("write_member"))

    @property
    def address(self) -> str:
        return FORMATS[self.format].address(self.name)


_Values = dict[str, Any]


T = TypeVar("T")


class _MoreLocks(Exception):
    """Other repositories have to be locked too."""

    def __init__(self, repository_ids: set[int]) -> None:
        super().__init__()
        self.repository_ids = repository_ids


class Registry:
    """Every change is decided and made from the database, under the repository's lock (C10)."""

    def __init__(self, settings: Settings, database: Database, transactions: Transactions, access: Access) -> None:
        self._settings = settings
        self._database = database
        self._transactions = transactions
        self._access = access
        self._authority = Authority(access.identities)
        self._secrets = Secrets(settings)
        self._members = Members(access)

    def create(self, caller: Caller, new: NewRepository) -> Repository:
        """Raises Invalid with the field, AlreadyExists, Forbidden or Unauthenticated."""
        _check(new)
        described = upstreams.merged({}, new.upstream or {})
        return self._under_locks(set(), lambda transaction, locked: self._create(transaction, locked, caller, new, described))

    def _create(
        self, transaction: Transaction, locked: set[int], caller: Caller, new: NewRepository, described: dict[str, Any]
    ) -> Repository:
        connection = transaction.connection
        creator_id = self._creator(connection, caller)
        roll = Roll(tuple(new.members or ()), (new.settings or {}).get("write_member"))
        members = self._members.check(connection, caller, new.format, roll, ())
        _require_locks(locked, {each.id for each in members.values()})
        transaction.order.reach(Step.REPOSITORY_ROW)
        settings = dict(new.settings or {})
        values = asdict(new) | {"settings": _stored(settings), "caching": _caches(settings), "creator": creator_id}
        values["upstream_url"] = None if new.upstream_url is None else upstreams.check_url(new.upstream_url)
        made = connection.execute(_INSERT, values).scalar()
        if made is None:
            raise AlreadyExists(_taken(connection, new.name, new.host))
        if new.kind == "proxy":
            upstreams.write(connection, self._secrets, made, described)
            self._place_upstream(connection, caller, made, values["upstream_url"], described)
        if members:
            self._members.write(transaction, made, roll, members)
        if new.host is not None:
            transaction.advance_installation()
        transaction.take_name(made)
        return replace(_read(connection, new.name), warnings=warnings(public=new.public, members=list(members.values())))

    def _under_locks(self, repository_ids: set[int], change: Callable[[Transaction, set[int]], T]) -> T:
        """A change that finds out under its locks which it needs; it begins anew with those. Raises Unavailable."""
        locked = repository_ids
        for _ in range(TRIES):
            try:
                with self._transactions.begin(*sorted(locked)) as transaction:
                    done = change(transaction, locked)
                if transaction.changed_nothing:
                    self._transactions.catch_up()
                return done
            except _MoreLocks as more:
                locked = locked | more.repository_ids
        raise Unavailable("the members of this group, or its groups, keep changing; try again shortly", retry_after=2)

    def show(self, caller: Caller, name: str) -> Repository:
        """For everyone who may do anything in it. Raises NotFound or Unauthenticated."""
        with self._database.consistent() as connection:
            self._access.require_known(connection, caller, find_repository(connection, caller, name))
            return _read(connection, name)

    def members(self, caller: Caller, name: str, limit: int, after: int = 0) -> Page[Member]:
        """Of a group, behind that position. Raises as `show`, and NotFound for what is no group."""
        group = self.show(caller, name)
        if group.members is None:
            raise NotFound(f"repository {name!r} is no group: it has no members")
        written = group.settings.get("write_member")
        found = [Member(position, each, each == written) for position, each in enumerate(group.members, 1) if position > after]
        return Page(found[:limit], (found[limit - 1].position,) if len(found) > limit else None)

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
        return self._under_locks({found.id}, lambda transaction, locked: self._update(transaction, locked, caller, found, change))

    def _update(self, transaction: Transaction, locked: set[int], caller: Caller, found: Snapshot, change: RepositoryChange) -> Repository:
        connection, name = transaction.connection, found.name
        self._still_managed(connection, caller, name, found.id)
        before = _read(connection, name)
        after = _changed(before, change)
        roll, former = _roll(before, after), member_ids(connection, found.id)
        members = self._members.check(connection, caller, before.format, roll, former)
        added = [each for each in members.values() if each.id not in former]
        _require_locks(locked, {each.id for each in added})
        described = self._described(connection, found.id, before, change)
        _advance(transaction, found.id, before, after, described=described is not None)
        if after != _values(before):
            _write(connection, found.id, after)
        if roll != before.roll:
            self._members.write(transaction, found.id, roll, members)
        if described is not None:
            upstreams.write(connection, self._secrets, found.id, described)
        if after["upstream_url"] != before.upstream_url or "http_proxy" in (change.values.get("upstream") or {}):
            self._place_upstream(connection, caller, found.id, after["upstream_url"], described or {})
        if _moves_host(before, after):
            transaction.advance_installation()
        opened = after["public"] and not before.public
        told = warnings(public=after["public"], members=list(members.values()) if opened else added)
        return replace(_read(connection, after["name"]), warnings=told)

    def delete(self, caller: Caller, name: str) -> Sequence[str]:
        """Gone at once, its name free; rows and bytes follow in batches. What whoever deleted it should know of groups that lost it.

        Raises NotFound, Forbidden, Unauthenticated or ReadOnly.
        """
        with self._database.read() as connection:
            found = self._managed(connection, caller, name)
            groups = groups_of(connection, found.id)
        return self._under_locks({found.id, *groups}, lambda transaction, locked: self._delete(transaction, locked, caller, found))

    def _delete(self, transaction: Transaction, locked: set[int], caller: Caller, found: Snapshot) -> Sequence[str]:
        connection = transaction.connection
        self._still_managed(connection, caller, found.name, found.id)
        require_writable(connection)
        before, groups = _read(connection, found.name), groups_of(connection, found.id)
        _require_locks(locked, groups)
        for repository_id in sorted({found.id, *groups}):
            transaction.advance(repository_id, "authorization" if repository_id == found.id else "members")
        losses = lost_by_groups(connection, found)
        leave_groups(connection, found.id)
        connection.execute(text("update arkvory_repositories set deleted_at = now(), updated_at = now() where id = :id"), {"id": found.id})
        if before.host is not None:
            transaction.advance_installation()
        return losses

    def _described(self, connection: Connection, repository_id: int, before: Repository, change: RepositoryChange) -> dict[str, Any] | None:
        """The upstream as it is to be; null when nothing about it changes."""
        wanted, url = change.values.get("upstream"), change.values.get("upstream_url")
        moved = url is not None and before.upstream_url is not None and upstreams.origin(url) != upstreams.origin(before.upstream_url)
        if not moved and not wanted:
            return None
        if before.kind != "proxy":
            raise Invalid(f"a {before.kind} repository has no upstream", field="upstream")
        return upstreams.changed(connection, self._secrets, repository_id, wanted or {}, moved=moved)

    def _place_upstream(
        self, connection: Connection, caller: Caller, repository_id: int, url: str | None, described: Mapping[str, Any]
    ) -> None:
        """Whoever says where it is: only administrators name what only this machine can reach. Raises Forbidden."""
        may = may_lie_inside(connection, self._authority, caller, (url, described.get("http_proxy")))
        upstreams.let_inside(connection, repository_id, may)

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
        raise Invalid(f"the kind is one of {', '.join(KINDS)}", field="kind")
    if new.members is not None and new.kind != "group":
        raise Invalid(f"a {new.kind} repository has no members", field="members")
    if new.upstream is not None and new.kind != "proxy":
        raise Invalid(f"a {new.kind} repository has no upstream", field="upstream")
    _check_values(_Kind(new.format, new.kind), asdict(new) | {"settings": new.settings or {}})


def _require_locks(locked: set[int], needed: set[int]) -> None:
    if needed - locked:
        raise _MoreLocks(needed)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What of a repository never changes."""

    format: str
    kind: str


def _check_values(of: _Kind, values: _Values) -> None:
    if values["status"] not in STATUSES:
        raise Invalid(f"the status is one of {', '.join(STATUSES)}", field="status")
    quota = values["quota_bytes"]
    if quota is not None and not 0 <= quota <= MOST_QUOTA:
        raise Invalid("the quota is a number of bytes, 0 (nothing fits) or more, or null (none)", field="quota_bytes")
    if values["host"] is not None:
        _check_host(of.format, values["host"])
    if of.kind == "proxy":
        _check_upstream(of.format, upstreams.check_url(values["upstream_url"]))
    elif values["upstream_url"] is not None:
        raise Invalid(f"a {of.kind} repository has no upstream", field="upstream_url")
    _check_settings(of, values["settings"])


def _check_upstream(format_name: str, url: str) -> None:
    prefix = f"/{FORMATS[format_name].prefix}"
    address = urlsplit(url)
    if prefix != "/" and f"{address.path}/".startswith(f"{prefix}/"):
        wanted = address._replace(path=address.path.removeprefix(prefix)).geturl()
        raise Invalid(f"the upstream's address goes without {prefix}/, which is put in front of names: {wanted}", field="upstream_url")


def _check_settings(of: _Kind, settings: Mapping[str, Any]) -> None:
    known = _settings_of(of)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        name, there = unknown[0], ", ".join(known)
        raise Invalid(f"{of.kind} {of.format} repositories have no setting {name!r}; there is: {there}", field=f"settings.{name}")
    for name, value in settings.items():
        known[name](name, value)


def _settings_of(of: _Kind) -> Mapping[str, Callable[[str, Any], None]]:
    """The settings that such a repository has, with what checks each."""
    known: dict[str, Callable[[str, Any], None]] = {"write_policy": _one_of(WRITE_POLICIES)}
    if of.kind == "group":
        named = {} if FORMATS[of.format].package_of is None else {"name_policy": _one_of(NAME_POLICIES), "merged_names": _check_patterns}
        return {"write_member": _check_name, **named}
    if of.kind == "proxy":
        known = {
            "mutable_ttl": _check_seconds, "miss_ttl": _check_seconds, "caching": _check_flag, "minimum_age": _check_days,
            **dict.fromkeys(("minimum_age_exceptions", "allow", "block"), _patterns_for(of.format)),
        }  # fmt: skip
        known |= {"short_names": _check_folder} if FORMATS[of.format].short_names else {}
    if FORMATS[of.format].snapshots:
        known["version_policy"] = _one_of(VERSION_POLICIES)
    if of.kind == "hosted" and FORMATS[of.format].tags is not None:
        known["immutable_tags"] = _check_patterns
    return known


def _one_of(values: Sequence[str]) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if value not in values:
            raise Invalid(f"{name} is one of {', '.join(values)}", field=f"settings.{name}")

    return check


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LONGEST_TTL:
        raise Invalid(f"{name} is a number of seconds, from 0 to {LONGEST_TTL}", field=f"settings.{name}")


def _check_days(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_DAYS:
        raise Invalid(f"{name} is a number of days, from 0 to {MOST_DAYS}", field=f"settings.{name}")


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise Invalid(f"{name} is true or false", field=f"settings.{name}")


def _check_folder(name: str, value: Any) -> None:
    if not isinstance(value, str) or not _FOLDER.fullmatch(value):
        raise Invalid(f"{name} is where names of one segment are at the upstream, such as library", field=f"settings.{name}")


def _caches(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("caching", True))


def _check_host(format: str, host: str) -> None:
    if not FORMATS[format].hosts:
        raise Invalid(f"a host name cannot stand for a repository of the format {format}", field="host")
    if len(host) > LONGEST_HOST or not _HOST.fullmatch(host):
        raise Invalid("a host is a name such as images.example.org, in lower case and without a port", field="host")


def _check_patterns(name: str, patterns: Any) -> None:
    sound = isinstance(patterns, list) and len(patterns) <= MOST_PATTERNS and all(isinstance(each, str) and each for each in patterns)
    if not sound or any(len(each) > LONGEST_PATTERN for each in patterns):
        told = f"{name} are at most {MOST_PATTERNS} patterns such as v*, of up to {LONGEST_PATTERN} characters"
        raise Invalid(told, field=f"settings.{name}")


def _patterns_for(format_name: str) -> Callable[[str, Any], None]:
    """Of a proxy: such as can match something."""

    def check(name: str, patterns: Any) -> None:
        _check_patterns(name, patterns)
        for each in patterns:
            check_pattern(format_name, name, each)

    return check


def _check_name(name: str, value: Any) -> None:
    """Whether it is a member is looked up later."""
    if not isinstance(value, str):
        raise Invalid(f"{name} is the name of a member", field=f"settings.{name}")


def _changed(before: Repository, change: RepositoryChange) -> _Values:
    """All values after the change. Raises Invalid."""
    wanted = {name: value for name, value in change.values.items() if name != "upstream"}
    merged = {**before.settings, **(wanted.pop("settings", None) or {})}
    settings = {key: value for key, value in merged.items() if value is not None}
    after = _values(before) | wanted | {"settings": settings}
    check_repository_name(after["name"])
    _check_values(_Kind(before.format, before.kind), after)
    if after["upstream_url"] is not None:
        after["upstream_url"] = upstreams.check_url(after["upstream_url"])
    return after


_CHANGEABLE = ("name", "status", "public", "quota_bytes", "settings", "host", "upstream_url", "members")


def _values(repository: Repository) -> _Values:
    return {name: getattr(repository, name) for name in _CHANGEABLE}


def _roll(before: Repository, after: _Values) -> Roll:
    """Raises Invalid for members of what is no group."""
    if before.kind != "group" and after["members"] is not None:
        raise Invalid(f"a {before.kind} repository has no members", field="members")
    return Roll(tuple(after["members"] or ()), after["settings"].get("write_member"))


def _stored(settings: Mapping[str, Any]) -> str:
    """As the repository's row keeps them: which member is written to stands with the members."""
    return json.dumps({name: value for name, value in settings.items() if name != "write_member"})


def _moves_host(before: Repository, after: _Values) -> bool:
    """Whether some host name means another repository now, or the same by another name: that is known under the installation's epoch."""
    return before.host != after["host"] or (before.host is not None and before.name != after["name"])


def _advance(transaction: Transaction, repository_id: int, before: Repository, after: _Values, *, described: bool) -> None:
    """The quota is read by admission alone, under its own lock: no epoch moves with it."""
    moved = {name for name, value in _values(before).items() if value != after[name]}
    classes = {"metadata"} if described or moved & {"name", "status", "settings", "host", "upstream_url"} else set()
    if "public" in moved:
        classes |= {"metadata", "authorization"}
    if "members" in moved:
        classes |= {"members"}
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
                "settings = cast(:settings as jsonb), host = :host, upstream_url = :upstream_url, caching_allowed = :caching, "
                "updated_at = now() where id = :id"
            ),
            after | {"settings": _stored(after["settings"]), "caching": _caches(after["settings"]), "id": repository_id},
        )
    except IntegrityError as error:
        if "live_host" in str(error.orig):
            raise AlreadyExists(f"the host {after['host']!r} stands for another repository") from error
        # Taken since we looked.
        raise AlreadyExists(f"there is a repository {after['name']!r} already") from error


def _taken(connection: Connection, name: str, host: str | None) -> str:
    """What is in the way of a new repository."""
    if _is_taken(connection, name):
        return f"there is a repository {name!r} already"
    return f"the host {host!r} stands for another repository"


_INSERT = text(
    "insert into arkvory_repositories (name, format, kind, public, status, quota_bytes, settings, host, creator_id, upstream_url, "
    "caching_allowed) values (:name, :format, :kind, :public, :status, :quota_bytes, cast(:settings as jsonb), :host, :creator, "
    ":upstream_url, :caching) "
    "on conflict do nothing returning id"
)
_REPOSITORIES = (
    "select r.name, r.format, r.kind, r.status, r.public, r.quota_bytes, r.settings, u.name as creator, r.created_at, r.updated_at, "
    "r.host, r.upstream_url, up.shown as upstream, case when r.kind = 'group' then array(select o.name from arkvory_members m "
    "join arkvory_repositories o on o.id = m.member_id where m.group_id = r.id order by m.position) end as members, "
    "(select o.name from arkvory_members m join arkvory_repositories o on o.id = m.member_id "
    "where m.group_id = r.id and m.written) as written, "
    "r.metadata_epoch, r.authorization_epoch, r.content_epoch, r.members_epoch "
    "from arkvory_repositories r left join arkvory_users u on u.id = r.creator_id "
    "left join arkvory_upstreams up on up.repository_id = r.id where r.tenant = 'default' and r.deleted_at is null"
)


def _shown(row: Row[Any]) -> Repository:
    values: list[Any] = [*row[:14], Epochs._make(row[15:19])]
    shown = Repository(*values)
    return shown if row.written is None else replace(shown, settings={**shown.settings, "write_member": row.written})


def _read(connection: Connection, name: str) -> Repository:
    row = connection.execute(text(f"{_REPOSITORIES} and r.name = :name"), {"name": name}).first()
    if row is None:
        raise unknown_repository(name)
    return _shown(row)
