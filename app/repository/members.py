"""Changing who belongs to a group. Whoever adds a member manages both; the group's members epoch moves with each change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from app.access.decision import MANAGE, Access
from app.access.identity import Caller
from app.cache.changes import Transaction
from app.cache.members import read_membership
from app.cache.snapshots import Snapshot, read_snapshot, read_snapshots
from app.database.locks import Step
from app.database.statements import text
from app.errors import ArkvoryError, Forbidden, Invalid, NotAllowedHere, NotFound, Unauthenticated

MOST_MEMBERS = 100


@dataclass(frozen=True, slots=True)
class Roll:
    """The members that a group is to have, in order; `written` is the one that what is published through the group goes to."""

    members: tuple[str, ...] = ()
    written: str | None = None


class Members:
    """The members of groups, as their managers change them."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def check(self, connection: Connection, caller: Caller, format: str, roll: Roll, former: Collection[int]) -> Mapping[str, Snapshot]:
        """The members by name, where the caller may put them there; nobody's right to `former` ones, by id, is asked again.

        Raises Invalid with the field, Forbidden or Unauthenticated.
        """
        if len(roll.members) > MOST_MEMBERS:
            raise Invalid(f"a group has at most {MOST_MEMBERS} members", field="members")
        if len(set(roll.members)) != len(roll.members):
            raise Invalid("each member is named once", field="members")
        found = {name: self._member(connection, caller, name, former) for name in roll.members}
        for member in found.values():
            _check_kind(member, format)
        if roll.written is not None:
            _check_written(found.get(roll.written), roll.written)
        return found

    def _member(self, connection: Connection, caller: Caller, name: str, former: Collection[int]) -> Snapshot:
        """By its id: under a member's name there may be another repository by now."""
        try:
            member = read_snapshot(connection, "default", name)
            if member.id not in former:
                self._access.require_whole(connection, caller, member, MANAGE)
        except (NotFound, Forbidden, Unauthenticated) as error:
            raise _refused(caller, name, error) from None
        return member

    def write(self, transaction: Transaction, group_id: int, roll: Roll, members: Mapping[str, Snapshot]) -> None:
        """Under the locks of the group and of each member that is added."""
        transaction.order.reach(Step.REPOSITORY_ROW)
        connection = transaction.connection
        connection.execute(text("delete from arkvory_members where group_id = :id"), {"id": group_id})
        for position, name in enumerate(roll.members):
            values = {"id": group_id, "position": position, "member": members[name].id, "written": name == roll.written}
            connection.execute(_INSERT, values)


_INSERT = text("insert into arkvory_members (group_id, position, member_id, written) values (:id, :position, :member, :written)")


def _refused(caller: Caller, name: str, error: ArkvoryError) -> ArkvoryError:
    """Only an administrator learns whether it is there."""
    if isinstance(error, Unauthenticated):
        return error
    if caller.identity is not None and caller.identity.administrator and isinstance(error, NotFound):
        return Invalid(f"there is no repository {name!r}", field="members")
    return Forbidden(f"adding {name!r} to a group needs manage permission for it, and it does not exist or you do not have that")


def _check_kind(member: Snapshot, format: str) -> None:
    if member.kind == "group":
        raise Invalid(f"{member.name!r} is a group itself; name its members instead", field="members")
    if member.format != format:
        raise Invalid(f"{member.name!r} holds {member.format}, and all members hold what the group does, {format}", field="members")


def _check_written(member: Snapshot | None, name: str) -> None:
    if member is None:
        raise Invalid(f"what is published through a group goes to one of its members, and {name!r} is none", field="settings.write_member")
    if member.kind != "hosted":
        raise Invalid(f"{name!r} is a {member.kind}, and nothing is published there; name a hosted member", field="settings.write_member")


def warnings(*, public: bool, members: Sequence[Snapshot]) -> tuple[str, ...]:
    """What whoever adds these members to a group, or opens it, should know."""
    who = "anyone" if public else "everyone who may read the group"
    return tuple(f"{each.name!r} is private; through this group {who} can read it" for each in members if not each.public)


def member_ids(connection: Connection, group_id: int) -> set[int]:
    """Ids of those that belong to it."""
    return set(connection.execute(text("select member_id from arkvory_members where group_id = :id"), {"id": group_id}).scalars())


def groups_of(connection: Connection, member_id: int) -> set[int]:
    """Ids of the groups that it belongs to."""
    return set(connection.execute(text("select group_id from arkvory_members where member_id = :id"), {"id": member_id}).scalars())


def lost_by_groups(connection: Connection, member: Snapshot) -> tuple[str, ...]:
    """What becomes of the groups that lose it, by their names."""
    rows = connection.execute(
        text(
            "select g.name, m.written from arkvory_members m join arkvory_repositories g on g.id = m.group_id and g.deleted_at is null "
            "where m.member_id = :id order by g.name"
        ),
        {"id": member.id},
    )
    return tuple(_loss(row.name, member.name, written=row.written) for row in rows)


def _loss(group: str, member: str, *, written: bool) -> str:
    told = f"{member!r} was a member of the group {group!r}, which has nothing of it any more"
    return f"{told}, and takes no publishes until it has another write_member" if written else told


def leave_groups(connection: Connection, repository_id: int) -> None:
    """Of a repository that is deleted: it is nobody's member any more, and has none."""
    connection.execute(text("delete from arkvory_members where group_id = :id or member_id = :id"), {"id": repository_id})


def members_now(connection: Connection, repository: Snapshot) -> Sequence[Snapshot]:
    """The members of a group as they are now, in order; of what is no group, none."""
    ids = read_membership(connection, repository).members
    found = read_snapshots(connection, ids) if ids else {}
    return [found[each] for each in ids if each in found]


def require_own(repository: Snapshot) -> None:
    """Raises NotAllowedHere for a group, in which nothing is stored, held or copied."""
    if repository.kind == "group":
        raise NotAllowedHere(f"repository {repository.name!r} is a group and has nothing of its own; name the member that has it")


def member_now(connection: Connection, group: Snapshot, member_id: int) -> Snapshot:
    """A member as it is now. Raises NotFound when it is none any more."""
    row = connection.execute(
        text(
            "select r.tenant, r.name from arkvory_members m join arkvory_repositories r on r.id = m.member_id and r.deleted_at is null "
            "where m.group_id = :group and m.member_id = :member"
        ),
        {"group": group.id, "member": member_id},
    ).first()
    if row is None:
        raise NotFound(f"a member of {group.name!r} was taken away meanwhile")
    return read_snapshot(connection, row.tenant, row.name)


def written_member(connection: Connection, group: Snapshot) -> Snapshot:
    """Where what is published through the group goes. Raises NotAllowedHere."""
    row: Any = connection.execute(
        text(
            "select r.tenant, r.name from arkvory_members m join arkvory_repositories r on r.id = m.member_id and r.deleted_at is null "
            "where m.group_id = :group and m.written"
        ),
        {"group": group.id},
    ).first()
    if row is None:
        raise NotAllowedHere(
            f"repository {group.name!r} is a group without a write_member; publish to one of its members"
        )
    return read_snapshot(connection, row.tenant, row.name)
