"""Who belongs to a group, in which order, and how it treats names: the region `members`.

A change of the members moves the group's members epoch, one of its settings its metadata epoch; both are in the key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from app.cache import keys
from app.cache.rows import Rows
from app.cache.snapshots import Snapshot, unknown_repository
from app.cache.store import Cache
from app.cache.view import Epochs
from app.database.engines import Database
from app.database.statements import text


@dataclass(frozen=True, slots=True)
class Membership:
    """A group as one query read it: ids of its members in order, its policy for names (null: its format's), names that it merges anyway."""

    epochs: Epochs
    members: tuple[int, ...]
    name_policy: str | None = None
    merged_names: tuple[str, ...] = ()


class Memberships:
    """The shared region: this process's memory, then a cache row, then the tables."""

    def __init__(self, database: Database, cache: Cache) -> None:
        self._database = database
        self._cache = cache
        self._rows = Rows(database, cache, "members")

    def get(self, group: Snapshot) -> Membership:
        """Perhaps under newer epochs than the snapshot's. Raises NotFound when the group is gone."""
        kept: Membership | None = self._cache.members.get(keys.for_members(group.id, self._cache.effective(group.id, group.epochs)))
        if kept is not None and self._cache.may_keep(group.id) and not self._cache.is_void(group.id):
            return kept
        found = self._from_row(group) or self._from_tables(group)
        self._keep(group.id, found)
        return found

    def _keep(self, group_id: int, found: Membership) -> None:
        """C3: under the epochs that the query itself read."""
        self._cache.observe_repository(group_id, found.epochs)
        if self._cache.may_keep(group_id):
            tags = tuple(keys.tag_of_repository(each) for each in (group_id, *found.members))
            self._cache.members.put(keys.for_members(group_id, found.epochs), found, tags=tags)

    def _from_row(self, group: Snapshot) -> Membership | None:
        row = self._rows.read(keys.row_for_members(group.id), "r.id = :id", {"id": group.id})
        return None if row is None else _revived(*row)

    def _from_tables(self, group: Snapshot) -> Membership:
        with self._database.read() as connection:
            found = read_membership(connection, group)
        told = {"members": found.members, "name_policy": found.name_policy, "merged_names": found.merged_names}
        self._rows.write(keys.row_for_members(group.id), json.dumps(told), group.id, found.epochs)
        return found


def read_membership(connection: Connection, group: Snapshot) -> Membership:
    """Straight from the tables. Raises NotFound when the group is gone."""
    row = connection.execute(_QUERY, {"id": group.id}).first()
    if row is None:
        raise unknown_repository(group.name)
    return Membership(Epochs._make(row[:4]), tuple(row.members), row.name_policy, tuple(row.merged_names))


def _revived(value: str, epochs: Epochs) -> Membership | None:
    try:
        told: Any = json.loads(value)
        return Membership(epochs, tuple(told["members"]), told["name_policy"], tuple(told["merged_names"]))
    except (KeyError, TypeError, ValueError):
        # Written by a release with other fields.
        return None


_QUERY = text(
    "select r.metadata_epoch, r.authorization_epoch, r.content_epoch, r.members_epoch, r.settings ->> 'name_policy' as name_policy, "
    "coalesce(r.settings -> 'merged_names', '[]'::jsonb) as merged_names, array(select m.member_id from arkvory_members m "
    "join arkvory_repositories o on o.id = m.member_id and o.deleted_at is null where m.group_id = r.id order by m.position) as members "
    "from arkvory_repositories r where r.id = :id and r.deleted_at is null"
)
