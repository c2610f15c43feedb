"""What each process does every so often for itself: leases of its uploads and places, doubts, what it counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import gevent

from app.cluster.shares import RENEW_SECONDS, Shares
from app.database.outage import outage
from app.errors import ArkvoryError
from app.http.pacing import Pacing
from app.http.parts import Parts
from app.repository import downloads, uses

log = logging.getLogger(__name__)

DOUBT_SECONDS = 1.0
PLACE_SECONDS = 8.0
# How old the metrics of quotas may be, beside the minute between two checks.
LEVELS_SECONDS = 15.0


class PeriodicJobs:
    """A greenlet for each; one that fails is logged and goes on with its next turn."""

    def __init__(self, house: Parts) -> None:
        settings = house.settings
        self._house = house
        self._jobs: list[tuple[float, Callable[[], None]]] = [
            (DOUBT_SECONDS, house.transactions.settle_doubts),
            (settings.upload_lease_seconds / 4, house.admission.renew_leases),
            (PLACE_SECONDS, house.places.renew),
            (PLACE_SECONDS, house.part_holds.renew),
            (uses.FLUSH_SECONDS, house.uses.flush),
            (downloads.FLUSH_SECONDS, house.downloads.flush),
            (LEVELS_SECONDS, house.quotas.refresh),
        ]
        if house.shares is not None and house.pacing is not None:
            self._jobs.append((RENEW_SECONDS, partial(_renew_share, house.shares, house.pacing)))
        self._greenlets: list[gevent.Greenlet] = []

    def add(self, seconds: float, job: Callable[[], None]) -> None:
        """One more, before `start`."""
        self._jobs.append((seconds, job))

    def start(self) -> None:
        self._greenlets = [gevent.spawn(_every, seconds, job) for seconds, job in self._jobs]

    def stop(self) -> None:
        """Ends each where it stands; transactions roll back."""
        gevent.killall(self._greenlets, timeout=5)


def _renew_share(shares: Shares, pacing: Pacing) -> None:
    shares.renew(pacing.report())


def _every(seconds: float, job: Callable[[], None]) -> None:
    while True:
        gevent.sleep(seconds)
        try:
            job()
        except ArkvoryError as error:
            outage.consequence(log, "a periodic job is put off: %s", error)
        except Exception:
            log.exception("a periodic job failed")
