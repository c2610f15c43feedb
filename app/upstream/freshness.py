"""What a proxy knows of its local copy: where it came from, by which validators, and when it is to be compared again."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row

from app.database.statements import text

MUTABLE_TTL, MISS_TTL = 60, 60

# Of `f` (arkvory_freshness) and `r` (arkvory_repositories), as `freshness_of` reads them. A setting that was shortened counts for copies
# that were compared under a longer one.
COLUMNS = (
    "f.source, f.spelling, f.etag, f.last_modified as upstream_modified, f.immutable, "
    "extract(epoch from f.checked_at)::float8 as checked, extract(epoch from least(f.next_check_at, f.checked_at + "
    f"make_interval(secs => coalesce((r.settings ->> 'mutable_ttl')::float8, {MUTABLE_TTL}))))::float8 as next_check"
)


@dataclass(frozen=True, slots=True)
class Freshness:
    """Times in seconds since 1970. `source` is the upstream's address then; `etag` and `last_modified` are the upstream's own words."""

    source: str
    spelling: str
    etag: str | None
    last_modified: str | None
    immutable: bool
    checked: float
    next_check: float

    def is_due(self, source: str | None, now: float) -> bool:
        """Whether the upstream is to be asked; from another address nothing is fresh."""
        return self.source != source or (not self.immutable and now >= self.next_check)

    @property
    def age(self) -> int:
        """Seconds since the upstream vouched for the copy."""
        return max(0, int(time.time() - self.checked))


@dataclass(frozen=True, slots=True)
class Origin:
    """What a fetch learnt of where its bytes came from; `ttl` in seconds."""

    source: str
    spelling: str
    etag: str | None
    last_modified: str | None
    immutable: bool
    ttl: int


def ttl_of(settings: Mapping[str, Any], name: str, default: int) -> int:
    return int(settings.get(name, default))


def freshness_of(row: Row[Any]) -> Freshness | None:
    """From a row with `COLUMNS`; null where nothing is known."""
    if row.source is None:
        return None
    return Freshness(row.source, row.spelling, row.etag, row.upstream_modified, row.immutable, row.checked, row.next_check)


def http_moment(text: str | None) -> datetime | None:
    """A date as HTTP writes it, in UTC; null for anything else."""
    try:
        return None if text is None else in_utc(email.utils.parsedate_to_datetime(text))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def in_utc(moment: datetime) -> datetime | None:
    """What an upstream says of a time; without a zone UTC is meant. Null where that is before or after all years there are."""
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        return None


def write(connection: Connection, repository_id: int, path: str, origin: Origin) -> None:
    """The copy at the path was compared now."""
    connection.execute(
        text(
            "insert into arkvory_freshness (artifact_id, source, spelling, etag, last_modified, immutable, checked_at, next_check_at) "
            "select a.id, :source, :spelling, :etag, :modified, :immutable, clock_timestamp(), "
            "clock_timestamp() + make_interval(secs => :ttl) from arkvory_artifacts a where a.repository_id = :id and a.path = :path "
            "on conflict (artifact_id) do update set source = excluded.source, spelling = excluded.spelling, etag = excluded.etag, "
            "last_modified = excluded.last_modified, immutable = excluded.immutable, checked_at = excluded.checked_at, "
            "next_check_at = excluded.next_check_at"
        ),
        {
            "id": repository_id, "path": path, "source": origin.source, "spelling": origin.spelling, "etag": origin.etag,
            "modified": origin.last_modified, "immutable": origin.immutable, "ttl": origin.ttl,
        },
    )  # fmt: skip


def move(connection: Connection, repository_id: int, path: str, upload_id: Any, origin: Origin) -> None:
    """The same, of the copy that this upload brought; of another one nothing is said."""
    same = text("select 1 from arkvory_artifacts where repository_id = :id and path = :path and upload_id = :upload for key share")
    if connection.execute(same, {"id": repository_id, "path": path, "upload": upload_id}).first() is not None:
        write(connection, repository_id, path, origin)
