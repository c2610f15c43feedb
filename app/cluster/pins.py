"""Pins (DESIGN 5, W3): blobs that somebody downloads are not deleted, also where an open descriptor does not keep them.

On a local file system the descriptor is the pin, and nothing of this runs. On a shared one another machine's cleanup would take the file
away under the download (NFS: `ESTALE`). Who may delete what, and when:

    a download younger than `age_seconds`         is covered by the grace: its blob was referenced when it began
    from then on, within as long again            its blob is pinned: a row, in batches, by the one pin session of this process
    later without a pin, or with a lost session   it is stopped before its next piece

A row counts as long as its session holds its lock, and for ten seconds after its last sign of life. The process itself believes in it for
five seconds after its last good look, by a clock that counts suspension. So a session that broke has stopped its answers before
anybody's cleanup takes what they were reading.

Rows and not a lock for each blob: PostgreSQL keeps all locks of all sessions in one table of fixed size, and whoever fills it breaks every
other transaction. A process has one lock, however much it pins. (docs/adr/0015-pins-are-rows.md)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator

import gevent
from sqlalchemy import Connection

from app.database.clock import now
from app.database.engines import Database
from app.database.greenlets import end, to_the_end
from app.database.locks import PIN_CLASS
from app.database.outage import outage
from app.database.statements import text
from app.database.writelocks import Held
from app.errors import ArkvoryError, LockLost, PinLost
from app.storage import OpenBlob

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
AT_ONCE = 500
# After a session's last sign of life, when its lock is gone; longer than its process believes in it.
LINGER_SECONDS = 10.0
# Sessions that are as dead as that leave no rows.
KEPT_SECONDS = 60.0


class Download:
    """Bytes of one blob on their way to one client; `session` is what pins it, null while its age needs none."""

    __slots__ = ("_pins", "began", "blob_id", "gone", "session")

    def __init__(self, pins: Pins, blob_id: int) -> None:
        self._pins = pins
        self.blob_id = blob_id
        self.began = now()
        self.session: Held | None = None
        # It was deleted before it could be pinned.
        self.gone = False

    def check(self) -> None:
        """Before each piece. Raises PinLost when its bytes may be another's by now, or nobody's."""
        try:
            if self.session is not None:
                self.session.require()
            elif self.gone or now() - self.began > 2 * self._pins.age_seconds:
                raise LockLost("its blob could not be pinned")
        except LockLost as error:
            self._pins.stopped += 1
            raise PinLost(f"a long download was stopped, since nothing keeps its file any more: {error.message}") from error


class Pins:
    """Those of one process; `label` names it for whoever looks into the table. `stopped` counts downloads."""

    def __init__(self, database: Database, label: Callable[[], str], age_seconds: float) -> None:
        self.age_seconds = age_seconds
        self.stopped = 0
        self._database = database
        self._label = label
        self._downloads: set[Download] = set()
        self._session: _Session | None = None
        self._greenlet: gevent.Greenlet | None = None

    @property
    def count(self) -> int:
        """Blobs that are pinned."""
        return 0 if self._session is None else len(self._session.rows)

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """After the last download: all pins go."""
        if self._greenlet is not None:
            end(self._greenlet)
            self._greenlet = None
        self._end_session()

    def watch(self, blob: OpenBlob, blob_id: int) -> None:
        """From now until it is closed."""
        download = Download(self, blob_id)
        self._downloads.add(download)
        blob.check, blob.on_close = download.check, lambda: self._downloads.discard(download)

    def _run(self) -> None:
        while True:
            gevent.sleep(min(ROUND_SECONDS, self.age_seconds / 4))
            try:
                self.pin()
            except Exception:
                log.exception("pinning failed")
                self._end_session()

    def pin(self) -> None:
        """Called regularly: pin what has become old enough, unpin what has ended.

        A session that was lost stops its downloads, and is replaced for those to come.
        """
        session = self._session
        if session is not None and session.held.lost:
            self._end_session()
            session = None
        at = now()
        due = [each for each in self._downloads if each.session is None and not each.gone and at - each.began > self.age_seconds]
        needed = {each.blob_id for each in self._downloads if session is not None and each.session is session.held}
        if not due and not needed:
            self._end_session()
            return
        try:
            session = self._session = session or _Session(self._database, self._label())
            session.unpin(session.rows - needed - {each.blob_id for each in due})
            gone = session.pin({each.blob_id for each in due})
        except ArkvoryError as error:
            outage.consequence(log, "long downloads could not be pinned: %s", error)
            return
        for each in due:
            each.gone = each.blob_id in gone
            if each.blob_id in session.rows:
                each.session = session.held

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            to_the_end(session.end)


class _Session:
    """The pin session: a lock, a row that says when it was seen last, and `rows`, the blobs that it pins. Raises ArkvoryError."""

    def __init__(self, database: Database, label: str) -> None:
        self._id = secrets.randbelow(2**31)
        self.rows: set[int] = set()
        self._watching: gevent.Greenlet | None = None
        self.held = Held(database.session.connect(), "its pin session", self._look)
        try:
            with self.held.use() as session:
                session.execute(text("select pg_advisory_lock(:c, :o)"), {"c": PIN_CLASS, "o": self._id})
                session.execute(
                    text("insert into arkvory_pin_sessions (id, holder) values (:id, :holder)"), {"id": self._id, "holder": label}
                )
        except BaseException:
            to_the_end(self.end)
            raise
        self._watching = gevent.spawn(self.held.watch)

    def _look(self, session: Connection) -> None:
        """Its sign of life."""
        if not session.execute(_SEEN, {"id": self._id}).rowcount:
            raise LockLost("another process took this one for dead")

    def pin(self, blob_ids: Collection[int]) -> set[int]:
        """Add rows. What somebody has locked is left for the next time; those that are being deleted, or were, are returned."""
        gone: set[int] = set()
        for some in _batches(set(blob_ids) - self.rows):
            with self.held.use() as session:
                self.rows |= set(session.execute(_PIN, {"session": self._id, "ids": some}).scalars())
                left = [each for each in some if each not in self.rows]
                gone |= set(left) - set(session.execute(_THERE, {"ids": left}).scalars()) if left else set()
        return gone

    def unpin(self, blob_ids: Collection[int]) -> None:
        for some in _batches(blob_ids):
            with self.held.use() as session:
                session.execute(_UNPIN, {"session": self._id, "ids": some})
            self.rows -= set(some)

    def end(self) -> None:
        """Its rows go with it, at once where PostgreSQL answers."""
        if self._watching is not None:
            end(self._watching)
        if not self.held.lost:
            try:
                with self.held.use() as session:
                    session.execute(text("delete from arkvory_pin_sessions where id = :id"), {"id": self._id})
            except ArkvoryError as error:
                log.info("pins are left to run out: %s", error)
        self.held.end()


def _batches(ids: Iterable[int]) -> Iterator[list[int]]:
    ordered = sorted(ids)
    return (ordered[start : start + AT_ONCE] for start in range(0, len(ordered), AT_ONCE))


# A cleanup that has the row locked is not waited for; nor does anybody who locks several wait in a circle.
_PIN = text(
    "insert into arkvory_pins (blob_id, session_id) select b.id, :session from (select id from arkvory_blobs where id = any(:ids) "
    "and status <> 'deleting' for key share skip locked) b returning blob_id"
)
_THERE = text("select id from arkvory_blobs where id = any(:ids) and status <> 'deleting'")
_SEEN = text("update arkvory_pin_sessions set seen_at = clock_timestamp() where id = :id")
_UNPIN = text("delete from arkvory_pins where session_id = :session and blob_id = any(:ids)")
_COUNTS = (
    f"(s.seen_at > clock_timestamp() - make_interval(secs => :linger) or exists (select 1 from pg_locks l where l.locktype = 'advisory' "
    f"and l.classid = {PIN_CLASS} and l.objid::bigint = s.id and l.objsubid = 2 and l.granted "
    "and l.database = (select oid from pg_database where datname = current_database())))"
)
_PINNED = text(
    f"select 1 from arkvory_pins p join arkvory_pin_sessions s on s.id = p.session_id where p.blob_id = :id and {_COUNTS} limit 1"
)
_PURGE = text(f"delete from arkvory_pin_sessions s where not {_COUNTS}")


def is_pinned(connection: Connection, blob_id: int) -> bool:
    """Whether some process may be sending its bytes. Asked in a statement of its own, under the lock of the blob's row."""
    return connection.execute(_PINNED, {"id": blob_id, "linger": LINGER_SECONDS}).first() is not None


def delete_dead(connection: Connection) -> int:
    """Rows of processes that ended without a word."""
    return connection.execute(_PURGE, {"linger": KEPT_SECONDS}).rowcount
