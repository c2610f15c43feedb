"""The loop of a process in cluster mode: mailbox every 200 ms, probe every 5 s, heartbeat every 10 s (DESIGN 4).

One greenlet with a connection of its own. It survives whatever happens to PostgreSQL: what fails is tried again with a fresh
connection at its next turn. Reads from memory ask `require_synced` first (M6): when the last good poll or probe lies too far back (the
process was stopped, cut off, starved), whoever asks reads mail and epochs itself, or answers that it cannot tell.

What is heard goes to a `Listener`, the cache: it does what it does after a commit of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gevent
from gevent.lock import RLock
from sqlalchemy import Connection

from app.cluster import mailbox, membership, probe
from app.cluster.mailbox import Letter
from app.database.clock import now
from app.database.delays import Delays
from app.database.engines import Database
from app.database.greenlets import end
from app.database.outage import outage
from app.database.pools import database_errors, destroy
from app.errors import ArkvoryError, DatabaseAway

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
PROBE_SECONDS = 5.0
# Of the beginning of the last good one, when memory may no longer be believed (M6).
OLDEST_POLL_SECONDS = 5.0
OLDEST_PROBE_SECONDS = 6.0
# A poll or a probe that takes longer has failed.
LONGEST_TURN_SECONDS = 2.0


class Listener(Protocol):
    """Whose memory is kept right."""

    def hear(self, body: Any) -> None:
        """Do what a message says. Whatever it raises rejects the message."""

    def believed(self) -> probe.Believed:
        """The numbers of all that is cached."""

    def correct(self, found: probe.Differences) -> int:
        """Take larger numbers as messages without paths; how many of them no message had told."""

    def keep(self, keeps: bool) -> None:
        """Whether what is read may be kept (M7); what was kept goes when it may not."""


class Loop:
    """One for each process; `name` and `slot` say which one it is (cluster/instance.py), `settings` what is to be the same in all."""

    def __init__(
        self, database: Database, listener: Listener, version: str, settings: Mapping[str, str], patience_seconds: float = 0.0
    ) -> None:
        self._database = database
        self._listener = listener
        self._version = version
        self._settings = settings
        # ARKVORY_UNSYNCED_READS_SECONDS: for so long memory is believed at least.
        self._oldest_poll = max(OLDEST_POLL_SECONDS, patience_seconds)
        self._oldest_probe = max(OLDEST_PROBE_SECONDS, patience_seconds)
        self._greenlet: gevent.Greenlet | None = None
        self._connection: Connection | None = None
        # web or worker, for whoever looks who is there.
        self.kind = "web"
        self._identify: Callable[[], tuple[str, int]] = lambda: ("", 0)
        self._registration: membership.Registration | None = None
        self._registered_at = 0.0
        self._keeps = False
        # One reader at a time synchronizes; those that wait find the work done.
        self._turn = RLock()
        self._good_until = 0.0
        self._failed_at = -1.0
        self.last_poll = 0.0
        self.last_probe = 0.0
        self.last_heartbeat = 0.0
        self.online = False
        self.corrections = 0
        self.rejections = 0
        self.dead_letters = 0
        self.incarnations = 0
        # From the sending of a message to the moment it was done (M8).
        self.delays = Delays()

    @property
    def instance_id(self) -> int | None:
        """The row of this incarnation; null before it registered."""
        return self._registration.id if self._registration else None

    @property
    def keeps(self) -> bool:
        """False while transactions run that may not know of this process (M7)."""
        return self._keeps

    # -- the process

    def start(self, identify: Callable[[], tuple[str, int]]) -> None:
        """Register and begin; `identify` tells name and slot. Raises DatabaseAway when PostgreSQL cannot be asked."""
        self._identify = identify
        self._listener.keep(False)
        if not self._turn_of(self._begin_anew):
            raise DatabaseAway("the database did not let this process join the cluster")
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """Within a second: no more polls, and no more mail where PostgreSQL answers."""
        if self._greenlet is not None:
            end(self._greenlet)
            self._greenlet = None
        self._close()
        registration, self._registration, self.online = self._registration, None, False
        if registration is not None:
            try:
                with gevent.Timeout(1, False), self._database.session.connect() as connection, database_errors():
                    membership.leave(connection, registration.id)
            except ArkvoryError as error:
                log.info("this process leaves without a word: %s", error)

    # -- what readers ask

    def require_synced(self) -> None:
        """M6. Raises DatabaseAway when memory is too old to be believed and the database cannot be asked."""
        if now() >= self._good_until:
            self._synchronize_now()

    def catch_up(self) -> None:
        """Hear now of everything that is committed. Raises DatabaseAway."""
        with self._turn:
            if not self._probed_by_itself():
                raise DatabaseAway("the database cannot be asked what else has changed; try again shortly")

    def _synchronize_now(self) -> None:
        asked = now()
        with self._turn:
            # A crowd does not compare one by one, nor try one by one what failed.
            if now() < self._good_until or self.last_probe > asked:
                return
            if self._failed_at < asked and self._probed_by_itself():
                return
        raise DatabaseAway("what this process remembers may be out of date, and the database cannot be asked; try again shortly")

    def _probed_by_itself(self) -> bool:
        """By a connection of the request pool: the loop's own may hang."""
        began = now()
        # Of gevent's own kind: SQLAlchemy then knows that the connection was interrupted, and lets it go.
        too_long = gevent.Timeout(LONGEST_TURN_SECONDS)
        try:
            with too_long, self._database.read() as connection:
                self._probe(connection)
            return True
        except (ArkvoryError, gevent.Timeout) as error:
            if isinstance(error, gevent.Timeout) and error is not too_long:
                raise
            if self.last_probe >= began:
                log.warning("cluster: the mailbox cannot be read, the numbers were: %s", error)
                return True
            self._failed_at = now()
            outage.consequence(log, "cluster: memory is out of date and cannot be compared: %s", error)
            return False

    # -- turns

    def _run(self) -> None:
        due = {self._poll: 0.0, self._probe: now() + PROBE_SECONDS, self._beat: now() + membership.HEARTBEAT_SECONDS}
        every = {self._poll: POLL_SECONDS, self._probe: PROBE_SECONDS, self._beat: membership.HEARTBEAT_SECONDS}
        while True:
            for job, at in due.items():
                began = now()
                if began >= at:
                    good = self._turn_of(job)
                    # From beginning to beginning; a heartbeat that failed is written again soon.
                    due[job] = max(began + every[job], now()) if good else now() + min(every[job], 1.0)
            gevent.sleep(max(0.0, min(due.values()) - now()))

    def _turn_of(self, job: Callable[[Connection], None]) -> bool:
        """False when it failed; the connection is then a fresh one the next time."""
        try:
            with gevent.Timeout(LONGEST_TURN_SECONDS, DatabaseAway("the database did not answer in time")), database_errors():
                if self._connection is None:
                    self._connection = self._database.session.connect()
                job(self._connection)
            return True
        except ArkvoryError as error:
            outage.consequence(log, "cluster: %s failed: %s", error, job.__name__.strip("_"))
        except Exception:
            log.exception("cluster: %s failed", job.__name__.strip("_"))
        self._close()
        if job == self._beat:
            self._set_online(False)
        return False

    def _poll(self, connection: Connection) -> None:
        if self._registration is None:
            # Its last try failed half way.
            self._begin_anew(connection)
        self._empty_mailbox(connection)
        if not self._keeps:
            self._look_at_horizon(connection)

    def _empty_mailbox(self, connection: Connection) -> None:
        """At least a part of it: one that is very full is not left for the next turn as long as this one may last."""
        deadline = now() + LONGEST_TURN_SECONDS / 2
        while (began := now()) < deadline:
            if self._read_mail(connection):
                self.last_poll = began
                self._count_good()
                return

    def _read_mail(self, connection: Connection) -> bool:
        """True when the mailbox was read to its end."""
        if self._registration is None:
            # It has left, or is about to begin anew: there is no mailbox, and the numbers were read.
            return True
        letters = mailbox.take(connection, self._registration.id)
        taken = now()
        done = [letter for letter in letters if self._heard(connection, letter, taken)]
        if done:
            mailbox.acknowledge(connection, done)
        return len(letters) < mailbox.TAKEN_AT_ONCE

    def _heard(self, connection: Connection, letter: Letter, taken: float) -> bool:
        try:
            self._listener.hear(letter.body)
        except Exception as error:
            log.exception("a message was rejected, attempt %d", letter.attempts + 1)
            self.rejections += 1
            self.dead_letters += mailbox.reject(connection, letter, self.label, f"{type(error).__name__}: {error}")
            return False
        self.delays.observe(letter.age + now() - taken)
        return True

    def _probe(self, connection: Connection) -> None:
        """M5: the numbers first, then the mail, then the comparison, so that what a message tells is no correction."""
        with self._turn:
            began = now()
            found = probe.compare(connection, self._listener.believed())
            try:
                if self._read_mail(connection):
                    self.last_poll = began
            finally:
                # Whatever keeps it from its mail: the numbers are those of the database.
                self._correct(found)
                self.last_probe = began
                self._count_good()

    def _correct(self, found: probe.Differences) -> None:
        corrections = self._listener.correct(found)
        self.corrections += corrections
        if corrections:
            log.warning("cluster: the probe found %d change(s) that no message had told", corrections)

    def _count_good(self) -> None:
        self._good_until = min(self.last_poll + self._oldest_poll, self.last_probe + self._oldest_probe)

    # -- membership

    @property
    def label(self) -> str:
        """`vm1/0`."""
        return "{}/{}".format(*self._identify())

    def _beat(self, connection: Connection) -> None:
        began = now()
        # By this clock too: a heartbeat that was given up may have been written after all, later than it claims to be.
        silent = began - self.last_heartbeat > membership.OLDEST_HEARTBEAT_SECONDS
        if not silent and self._registration is not None and membership.heartbeat(connection, self._registration.id):
            self.last_heartbeat = began
            self._set_online(True)
        else:
            log.warning("cluster: this process was silent for too long to be sure of its mail; it begins anew with empty memory")
            self._begin_anew(connection)

    def _begin_anew(self, connection: Connection) -> None:
        """A new incarnation, with empty memory (M6); it keeps nothing before M7 allows it."""
        self._keeps = False
        self._listener.keep(False)
        former, self._registration = self._registration, None
        name, slot = self._identify()
        self._registration = membership.register(connection, name, slot, self.kind, self._version, self._settings)
        self._registered_at = self.last_heartbeat = self.last_poll = self.last_probe = now()
        self.incarnations += 1
        self._count_good()
        self._set_online(True)
        if former is not None:
            membership.leave(connection, former.id)
        self._look_at_horizon(connection)

    def _look_at_horizon(self, connection: Connection) -> None:
        assert self._registration is not None
        waited = now() - self._registered_at
        if membership.is_past(connection, self._registration.horizon) or waited > membership.HORIZON_WAIT_SECONDS:
            self._keeps = True
            self._listener.keep(True)

    def _set_online(self, online: bool) -> None:
        if online != self.online:
            log.log(logging.INFO if online else logging.WARNING, "cluster: %s", "online" if online else "not online: living by the probe")
        self.online = online

    def _close(self) -> None:
        """End the connection: never back to the pool, it may be in the middle of something."""
        connection, self._connection = self._connection, None
        if connection is not None:
            destroy(connection, "the cluster's connection")
