"""Whether anything may be stored, replaced or deleted at all; asked of the database by every such write (C10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from app.cache.installation import read_switches
from app.database.statements import text
from app.errors import ReadOnly


def settings_for_writing(connection: Connection, repository_id: int) -> Mapping[str, Any]:
    """The repository's settings. Raises ReadOnly while the whole installation is."""
    row = connection.execute(
        text("select r.settings, i.read_only from arkvory_repositories r cross join arkvory_installation i where r.id = :id"),
        {"id": repository_id},
    ).one()
    _check(row.read_only)
    settings: Mapping[str, Any] = row.settings
    return settings


def require_writable(connection: Connection) -> None:
    """Raises ReadOnly."""
    _check(read_switches(connection).read_only)


def _check(read_only: bool) -> None:
    if read_only:
        raise ReadOnly("this server is read only for the time being: nothing is stored, replaced or deleted", retry_after=60)
