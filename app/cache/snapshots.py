"""Snapshots of repositories: the immutable description that the online check and the public flag read."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError

from app.cache import keys
from app.cache.store import Cache
from app.cache.view import Epochs
from app.database.engines import CACHE_ROW_WAIT_MS, Database, statements_within
from app.errors import ArkvoryError, NotFound

log = logging.getLogger(__name__)

ROW_LIFETIME_SECONDS = 600
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

    def get(self, tenant: str, name: str) -> Snapshot:
        """Raises NotFound, which is never cached: a name may be taken at any moment."""
        kept: Snapshot | None = self._cache.snapshots.get(keys.for_snapshot(tenant, name))
        if kept is not None and self._is_current(kept):
            return kept
        return self._read(tenant, name)

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
        former = self._cache.view.raise_repository(snapshot.id, snapshot.epochs)
        if former is not None:
            self._cache.drop_repository(snapshot.id)
        if self._is_keepable(snapshot):
            self._cache.was_read_again(snapshot.id)
            self._cache.snapshots.put(keys.for_snapshot(tenant, name), snapshot, tags=(keys.tag_of_repository(snapshot.id),))
        return snapshot

    def _is_keepable(self, snapshot: Snapshot) -> bool:
        view = self._cache.view.repository(snapshot.id)
        return self._cache.may_keep(snapshot.id) and (
            snapshot.epochs.metadata >= view.metadata and snapshot.epochs.authorization >= view.authorization
        )

    def _from_row(self, tenant: str, name: str) -> Snapshot | None:
        """C4: a cache row counts only when its epochs equal the repository's, read in the same statement."""
        statement = text(
            f"select {EPOCHS}, c.value from arkvory_cache_rows c join arkvory_repositories r on r.id = c.repository_id "
            "where c.region = 'snapshot' and c.key = :key and c.expires_at > now() and r.tenant = :tenant and r.name = :name "
            "and r.deleted_at is null and c.metadata_epoch = r.metadata_epoch "
            "and c.authorization_epoch = r.authorization_epoch and c.members_epoch = r.members_epoch"
        )
        try:
            with self._database.request.connect() as connection, statements_within(connection, CACHE_ROW_WAIT_MS):
                row = connection.execute(
                    statement, {"key": keys.row_for_snapshot(tenant, name), "tenant": tenant, "name": name}
                ).first()
        except DBAPIError as error:
            self._count_row_error(error)
            return None
        if row is None:
            return None
        return _revived(row.value, Epochs._make(row[:4]))

    def _from_repository(self, tenant: str, name: str) -> Snapshot:
        with self._database.read() as connection:
            snapshot = read_snapshot(connection, tenant, name)
        self._write_row(snapshot)
        return snapshot

    def _write_row(self, snapshot: Snapshot) -> None:
        """In a transaction of its own; whatever it writes is harmless, since it is only used while its epochs are true."""
        facts = asdict(snapshot)
        facts.pop("epochs")
        statement = text(
            "insert into arkvory_cache_rows (region, key, value, repository_id, metadata_epoch, authorization_epoch, members_epoch, "
            "expires_at) values ('snapshot', :key, :value, :id, :m, :a, :g, now() + make_interval(secs => :lifetime)) "
            "on conflict (region, key) do update set value = excluded.value, repository_id = excluded.repository_id, "
            "metadata_epoch = excluded.metadata_epoch, authorization_epoch = excluded.authorization_epoch, "
            "members_epoch = excluded.members_epoch, expires_at = excluded.expires_at"
        )
        values = {
            "key": keys.row_for_snapshot(snapshot.tenant, snapshot.name),
            "value": json.dumps(facts),
            "id": snapshot.id,
            "m": snapshot.epochs.metadata,
            "a": snapshot.epochs.authorization,
            "g": snapshot.epochs.members,
            "lifetime": ROW_LIFETIME_SECONDS,
        }
        try:
            with self._database.write() as connection, statements_within(connection, CACHE_ROW_WAIT_MS):
                connection.execute(statement, values)
        except (DBAPIError, ArkvoryError) as error:
            self._count_row_error(error)

    def _count_row_error(self, error: Exception) -> None:
        """C6: snapshots then live in memory alone, everything else works."""
        self._cache.row_errors += 1
        log.warning("cache rows cannot be used: %s", error)


def unknown_repository(name: str) -> NotFound:
    """The same words for what is not there and for what the caller may not know of."""
    return NotFound(f"there is no repository {name!r} at this address, or you may not know of it")


def read_snapshot(connection: Connection, tenant: str, name: str) -> Snapshot:
    """Straight from the repository's row. Raises NotFound."""
    row = connection.execute(
        text(f"select {FACTS}, {EPOCHS} from arkvory_repositories r where r.tenant = :tenant and r.name = :name and r.deleted_at is null"),
        {"tenant": tenant, "name": name},
    ).first()
    if row is None:
        raise unknown_repository(name)
    return snapshot_of(row)


def _revived(value: str, epochs: Epochs) -> Snapshot | None:
    try:
        return Snapshot(**json.loads(value), epochs=epochs)
    except (TypeError, ValueError):
        # Written by a release with other fields.
        return None
