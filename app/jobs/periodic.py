"""What happens every so often in each web process: leases of uploads, doubts; and in one of them: cleanup."""

from __future__ import annotations

import logging
from collections.abc import Callable

import gevent

from app.database.outage import outage
from app.errors import ArkvoryError
from app.http.parts import Parts
from app.repository.cleanup import run_quietly
from app.repository.uses import FLUSH_SECONDS

log = logging.getLogger(__name__)

DOUBT_SECONDS = 1.0
PLACE_SECONDS = 8.0


class PeriodicJobs:
    """A greenlet for each; one that fails is logged and goes on with its next turn."""

    def __init__(self, house: Parts) -> None:
        settings = house.settings
        self._house = house
        self._jobs: list[tuple[float, Callable[[], None]]] = [
            (DOUBT_SECONDS, house.transactions.settle_doubts),
            (settings.upload_lease_seconds / 4, house.admission.renew_leases),
            (PLACE_SECONDS, house.places.renew),
            (FLUSH_SECONDS, house.uses.flush),
        ]
        self._cleaning: list[gevent.Greenlet] = []
        self._greenlets: list[gevent.Greenlet] = []

    def _clean(self) -> None:
        """On a single node always; in a cluster unless another process does."""
        house = self._house
        if house.leases is None:
            run_quietly(house.cleanup)
        else:
            house.leases.run("cleanup", lambda: run_quietly(house.cleanup), house.settings.cleanup_seconds)

    def add(self, seconds: float, job: Callable[[], None]) -> None:
        """One more, before `start`."""
        self._jobs.append((seconds, job))

    def start(self) -> None:
        self._greenlets = [gevent.spawn(_every, seconds, job) for seconds, job in self._jobs]
        self._cleaning = [gevent.spawn(_every, self._house.settings.cleanup_seconds, self._clean)]

    def begin_nothing(self) -> None:
        """At the beginning of a graceful stop: the cleanup ends. What running requests hold, up to the last one, is still renewed."""
        gevent.killall(self._cleaning, timeout=5)

    def stop(self) -> None:
        """Ends each where it stands; transactions roll back."""
        gevent.killall([*self._greenlets, *self._cleaning], timeout=5)


def _every(seconds: float, job: Callable[[], None]) -> None:
    while True:
        gevent.sleep(seconds)
        try:
            job()
        except ArkvoryError as error:
            outage.consequence(log, "a periodic job is put off: %s", error)
        except Exception:
            log.exception("a periodic job failed")
