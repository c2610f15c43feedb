"""The switches of the whole installation, known from memory under the installation's epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from app.cache import keys
from app.cache.store import Cache
from app.database.engines import Database
from app.database.statements import text


@dataclass(frozen=True, slots=True)
class Switches:
    """As one query read them: may somebody without a login do anything, is all that is stored frozen, and the epoch of both."""

    epoch: int
    anonymous: bool
    read_only: bool


class Installation:
    """Warm, the switches cost no statement: they count until the epoch rises."""

    def __init__(self, database: Database, cache: Cache) -> None:
        self._database = database
        self._cache = cache

    def switches(self) -> Switches:
        """Those that a decision may rest on; their epoch is the one that it is made with (C8). Raises Unavailable."""
        kept: Switches | None = self._cache.installation.get(keys.SWITCHES)
        if kept is not None and kept.epoch >= self._cache.view.installation and not self._cache.doubts.installation:
            return kept
        with self._database.read() as connection:
            found = read_switches(connection)
        self._cache.observe_installation(found.epoch)
        # C3: under the epoch that the query itself read; one that is below the view is not used above.
        self._cache.installation.put(keys.SWITCHES, found)
        return found

    def hosts(self) -> Mapping[str, str]:
        """Repositories by the host names that mean them, under the installation's epoch too. Raises Unavailable."""
        # M6: a path is changed by them before anything else is asked.
        self._cache.require_synced()
        kept: tuple[int, Mapping[str, str]] | None = self._cache.installation.get(keys.HOSTS)
        if kept is not None and kept[0] >= self._cache.view.installation and not self._cache.doubts.installation:
            return kept[1]
        with self._database.read() as connection:
            epoch, hosts = connection.execute(_HOSTS).one()
        self._cache.observe_installation(epoch)
        self._cache.installation.put(keys.HOSTS, (epoch, hosts))
        return dict(hosts)


_HOSTS = text(
    "select i.epoch, (select coalesce(jsonb_object_agg(r.host, r.name), '{}'::jsonb) from arkvory_repositories r "
    "where r.tenant = 'default' and r.host is not null and r.deleted_at is null) from arkvory_installation i where i.id = 1"
)


def read_switches(connection: Connection) -> Switches:
    """Straight from the row (C10)."""
    return Switches(*connection.execute(text("select epoch, anonymous, read_only from arkvory_installation where id = 1")).one())
