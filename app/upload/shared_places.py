"""The places of a cluster: the same number for the whole installation, whichever process an upload comes to (DESIGN 5).

A place is a row of `arkvory_leases`, `place/N`. In a process it is handed out as on a single node, fairly and in memory; then it is
taken in the table, under a lock of its own that nothing else is locked after. Whoever finds none free asks again; waiting holds neither
lock nor connection. Those of dead processes come free by themselves.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import gevent

from app.cluster.leases import BEYOND, short
from app.database.engines import Database
from app.database.greenlets import is_told_to_end
from app.database.locks import PLACES
from app.database.statements import text
from app.errors import ArkvoryError
from app.upload.places import Places

log = logging.getLogger(__name__)

ANY = "place/%"
LEASE_SECONDS = 25.0
ASK_SECONDS = 0.2


class SharedPlaces(Places):
    """`total` at once in all processes together, `per_key` for one token, user or address; `label` names this one to people."""

    def __init__(self, database: Database, total: int, per_key: int, wait_seconds: float, label: Callable[[], str]) -> None:
        super().__init__(total, per_key, wait_seconds)
        self._database = database
        self._label = label
        # Names of places by holder. A place that ran out while PostgreSQL was away may be another upload's of this process by now.
        self._taken: dict[str, str] = {}

    @property
    def held(self) -> int:
        return len(self._taken)

    @property
    def waiting(self) -> int:
        """Also those whose turn it is here, while the table has no place for them."""
        return super().waiting + self.used - self.held

    @contextlib.contextmanager
    def take(self, key: str) -> Iterator[None]:
        """Hold a place. Raises TooManyUploads when none came free in time, and DatabaseAway."""
        deadline = time.monotonic() + self._wait_seconds
        with super().take(key):
            holder = f"{uuid4().hex[:12]} {short(key)} {self._label()}"
            name = ANY
            try:
                name = self._taken[holder] = self._wait_for_one(holder, deadline)
                yield
            finally:
                # The client does not wait for it. Whoever is told to end while it asks may have one.
                if self._taken.pop(holder, None) is not None or is_told_to_end(sys.exc_info()[1]):
                    gevent.spawn(self._give_back, holder, name)

    def renew(self) -> None:
        """Called regularly: the uploads of this process go on."""
        if not self._taken:
            return
        with self._database.write() as connection:
            connection.execute(
                text(
                    "update arkvory_leases set until = clock_timestamp() + make_interval(secs => :seconds) "
                    "where name like 'place/%' and holder = any(:holders)"
                ),
                {"seconds": LEASE_SECONDS, "holders": list(self._taken)},
            )

    def _wait_for_one(self, holder: str, deadline: float) -> str:
        while (name := self._ask(holder)) is None:
            if time.monotonic() >= deadline:
                raise self._all_taken()
            gevent.sleep(ASK_SECONDS)
        return name

    def _ask(self, holder: str) -> str | None:
        """The name of a place that is this holder's now; null when all, or all for its key, are taken."""
        with self._database.write() as connection:
            connection.execute(text("select pg_advisory_xact_lock(:c, :o)"), {"c": PLACES[0], "o": PLACES[1]})
            # A statement of its own: it sees what others committed before they gave the lock up.
            return connection.execute(
                text(
                    "with taken as (select name, holder from arkvory_leases where name like 'place/%' and until > clock_timestamp() "
                    f"and until < {BEYOND}) "
                    "insert into arkvory_leases as l (name, holder, until) "
                    "select 'place/' || n, :holder, clock_timestamp() + make_interval(secs => :seconds) from generate_series(1, :total) n "
                    "where 'place/' || n not in (select name from taken) "
                    "and (select count(*) from taken where split_part(holder, ' ', 2) = split_part(:holder, ' ', 2)) < :per_key "
                    "order by n limit 1 "
                    "on conflict (name) do update set holder = excluded.holder, until = excluded.until returning l.name"
                ),
                {"holder": holder, "seconds": LEASE_SECONDS, "total": self.total, "per_key": self.per_key},
            ).scalar_one_or_none()

    def _give_back(self, holder: str, name: str) -> None:
        try:
            with self._database.write() as connection:
                connection.execute(
                    text("delete from arkvory_leases where name like :name and holder = :holder"), {"name": name, "holder": holder}
                )
        except ArkvoryError as error:
            log.warning("%s is left to come free by itself: %s", name, error)
