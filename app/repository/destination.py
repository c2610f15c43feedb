"""Where what is sent to a repository goes: to itself where it is hosted, through a group to the member that it names for that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from app.access.decision import DELETE, Access, Way, find_repository
from app.access.identity import Caller
from app.cache.snapshots import Snapshot
from app.errors import Forbidden, Later, NotAllowedHere
from app.repository.members import written_member
from app.repository.reading import check_online


@dataclass(frozen=True)
class Target:
    """Where something is to be published and by whom."""

    format: str
    repository: str
    caller: Caller
    tenant: str = "default"


def destination(connection: Connection, access: Access, target: Target, permission: str, paths: Iterable[str | None]) -> Snapshot:
    """The hosted repository, for somebody who may do this there: the right is asked where the artifacts are, not at the group.

    A token for the group alone counts there, as far as its owner may do it. Raises NotFound, Unauthenticated, Forbidden,
    RepositoryOffline, RepositoryMaintenance, and NotAllowedHere where there is none.
    """
    snapshot = find_repository(connection, target.caller, target.repository, target.tenant, target.format)
    check_online(snapshot)
    if snapshot.kind == "group":
        return _through(connection, access, target, snapshot, permission, paths)
    for path in paths:
        access.require_now(connection, target.caller, snapshot, permission, path)
    if snapshot.kind != "hosted":
        instead = "its copies go when its upstream has them no more" if permission == DELETE else "publish to a hosted one"
        raise NotAllowedHere(f"repository {snapshot.name!r} is a {snapshot.kind}; {instead}")
    return snapshot


def require_right(connection: Connection, access: Access, target: Target, permission: str, path: str | None) -> None:
    """The right alone, for clients that want to know beforehand. Raises NotFound, Unauthenticated and Forbidden."""
    try:
        destination(connection, access, target, permission, [path])
    except (NotAllowedHere, Later):
        # What else is in the way is told where it is.
        snapshot = find_repository(connection, target.caller, target.repository, target.tenant, target.format)
        access.require_now(connection, target.caller, snapshot, permission, path)


def _through(
    connection: Connection, access: Access, target: Target, group: Snapshot, permission: str, paths: Iterable[str | None]
) -> Snapshot:
    try:
        member = written_member(connection, group)
    except NotAllowedHere:
        # Whoever may not know of the group does not learn of it.
        access.require_known(connection, target.caller, group)
        raise
    try:
        for path in paths:
            access.require_through(connection, target.caller, Way(group, member), permission, path)
    except Forbidden:
        # Whoever may not know of the group does not learn of its member either.
        with contextlib.suppress(Forbidden):
            access.require_known(connection, target.caller, group)
        raise
    check_online(member)
    return member
