"""How full quotas and the server's capacity are: from the counters (DESIGN 5), never by a sum over uploads or artifacts.

Once a minute one process compares them with what was found before (`arkvory_quota_levels`). A change is one line in the log, whoever
finds it, and what is at 80 % or above is shown by metrics, by `usage` and by the doctor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from app.database.engines import Database
from app.database.statements import text
from config import Settings

log = logging.getLogger(__name__)

LEVELS = (100, 95, 80)
# In place of a repository's id.
SERVER = 0
CHECK_SECONDS = 60.0


@dataclass(frozen=True)
class Filling:
    """Bytes that are taken or reserved, of a quota; `name` is the repository's, empty for the server."""

    repository_id: int
    name: str
    bytes: int
    quota_bytes: int

    @property
    def level(self) -> int:
        return level_of(self.bytes, self.quota_bytes)

    @property
    def ratio(self) -> float:
        return self.bytes / max(self.quota_bytes, 1)

    @property
    def whose(self) -> str:
        return f"the quota of repository {self.name}" if self.name else "the server's capacity"


def level_of(used: int, quota: int) -> int:
    """The highest of 80, 95 and 100 % that is reached, else 0. A quota of nothing that holds nothing is as it should be."""
    return next((each for each in LEVELS if used * 100 >= quota * each), 0) if used else 0


class Quotas:
    """One for each process; `latest` are those at 80 % or above, as this process read them last."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._capacity = settings.capacity_bytes
        self._database = database
        self.latest: Sequence[Filling] = ()

    def check(self) -> str:
        """Find out, tell the log what has changed since, and say how many are where. Raises DatabaseAway."""
        with self._database.write() as connection:
            found = fillings(connection, self._capacity)
            changed = _note(connection, found)
        for each, before in changed:
            _tell(each, before)
        high = [each for each in found if each.level]
        return f"{len(high)} of {len(found)} at 80 % or above"

    def refresh(self) -> None:
        """Called regularly, for the metrics. Raises DatabaseAway."""
        with self._database.read() as connection:
            self.latest = [Filling(*row) for row in connection.execute(_KNOWN)]


def fillings(connection: Connection, capacity: int | None) -> list[Filling]:
    """Of the server, where it has a capacity, and of all repositories that have a quota."""
    found = [Filling(*row) for row in connection.execute(_FILLINGS)]
    if capacity is None:
        return found
    # As admission counts them.
    used = int(connection.execute(text("select coalesce(sum(bytes), 0) from arkvory_upload_bytes")).scalar_one())
    return [Filling(SERVER, "", used, capacity), *found]


def _note(connection: Connection, found: Sequence[Filling]) -> list[tuple[Filling, int]]:
    """Those that are at another level than before, with that one. Who notes the same at this moment is told of no change."""
    before: Mapping[int, int] = {row.repository_id: row.level for row in connection.execute(_BEFORE)}
    values = {
        "ids": [each.repository_id for each in found if each.level],
        "levels": [each.level for each in found if each.level],
        "bytes": [each.bytes for each in found if each.level],
        "quotas": [each.quota_bytes for each in found if each.level],
    }
    connection.execute(_PUT, values)
    connection.execute(text("delete from arkvory_quota_levels where not (repository_id = any(cast(:ids as bigint[])))"), values)
    return [(each, before.get(each.repository_id, 0)) for each in found if each.level != before.get(each.repository_id, 0)]


def _tell(filling: Filling, before: int) -> None:
    words = f"{filling.bytes} of {filling.quota_bytes} bytes"
    if filling.level > before:
        refused = "; uploads are refused" if filling.level == 100 else ""
        log.warning("%s is at %d %% or above: %s%s", filling.whose, filling.level, words, refused)
    elif filling.level:
        log.info("%s is below %d %% again: %s", filling.whose, before, words)
    else:
        log.info("%s is below 80 %% again: %s", filling.whose, words)


_FILLINGS = text(
    "select r.id, r.name, coalesce(sum(c.bytes) filter (where c.status in ('open', 'published')), 0)::bigint, r.quota_bytes "
    "from arkvory_repositories r left join arkvory_upload_bytes c on c.repository_id = r.id "
    "where r.deleted_at is null and r.quota_bytes is not null group by r.id order by r.id"
)
# Locked: two that check at once do so one after the other.
_BEFORE = text("select repository_id, level from arkvory_quota_levels order by repository_id for update")
_PUT = text(
    "insert into arkvory_quota_levels as l (repository_id, level, bytes, quota_bytes) select * from "
    "unnest(cast(:ids as bigint[]), cast(:levels as integer[]), cast(:bytes as bigint[]), cast(:quotas as bigint[])) "
    "on conflict (repository_id) do update set level = excluded.level, bytes = excluded.bytes, quota_bytes = excluded.quota_bytes, "
    "since = case when l.level = excluded.level then l.since else now() end"
)
_KNOWN = text(
    "select l.repository_id, coalesce(r.name, ''), l.bytes, l.quota_bytes from arkvory_quota_levels l "
    "left join arkvory_repositories r on r.id = l.repository_id and r.deleted_at is null "
    "where r.id is not null or l.repository_id = 0 order by l.repository_id"
)
