"""PostgreSQL is away: said once when it begins, once a minute while it lasts, and once when it is over.

Everything in a process notices at once, several times a second; what fails in consequence is told the first time only.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from sqlalchemy.engine import make_url

from app.errors import ArkvoryError, DatabaseAway
from config import Settings

log = logging.getLogger(__name__)

AGAIN_SECONDS = 60.0


def reason(error: BaseException) -> str:
    """What the driver said, in one line; it names hosts and users, never a password."""
    cause = error.__cause__ if isinstance(error, ArkvoryError) and error.__cause__ is not None else error
    lines = str(getattr(cause, "orig", None) or cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__


class Outage:
    """That of this process; `where` names the server, its database and the setting that says so."""

    def __init__(self) -> None:
        self.where = "PostgreSQL"
        self._since: float | None = None
        self._told_at: float | None = None
        self._consequences: set[str] = set()

    def watch(self, settings: Settings, url: str) -> None:
        """From now on this is the database that is meant."""
        address = make_url(url)
        host = str(address.host or address.query.get("host") or "localhost")
        variables = "ARKVORY_DATABASE_URL" + (" and ARKVORY_DATABASE_SESSION_URL" if settings.database_session_url else "")
        self.where = f"PostgreSQL at {host}:{address.port or 5432}, database {address.database} ({variables})"

    def words(self, error: BaseException) -> str:
        """For the administrator, not for clients."""
        return f"{self.where} does not answer: {reason(error)}"

    def missed(self, error: BaseException) -> None:
        """It could not be asked."""
        now = time.monotonic()
        self._since = self._since or now
        if self._told_at is None or now - self._told_at >= AGAIN_SECONDS:
            self._told_at = now
            log.warning("%s; it is tried again until it does", self.words(error))

    def answered(self) -> None:
        """A statement succeeded."""
        if self._since is None:
            return
        if self._told_at is not None:
            log.warning("PostgreSQL answers again, after %.1f s", time.monotonic() - self._since)
        self._since = self._told_at = None
        self._consequences.clear()

    def consequence(self, logger: logging.Logger, words: str, error: BaseException, *arguments: Any) -> None:
        """Warn that something failed; of what fails only since PostgreSQL is away, the first time. `words` ends with the error's %s."""
        about = words % (*arguments, "")
        if isinstance(error, DatabaseAway):
            self._since = self._since or time.monotonic()
            if about in self._consequences:
                return
            self._consequences.add(about)
        logger.warning("%s%s", about, error)


outage = Outage()
