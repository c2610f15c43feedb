"""Snapshots of repositories: the immutable description that the online check and the public flag read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import Connection, Row

from app.cache import keys
from app.cache.rows import Rows
from app.cache.store import Cache
from app.cache.view import Epochs
from app.database.engines import Database
from app.database.statements import text
from app.errors import NotFound

FACTS = (
    "r.id, r.tenant, r.name, r.format, r.kind, r.status, r.public, r.upstream_url, r.caching_allowed, r.creator_id, "
    "(select cast(jsonb_object_agg(s.key, s.value) as text) from jsonb_each(r.settings) s "
    "where r.kind = 'proxy' and s.key in ('minimum_age', 'minimum_age_exceptions', 'allow', 'block', 'version_policy')) as restrictions"
)
EPOCHS = "r.metadata_epoch, r.authorization_epoch, r.content_epoch, r.members_epoch"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository as one query read it; never holds a credential."""

    id: int
    tenant: str
    name: str
    format: str
    kind: str
    status: str
    public: bool
    upstream_url: str | None
    caching_allowed: bool
    creator_id: int | None
    # The settings by which a proxy withholds (`repository/withholding.py`), as JSON; null: it has none of them.
    restrictions: str | None
    epochs: Epochs


_FIELDS = tuple(each.name for each in fields(Snapshot) if each.name != "epochs")


def snapshot_of(row: Row[Any]) -> Snapshot:
    """From a row that begins with `FACTS` and goes on with `EPOCHS`."""
    facts = dict(zip(_FIELDS, row, strict=False))
    return Snapshot(**facts, epochs=Epochs._make(row[len(_FIELDS) : len(_FIELDS) + 4]))


class Snapshots:
    """The shared region: this process's memory, then a cache row, then the repository's row."""

    def __init__(self, database: Database, cache: Cache) -> None:
        self._database = database
        self._cache = cache
        self._rows = Rows(database, cache, "snapshot")

    def get(self, tenant: str, name: str) -> Snapshot:
        """Raises NotFound, which is never cached: a name may be taken at any moment."""
        kept: Snapshot | None = self._cache.snapshots.get(keys.for_snapshot(tenant, name))
        if kept is not None and self._is_current(kept):
            return kept
        return self._read(tenant, name)

    def of(self, repository_ids: Sequence[int]) -> Mapping[int, Snapshot]:
        """Of repositories that are known by their ids, those that are still there; what is not in memory is read by one statement."""
        found: dict[int, Snapshot] = {}
        for repository_id in repository_ids:
            kept: Snapshot | None = self._cache.snapshots.get(keys.for_snapshot_of(repository_id))
            if kept is not None and self._is_current(kept):
                found[repository_id] = kept
        missing = [each for each in repository_ids if each not in found]
        if missing:
            with self._database.read() as connection:
                read = read_snapshots(connection, missing)
            for snapshot in read.values():
                self._keep(keys.for_snapshot_of(snapshot.id), snapshot)
            found.update(read)
        return found

    def keeps(self, tenant: str, name: str) -> bool:
        """Whether the next read would take the snapshot from memory; changes nothing, and is counted nowhere."""
        kept: Snapshot | None = self._cache.snapshots.peek(keys.for_snapshot(tenant, name))
        return kept is not None and self._is_current(kept)

    def _is_current(self, kept: Snapshot) -> bool:
        """C3: below the view it is a miss, wherever it came from; C2 and C5 likewise."""
        view = self._cache.view.repository(kept.id)
        return (
            kept.epochs.metadata >= view.metadata
            and kept.epochs.authorization >= view.authorization
            and kept.epochs.members >= view.members
            and self._cache.may_keep(kept.id)
            and not self._cache.is_void(kept.id)
        )

    def _read(self, tenant: str, name: str) -> Snapshot:
        snapshot = self._from_row(tenant, name) or self._from_repository(tenant, name)
        self._keep(keys.for_snapshot(tenant, name), snapshot)
        return snapshot

    def _keep(self, key: Any, snapshot: Snapshot) -> None:
        former = self._cache.view.raise_repository(snapshot.id, snapshot.epochs)
        if former is not None:
            self._cache.drop_repository(snapshot.id)
        if self._is_keepable(snapshot):
            self._cache.was_read_again(snapshot.id)
            self._cache.snapshots.put(key, snapshot, tags=(keys.tag_of_repository(snapshot.id),))

    def _is_keepable(self, snapshot: Snapshot) -> bool:
        view = self._cache.view.repository(snapshot.id)
        return self._cache.may_keep(snapshot.id) and (
            snapshot.epochs.metadata >= view.metadata and snapshot.epochs.authorization >= view.authorization
        )

    def _from_row(self, tenant: str, name: str) -> Snapshot | None:
        condition, values = "r.tenant = :tenant and r.name = :name", {"tenant": tenant, "name": name}
        found = self._rows.read(keys.row_for_snapshot(tenant, name), condition, values)
        return None if found is None else _revived(*found)

    def _from_repository(self, tenant: str, name: str) -> Snapshot:
        with self._database.read() as connection:
            snapshot = read_snapshot(connection, tenant, name)
        self._write_row(snapshot)
        return snapshot

    def _write_row(self, snapshot: Snapshot) -> None:
        facts = asdict(snapshot)
        facts.pop("epochs")
        self._rows.write(keys.row_for_snapshot(snapshot.tenant, snapshot.name), json.dumps(facts), snapshot.id, snapshot.epochs)


def unknown_repository(name: str) -> NotFound:
    """The same words for what is not there and for what the caller may not know of."""
    return NotFound(f"there is no repository {name!r} at this address, or you may not know of it")


def other_format(snapshot: Snapshot) -> NotFound:
    """For who may know of it: it is not where they look for it."""
    return NotFound(f"repository {snapshot.name!r} is of the format {snapshot.format}: it is not at this address")


def read_snapshot(connection: Connection, tenant: str, name: str) -> Snapshot:
    """Straight from the repository's row. Raises NotFound."""
    row = connection.execute(
        text(f"select {FACTS}, {EPOCHS} from arkvory_repositories r where r.tenant = :tenant and r.name = :name and r.deleted_at is null"),
        {"tenant": tenant, "name": name},
    ).first()
    if row is None:
        raise unknown_repository(name)
    return snapshot_of(row)


def read_snapshots(connection: Connection, repository_ids: Sequence[int]) -> Mapping[int, Snapshot]:
    """Those of these repositories that are there."""
    rows = connection.execute(
        text(f"select {FACTS}, {EPOCHS} from arkvory_repositories r where r.id = any(:ids) and r.deleted_at is null"),
        {"ids": list(repository_ids)},
    )
    return {row.id: snapshot_of(row) for row in rows}


def _revived(value: str, epochs: Epochs) -> Snapshot | None:
    try:
        return Snapshot(**json.loads(value), epochs=epochs)
    except (TypeError, ValueError):
        # Written by a release with other fields.
        return None
