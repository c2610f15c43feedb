"""Jobs of the whole cluster, one runner at a time (DESIGN 4): a row says who runs it, and until when nobody else may.

By the database's clock. The runner renews its row while the job runs; one that dies, hangs or is cut off loses it after half a minute.
A job that ended leaves the row in its name for the rest of its interval, so that the cluster runs it as often as a single node does.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from uuid import uuid4

import gevent

from app.database.clock import now
from app.database.engines import Database
from app.database.greenlets import end, is_told_to_end, to_the_end
from app.database.statements import text
from app.errors import ArkvoryError

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
RENEW_SECONDS = 8.0
ASK_SECONDS = 0.15
# No lease is that long: its holder wrote it before the database's clock was set back. (Who rests may rest for longer.)
BEYOND = "clock_timestamp() + interval '2 minutes'"
# Of the interval, in which nobody begins again.
RESTING = 0.9


def short(key: str) -> str:
    """For tables: keys of clients are of any length, and name addresses and users."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


class Leases:
    """Those of one process; `label` names it for whoever looks into the table."""

    def __init__(self, database: Database, label: Callable[[], str]) -> None:
        self._database = database
        self._label = label
        # Another process that goes by the same name later is another holder.
        self._incarnation = uuid4().hex[:12]
        # Of the jobs that run here: until when nobody else can have their leases.
        self._good_until: dict[str, float] = {}

    def holds(self, name: str) -> bool:
        """Whether a job that runs here may go on: by a clock that counts suspension, so that one that stood still knows it at once."""
        return now() < self._good_until.get(name, 0.0)

    def run(self, name: str, job: Callable[[], None], every_seconds: float) -> bool:
        """Run the job, unless another process does or did so within `every_seconds`; whether it ran.

        It ends where it stands when the lease is lost. What goes wrong in it is its own to log. Raises ArkvoryError when the
        lease cannot be asked for.
        """
        holder = f"{self._label()} {self._incarnation}"
        began = now()
        if not self._take(name, holder, LEASE_SECONDS):
            return False
        self._good_until[name] = began + LEASE_SECONDS
        working = gevent.spawn(job)
        try:
            self._keep(name, holder, working)
        finally:
            to_the_end(lambda: self._end(name, holder, working, RESTING * every_seconds - (now() - began)))
        return True

    def _end(self, name: str, holder: str, working: gevent.Greenlet, rest_seconds: float) -> None:
        ended = working.ready()
        end(working)
        self._good_until.pop(name, None)
        self._let_go(name, holder, max(0.0, rest_seconds) if ended else 0.0)

    @contextlib.contextmanager
    def hold(self, name: str, seconds: float, wait_seconds: float) -> Iterator[bool]:
        """Have the name to oneself inside, renewed as long as that takes; false when another holder kept it for longer than the wait.

        One that dies loses it after `seconds`. Waiting holds no connection. Raises ArkvoryError when it cannot be asked for.
        """
        holder = f"{self._label()} {self._incarnation} {uuid4().hex[:8]}"
        deadline = time.monotonic() + wait_seconds
        try:
            while not (held := self._take(name, holder, seconds)) and time.monotonic() < deadline:
                gevent.sleep(ASK_SECONDS)
        except BaseException as error:
            if is_told_to_end(error):
                # Its COMMIT may have been through.
                to_the_end(lambda: self._drop(name, holder))
            raise
        renewing = gevent.spawn(self._renew, name, holder, seconds) if held else None
        try:
            yield held
        finally:
            if renewing is not None:
                to_the_end(partial(self._end_hold, name, holder, renewing))

    def _end_hold(self, name: str, holder: str, renewing: gevent.Greenlet) -> None:
        end(renewing)
        self._drop(name, holder)

    def _renew(self, name: str, holder: str, seconds: float) -> None:
        while True:
            gevent.sleep(seconds / 3)
            try:
                if not self._take(name, holder, seconds):
                    log.warning("%s goes on elsewhere too: this process was silent for too long", name)
                    return
            except ArkvoryError as error:
                log.warning("the lease of %s could not be renewed: %s", name, error)

    def _drop(self, name: str, holder: str) -> None:
        """And those of the kind (up to the slash) whose holders died, which nobody may ever ask for again."""
        try:
            with self._database.write() as connection:
                # Whoever asks for it holds its row for a moment: that is waited for.
                connection.execute(_DROP, {"name": name, "holder": holder})
                connection.execute(_DROP_STRAYS, {"kind": name.partition("/")[0] + "/"})
        except ArkvoryError as error:
            log.warning("the lease of %s is left to run out: %s", name, error)

    def _keep(self, name: str, holder: str, working: gevent.Greenlet) -> None:
        while not working.ready():
            working.join(RENEW_SECONDS)
            if working.ready():
                return
            asked = now()
            try:
                if not self._take(name, holder, LEASE_SECONDS):
                    log.warning("%s goes on elsewhere: this process was silent for too long", name)
                    self._good_until.pop(name, None)
                    return
                self._good_until[name] = asked + LEASE_SECONDS
            except ArkvoryError as error:
                log.warning("the lease of %s could not be renewed: %s", name, error)
                if not self.holds(name):
                    return

    def _take(self, name: str, holder: str, seconds: float) -> bool:
        """Until so many seconds from now; again by whoever has it."""
        statement = text(
            "insert into arkvory_leases as l (name, holder, until) "
            "values (:name, :holder, clock_timestamp() + make_interval(secs => :seconds)) "
            "on conflict (name) do update set holder = excluded.holder, until = excluded.until "
            f"where l.until < clock_timestamp() or (l.until > {BEYOND} and right(l.holder, 2) <> ' -') or l.holder = excluded.holder "
            "returning 1"
        )
        with self._database.write() as connection:
            return connection.execute(statement, {"name": name, "holder": holder, "seconds": seconds}).first() is not None

    def _let_go(self, name: str, holder: str, rest_seconds: float) -> None:
        """Nobody begins again for `rest_seconds`, this process neither."""
        statement = text(
            "update arkvory_leases set holder = :rested, until = clock_timestamp() + make_interval(secs => :rest) "
            "where name = :name and holder = :holder"
        )
        # Who ran it last, but no holder that anybody is.
        rested = f"{self._label()} -"
        try:
            with self._database.write() as connection:
                connection.execute(statement, {"name": name, "holder": holder, "rested": rested, "rest": rest_seconds})
        except ArkvoryError as error:
            log.warning("the lease of %s is left to run out: %s", name, error)


_DROP = text("delete from arkvory_leases where name = :name and holder = :holder")
_DROP_STRAYS = text(
    "delete from arkvory_leases where name in (select name from arkvory_leases where starts_with(name, :kind) "
    "and until < clock_timestamp() - interval '1 minute' for update skip locked)"
)
