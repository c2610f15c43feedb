"""May this caller do this here? (DESIGN 3)

Nobody may do anything while the installation's anonymous switch is off. A public repository lets anyone
read. Otherwise, in this order: anonymous or signed in; the token's
scope; administrator; creator of the repository; deploy token; access rules. Only what the rules said is kept, in the
authorization region; everything else is decided from the snapshot and the identity each time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from app.access.identity import Caller, DeployScope, Identities, Identity
from app.cache import keys
from app.cache.installation import Installation, read_switches
from app.cache.snapshots import Snapshot, other_format, read_snapshot, unknown_repository
from app.cache.store import Cache
from app.cache.view import Epochs, Seen
from app.database.engines import Database
from app.database.statements import text
from app.errors import ArkvoryError, Forbidden, NotFound, Unauthenticated

READ, WRITE, DELETE, MANAGE = PERMISSIONS = ("read", "write", "delete", "manage")


@dataclass(frozen=True, slots=True)
class Grant:
    """What the rules of a repository give one caller for one permission: all of it, or paths below prefixes."""

    whole: bool = False
    prefixes: tuple[str, ...] = ()

    def covers(self, path: str | None) -> bool:
        """Null asks whether there is any path at all that the caller may touch."""
        if path is None:
            return not self.empty
        return self.whole or any(_is_below(path, prefix) for prefix in self.prefixes)

    @property
    def empty(self) -> bool:
        return not self.whole and not self.prefixes


@dataclass(frozen=True, slots=True)
class Way:
    """From a group to the member that what is published through it goes to."""

    group: Snapshot
    member: Snapshot

    def counted(self, identity: Identity) -> Identity:
        """Of who comes this way: a token says by which door its owner comes in, and what they may do inside is their own right.

        A deploy token has no owner whose right could be asked, so one of the group is none of the member.
        """
        scope = identity.token
        if scope is None or scope.repositories is None or self.group.id not in scope.repositories:
            return identity
        return replace(identity, token=replace(scope, repositories=scope.repositories | {self.member.id}))


NOTHING = Grant()
Grants = Callable[[str], Grant]


def _is_below(path: str, prefix: str) -> bool:
    """Prefixes end at a separator: `a/b` covers `a/b` and `a/b/c`, not `a/bc`."""
    folder = prefix if prefix.endswith("/") else prefix + "/"
    return path == prefix or path.startswith(folder)


def refusal(snapshot: Snapshot, identity: Identity | None, permission: str, path: str | None, grants: Grants) -> ArkvoryError | None:
    """None when the caller may; else the error to raise. `grants` tells what the rules said of a permission."""
    if permission == READ and snapshot.public:
        return None
    if identity is not None and identity.deploy is not None:
        grants = functools.partial(deployed, identity.deploy, snapshot.id)
    if identity is None:
        return None if grants(permission).covers(path) else needs_login(snapshot.name)
    if _token_allows(snapshot, identity, permission) and _user_may(snapshot, identity, permission, path, grants):
        return None
    return _explained(snapshot, identity, permission, grants)


def refusal_now(connection: Connection, caller: Caller, snapshot: Snapshot, permission: str, path: str | None) -> ArkvoryError | None:
    """The same by what `connection` reads, where the caller and the snapshot come from too."""
    read = functools.cache(lambda: _read_grants(connection, snapshot.id, caller)[0])
    return refusal(snapshot, caller.identity, permission, path, lambda each: read()[each])


def deployed(scope: DeployScope, repository_id: int, permission: str) -> Grant:
    """What a deploy token gives: rules do not speak of it, not even those for anyone."""
    if scope.repository_id != repository_id or permission not in scope.permissions:
        return NOTHING
    return Grant(prefixes=(scope.path_prefix,)) if scope.path_prefix else Grant(whole=True)


def needs_login(repository: str) -> Unauthenticated:
    """The same words whether it exists or not: nobody learns names without a login."""
    return Unauthenticated(f"repository {repository!r} does not exist or needs a login")


def find_repository(
    connection: Connection, caller: Caller, name: str, tenant: str = "default", format_name: str | None = None
) -> Snapshot:
    """A repository as it is now, of that format where one is asked for.

    Raises NotFound; for nobody Unauthenticated, so that names cannot be guessed.
    """
    try:
        snapshot = read_snapshot(connection, tenant, name)
        if format_name not in (None, snapshot.format):
            knows = caller.identity is not None and refusal_now(connection, caller, snapshot, READ, None) is None
            raise other_format(snapshot) if knows else unknown_repository(name)
    except NotFound:
        if caller.identity is None:
            raise needs_login(name) from None
        raise
    return snapshot


def _token_allows(snapshot: Snapshot, identity: Identity, permission: str) -> bool:
    scope = identity.token
    return scope is None or (permission in scope.permissions and (scope.repositories is None or snapshot.id in scope.repositories))


def _user_may(snapshot: Snapshot, identity: Identity, permission: str, path: str | None, grants: Grants) -> bool:
    return identity.administrator or snapshot.creator_id == identity.user_id or grants(permission).covers(path)


def _explained(snapshot: Snapshot, identity: Identity, permission: str, grants: Grants) -> ArkvoryError:
    """403 for who may know of the repository, 404 for others."""
    knows = (
        snapshot.public
        or identity.administrator
        or snapshot.creator_id == identity.user_id
        or any(not grants(each).empty for each in PERMISSIONS)
    )
    if not knows:
        return unknown_repository(snapshot.name)
    limit = " with this token" if not _token_allows(snapshot, identity, permission) else _below(identity.deploy, permission)
    return Forbidden(f"{identity.name!r} has no {permission} permission here{limit} (repository {snapshot.name!r})")


def _explained_through(way: Way, caller: Caller, permission: str) -> str:
    """What is missing, and who can give it: whoever may know of the group knows its members by the answers that come from them."""
    group, member, identity = way.group.name, way.member.name, caller.identity
    assert identity is not None
    if identity.deploy is not None:
        why = f"this deploy token gives no {permission} permission for that there; make one of {member!r}"
    elif not _token_allows(way.member, identity, permission):
        why = f"this token gives no {permission} permission there; make one with {permission} for {group!r} or for {member!r}"
    else:
        why = f"{identity.name!r} has no {permission} permission for that there; who manages {member!r} can give it"
    return f"group {group!r} publishes to its member {member!r}, and {why}"


def _below(scope: DeployScope | None, permission: str) -> str:
    """What a deploy token's bearer was told when it was made."""
    return f" but below {scope.path_prefix!r}" if scope is not None and scope.path_prefix and permission in scope.permissions else ""


class Access:
    """The decision, from memory for reads and from the database for writes (C10)."""

    def __init__(self, database: Database, cache: Cache, identities: Identities, installation: Installation) -> None:
        self._database = database
        self._cache = cache
        self.identities = identities
        self.installation = installation

    def require(self, caller: Caller, snapshot: Snapshot, permission: str, path: str) -> None:
        """For reads. Raises Unauthenticated, Forbidden or NotFound."""
        if caller.identity is None and not self.installation.switches().anonymous:
            raise needs_login(snapshot.name)
        error = refusal(snapshot, caller.identity, permission, path, lambda each: self._grant(caller, snapshot, each))
        if error is not None:
            raise error

    def require_now(self, connection: Connection, caller: Caller, snapshot: Snapshot, permission: str, path: str | None) -> Caller:
        """The same, decided by what `connection` reads; `snapshot` must come from there too. The caller as they are now."""
        self.admit(connection, caller)
        if caller.identity is not None:
            caller = Caller(self.identities.read_again(connection, caller.identity), caller.address)
        error = refusal_now(connection, caller, snapshot, permission, path)
        if error is not None:
            raise error
        return caller

    def require_through(self, connection: Connection, caller: Caller, way: Way, permission: str, path: str | None) -> None:
        """The same, of a group's member that the caller comes to through the group: a token for the group counts for the member there."""
        self.admit(connection, caller)
        if caller.identity is not None:
            caller = Caller(way.counted(self.identities.read_again(connection, caller.identity)), caller.address)
        error = refusal_now(connection, caller, way.member, permission, path)
        if isinstance(error, Unauthenticated):
            raise needs_login(way.group.name)
        if error is not None:
            raise Forbidden(_explained_through(way, caller, permission))

    def admit(self, connection: Connection, caller: Caller) -> None:
        """Raises Unauthenticated for nobody, while the installation is for those with a login alone."""
        if caller.identity is None and not read_switches(connection).anonymous:
            raise Unauthenticated("this server needs a login")

    def require_known(self, connection: Connection, caller: Caller, snapshot: Snapshot) -> Caller:
        """Some permission somewhere in the repository: enough to be told that it exists. Raises as `require_now`."""
        self.admit(connection, caller)
        if caller.identity is not None:
            caller = Caller(self.identities.read_again(connection, caller.identity), caller.address)
        read = functools.cache(lambda: _read_grants(connection, snapshot.id, caller)[0])
        errors = [refusal(snapshot, caller.identity, each, None, lambda permission: read()[permission]) for each in PERMISSIONS]
        if errors[0] is not None and all(errors):
            raise errors[0]
        return caller

    def grant_now(self, connection: Connection, caller: Caller, snapshot: Snapshot, permission: str) -> Grant:
        """What of the repository the caller may touch, never nothing. Raises as `require_now`."""
        caller = self.require_now(connection, caller, snapshot, permission, None)
        identity = caller.identity
        if permission == READ and snapshot.public:
            return Grant(whole=True)
        if identity is not None and (identity.administrator or snapshot.creator_id == identity.user_id):
            return Grant(whole=True)
        if identity is not None and identity.deploy is not None:
            return deployed(identity.deploy, snapshot.id, permission)
        return _read_grants(connection, snapshot.id, caller)[0][permission]

    def require_whole(self, connection: Connection, caller: Caller, snapshot: Snapshot, permission: str) -> None:
        """The permission for the whole repository, not below some path only. Raises as `require_now`."""
        if not self.grant_now(connection, caller, snapshot, permission).whole:
            raise Forbidden(f"this needs {permission} permission for the whole repository {snapshot.name!r}")

    def _grant(self, caller: Caller, snapshot: Snapshot, permission: str) -> Grant:
        epochs = self._cache.effective(snapshot.id, snapshot.epochs)
        key = keys.for_grant(snapshot.id, epochs, caller.user_id, caller.revision, permission, self._cache.view.installation)
        kept: Grant | None = self._cache.grants.get(key)
        if kept is not None and self._may_keep(snapshot.id, caller):
            return kept
        with self._database.read() as connection:
            grants, seen = _read_grants(connection, snapshot.id, caller)
        self._cache.observe(seen)
        self._keep(snapshot.id, caller, grants, seen)
        return grants[permission]

    def _may_keep(self, repository_id: int, caller: Caller) -> bool:
        doubts = self._cache.doubts
        return self._cache.may_keep(repository_id) and caller.user_id not in doubts.users and not doubts.installation

    def _keep(self, repository_id: int, caller: Caller, grants: Mapping[str, Grant], seen: Seen) -> None:
        """C3: under the numbers that the query itself read."""
        if not self._may_keep(repository_id, caller) or seen.installation < self._cache.view.installation:
            return
        tags = (keys.tag_of_repository(repository_id), keys.tag_of_user(caller.user_id))
        for permission, grant in grants.items():
            key = keys.for_grant(repository_id, seen.epochs, caller.user_id, seen.user_revision, permission, seen.installation)
            self._cache.grants.put(key, grant, tags=tags)


_GRANTS_QUERY = text(
    "select r.metadata_epoch, r.authorization_epoch, r.content_epoch, r.members_epoch, i.epoch as installation, "
    "coalesce(u.revision, 0) as revision, a.permissions, a.path_prefix "
    "from arkvory_repositories r cross join arkvory_installation i left join arkvory_users u on u.id = :user "
    "left join arkvory_rules a on a.repository_id = r.id and (a.subject = 'anonymous' or (u.id is not null and "
    "(a.subject = 'signed-in' or a.user_id = u.id "
    "or a.group_id in (select m.group_id from arkvory_group_members m where m.user_id = u.id)))) "
    "where r.id = :repository"
)


def _read_grants(connection: Connection, repository_id: int, caller: Caller) -> tuple[dict[str, Grant], Seen]:
    rows = connection.execute(_GRANTS_QUERY, {"user": caller.user_id, "repository": repository_id}).all()
    if not rows:
        raise NotFound("the repository is gone")
    first = rows[0]
    seen = Seen(repository_id, Epochs._make(first[:4]), caller.user_id or None, first.revision, first.installation)
    return {permission: _merged(rows, permission) for permission in PERMISSIONS}, seen


def _merged(rows: Any, permission: str) -> Grant:
    prefixes = [row.path_prefix for row in rows if row.permissions and permission in row.permissions]
    if any(not prefix for prefix in prefixes):
        return Grant(whole=True)
    return Grant(prefixes=tuple(sorted(prefixes)))
