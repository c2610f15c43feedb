"""One run of a mirror: what is due on its work list, several at once, until nothing is left to do.

It ends early when the upstream is away, when there is no room, when its lock or the database is lost, when the mirror or the repository is
changed or deleted, or the process ends; what is left to do stays on the list, and the next run goes on there.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

from gevent.event import Event
from gevent.pool import Pool

from app.database.engines import Database
from app.database.greenlets import to_the_end
from app.database.statements import text
from app.errors import (
    ArkvoryError,
    Blocked,
    CapacitySpent,
    Conflict,
    DatabaseAway,
    Forbidden,
    Invalid,
    Later,
    MissingParts,
    NotFound,
    NotOwner,
    ReadOnly,
    RepositoryMaintenance,
    RepositoryOffline,
    TooLarge,
    TooManyUploads,
    Unavailable,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamUnfit,
)
from app.repository.mirrors.copying import Refused
from app.repository.mirrors.guides import LIST, Item
from app.repository.mirrors.rereading import UNKNOWN, Reading, Unchanged
from app.repository.mirrors.settings import MOST_ERRORS
from app.repository.mirrors.worklist import BATCH, Copied, Work, WorkList
from app.repository.parts import Kept

log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
# Rows of one round: some gigabytes of the database.
MOST_NAMED = 10_000_000
TAKEN = 100
# Of one item in one round; each waits twice as long as the one before.
MOST_ATTEMPTS, FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 4, 5.0, 300.0
# Failures one after the other, whatever of: then it is the upstream and not its files. Fewer where nothing of it was had yet.
MOST_FAILURES, MOST_FIRST_FAILURES = 20, 3
# Pauses that the upstream asked for, one after the other, and the longest that is waited for.
MOST_PAUSES, LONGEST_PAUSE_SECONDS = 3, 60.0
LONGEST_CURSOR, LONGEST_MESSAGE = 300, 500
HELD_SECONDS = 10.0
# Of the end of the process, for what is under way.
LAST_SECONDS = 3.0
# Of the time that may go into counting.
COUNTING = 0.05
_SKIPPED = Forbidden, Conflict, Blocked
_CUTS = CapacitySpent, DatabaseAway, NotOwner, ReadOnly, RepositoryOffline, RepositoryMaintenance


class Alone(Protocol):
    """Whether this process may still think that it alone runs the mirror, and who hears how far that is."""

    def check(self) -> None:
        """Raises Unavailable."""

    def tell(self, words: str) -> None:
        """For people. Raises Unavailable."""


class Steps(Protocol):
    """What is done with one item."""

    def require_open(self) -> None: ...

    def copy(self, work: Work, kept: Kept) -> Copied: ...

    def reading(self, work: Work) -> Reading:
        """By what a list may be asked for."""

    def items(self, path: str, reading: Reading) -> Iterator[Item]:
        """What a list names. Raises Unchanged."""


@dataclass(frozen=True)
class Begun:
    """The row of a mirror as its run found it."""

    id: int
    repository_id: int
    # Nobody else's, so that a runner which was taken for dead says nothing any more.
    runner: str
    round: int
    revision: int
    concurrency: int
    # Seconds for which the upstream wants to be left alone still.
    pause: float
    errors: tuple[Mapping[str, Any], ...]
    # Lists that a round begins with, by kind and path: one that is not there is an error, and not the end of what it named.
    roots: frozenset[tuple[str, str]]


class Cut(Exception):
    """The run ends here; `state` as it is shown, `seconds` for which the upstream wants to be left alone."""

    def __init__(self, state: str, reason: str, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason
        self.seconds = seconds


class Tally:
    """What a run is at, and what went wrong, for the row."""

    def __init__(self, errors: tuple[Mapping[str, Any], ...]) -> None:
        self.cursor = ""
        self._errors: deque[Mapping[str, Any]] = deque(errors, MOST_ERRORS)

    def failed(self, item: Item, message: str) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self.keep(self.paths - {item.path})
        self._errors.append({"at": at, "path": item.path, "message": message[:LONGEST_MESSAGE]})

    @property
    def paths(self) -> set[str]:
        """Of what went wrong."""
        return {each["path"] for each in self._errors}

    def keep(self, paths: Collection[str]) -> None:
        """Errors of these; the others are mended."""
        self._errors = deque((each for each in self._errors if each["path"] in paths), MOST_ERRORS)

    def told(self) -> dict[str, Any]:
        return {"cursor": self.cursor[:LONGEST_CURSOR], "errors": json.dumps(list(self._errors))}


class Run:
    """Ends with the state of the mirror told in its row, as far as that can be written."""

    def __init__(
        self, database: Database, begun: Begun, work: WorkList, steps: Steps, alone: Alone, count: Callable[[Copied], None]
    ) -> None:
        """`count` hears of each file."""
        self._count_too = count
        self._database = database
        self._begun = begun
        self._work = work
        self._steps = steps
        self._alone = alone
        self._pool = Pool(begun.concurrency)
        self._under_way: set[tuple[str, str]] = set()
        self._waiting: deque[Work] = deque()
        self._changed = Event()
        self._cut: Cut | None = None
        self._failures = self._pauses = 0
        self._had_any = False
        self._paused_until = time.monotonic() + begun.pause
        self._beat_at = self._count_at = float("-inf")
        self._counts: dict[str, int] = {}
        self.tally = Tally(begun.errors)

    @property
    def over(self) -> bool:
        """Whether nothing more is to be begun."""
        return self._cut is not None

    def go(self) -> str:
        """Until it is through, in words; raises Unavailable when it was cut off and is to be tried again."""
        try:
            self._loop()
            return self._finish()
        except Cut as cut:
            self._tell_end(cut)
            if cut.state == "failed":
                raise Unavailable(cut.reason) from None
            return f"stopped: {cut.reason}"
        except ArkvoryError as error:
            self._tell_end(Cut("failed", error.message))
            raise
        except Exception as error:
            self._tell_end(Cut("failed", _fault(error)))
            raise
        except BaseException:
            to_the_end(self._break_off)
            raise
        finally:
            self._end_with(Cut("stopped", "it is over"))
            self._pool.kill(timeout=5)

    def _break_off(self) -> None:
        """The process ends: what is nearly here is waited for."""
        self._end_with(Cut("stopped", "the process that ran it ended"))
        self._pool.join(timeout=LAST_SECONDS)
        self._tell_end(Cut("stopped", "the process that ran it ended"))

    # -- the loop

    def _loop(self) -> None:
        while True:
            self._beat()
            if self._cut is not None:
                raise self._cut
            pause = self._paused_until - time.monotonic()
            if pause > 0:
                self._wait(pause)
            elif len(self._under_way) >= self._begun.concurrency:
                self._wait(BEAT_SECONDS)
            elif (work := self._next()) is not None:
                self._begin(work)
            elif self._under_way:
                self._wait(BEAT_SECONDS)
            elif (seconds := self._work.seconds_to_next()) is not None:
                self._wait(seconds + 0.01)
            else:
                return

    def _wait(self, seconds: float) -> None:
        """Until something changes, the next beat at the latest."""
        self._changed.wait(min(seconds, BEAT_SECONDS))
        self._changed.clear()

    def _next(self) -> Work | None:
        if not self._waiting:
            # As it is before the look: what ends meanwhile may be seen as it was.
            self._waiting.extend(self._work.due(TAKEN, frozenset(self._under_way)))
        return self._waiting.popleft() if self._waiting else None

    def _begin(self, work: Work) -> None:
        self._under_way.add((work.item.kind, work.item.path))
        self._pool.spawn(self._do, work)

    def _do(self, work: Work) -> None:
        try:
            self._steps.require_open()
            if work.item.kind == LIST:
                self._read(work)
            else:
                copied = self._steps.copy(work, _KeptItem(self, self._work, work))
                self._work.copied(work.item.path, copied)
                self._count_too(copied)
            self._answered()
        except Refused as refused:
            self._refuse(work, refused)
        except ArkvoryError as error:
            self._settle(work, error)
        except Exception as error:
            log.exception("a mirror's %s %r broke off", work.item.kind, work.item.path)
            self._settle_quietly(work, _fault(error))
        finally:
            self._under_way.discard((work.item.kind, work.item.path))
            self._changed.set()

    def _read(self, work: Work) -> None:
        """Its items first, in batches, then that it was read: one that broke off is read again, and what it named stays as it is."""
        path = self.tally.cursor = work.item.path
        with self._steps.reading(work) as reading:
            try:
                self._add_all(path, reading)
            except Unchanged:
                self._leave(work, reading)
            except UpstreamUnfit as error:
                if reading.after == UNKNOWN:
                    raise
                # It will be none as long as these are its validators.
                self.tally.failed(work.item, error.message)
                self._work.fault(work, error.message, reading)
            else:
                self._work.read(path, reading)

    def _leave(self, work: Work, reading: Reading) -> None:
        """It is what it was: what it named is named again, in batches; or it is none still."""
        path = work.item.path
        if work.refusals:
            self._work.settle(work.item, "failed", work.error)
            return
        while self._work.name_again(path, work.read_in or 0):
            self._require_going_on()
        reading.after = reading.before
        self._work.read(path, reading)

    def _add_all(self, path: str, reading: Reading) -> None:
        batch: list[Item] = []
        for each in self._steps.items(path, reading):
            batch.append(each)
            if len(batch) >= BATCH:
                self._add(batch, path)
                batch = []
        self._add(batch, path)

    def _add(self, batch: list[Item], by: str) -> None:
        self._require_going_on()
        self._work.add(batch, by)

    def _require_going_on(self) -> None:
        if self._cut is not None:
            raise Later("the run is over")

    # -- what becomes of what went wrong

    def _settle(self, work: Work, error: ArkvoryError) -> None:
        """Once the run is over, whatever was under way is left to the next one."""
        try:
            if self._cut is None:
                self._judge(work, error)
        except ArkvoryError as again:
            self._end_with(Cut("failed", again.message))

    def _refuse(self, work: Work, refused: Refused) -> None:
        """The upstream did what it could."""
        self._answered()
        try:
            if refused.again:
                self._work.leave_refused(work.item)
            else:
                self.tally.failed(work.item, refused.message)
                self._work.refuse(work, refused.message, refused.validators)
        except ArkvoryError as error:
            self._end_with(Cut("failed", error.message))

    def _answered(self) -> None:
        self._failures = self._pauses = 0
        self._had_any = True

    def _settle_quietly(self, work: Work, message: str) -> None:
        self.tally.failed(work.item, message)
        try:
            self._work.settle(work.item, "failed", message)
        except ArkvoryError as again:
            self._end_with(Cut("failed", again.message))

    def _judge(self, work: Work, error: ArkvoryError) -> None:
        item = work.item
        if isinstance(error, UpstreamBusy):
            self._pause(work, error)
        elif isinstance(error, _CUTS):
            self._end_with(Cut("failed", error.message))
        elif isinstance(error, TooManyUploads):
            # Whoever held what has arrived of it is perhaps dead, and not taken for that yet.
            self._work.put_off(item, HELD_SECONDS, attempts=work.attempts, error=error.message)
        elif isinstance(error, _SKIPPED):
            self._work.settle(item, "skipped", error.message)
        elif isinstance(error, MissingParts) and work.attempts + 1 < MOST_ATTEMPTS and self._work.do_again(error.paths):
            # Cleanup took them for what nobody wants: it waits for them once more.
            self._work.put_off(item, 0.0, attempts=work.attempts + 1, error=error.message)
        elif isinstance(error, NotFound) and (item.kind, item.path) not in self._begun.roots:
            self._work.settle(item, "gone", error.message)
        elif isinstance(error, Invalid | NotFound | TooLarge) or work.attempts + 1 >= MOST_ATTEMPTS:
            self.tally.failed(item, error.message)
            self._work.settle(item, "failed", error.message)
            self._failed(error)
        else:
            seconds = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**work.attempts)
            self._work.put_off(item, seconds, attempts=work.attempts + 1, error=error.message)
            self._failed(error)

    def _pause(self, work: Work, error: UpstreamBusy) -> None:
        """The upstream, or its breaker, wants to be left alone: that is nobody's attempt."""
        self._work.put_off(work.item, 0.0, attempts=work.attempts, error=error.message)
        now, until = time.monotonic(), time.monotonic() + error.retry_after
        # While others are at it, it may be they who have all the connections.
        self._pauses += self._paused_until <= now and len(self._under_way) == 1
        self._paused_until = max(self._paused_until, until)
        if error.retry_after > LONGEST_PAUSE_SECONDS or self._pauses > MOST_PAUSES:
            self._end_with(Cut("failed", error.message, float(error.retry_after)))

    def _failed(self, error: ArkvoryError) -> None:
        self._failures += 1
        if isinstance(error, UpstreamFailed) and self._failures >= (MOST_FAILURES if self._had_any else MOST_FIRST_FAILURES):
            self._end_with(Cut("failed", f"the upstream failed {self._failures} times in a row: {error.message}"))

    def _end_with(self, cut: Cut) -> None:
        """The first reason counts."""
        self._cut = self._cut or cut
        self._changed.set()

    # -- the row

    def _beat(self) -> None:
        """A sign of life, with what was done; every two seconds. Raises Cut when the mirror is not what it was, and Unavailable."""
        now = time.monotonic()
        if now - self._beat_at < BEAT_SECONDS:
            return
        self._alone.check()
        self._count(now)
        self._beat_at = now
        with self._database.write() as connection:
            row = connection.execute(_BEAT, self._told()).first()
            there = connection.execute(_THERE, {"id": self._begun.id}).first()
        if row is None:
            raise Cut("stopped", _why_not(there))
        self._alone.tell(self._words)

    def _count(self, now: float) -> None:
        """Less often, the longer it takes. Raises Cut for lists without an end."""
        if now >= self._count_at:
            self._counts = self._work.counts()
            if self._work.named > MOST_NAMED:
                told = f"the upstream's lists name more than {MOST_NAMED} files and lists: choose among them, by names or by include"
                raise Cut("failed", told)
            self._count_at = time.monotonic() + (time.monotonic() - now) / COUNTING

    def _told(self) -> dict[str, Any]:
        begun = self._begun
        known = {"id": begun.id, "runner": begun.runner, "revision": begun.revision}
        return known | {"counts": json.dumps(self._counts)} | self.tally.told()

    @property
    def _words(self) -> str:
        shown = ", ".join(f"{count} {name}" for name, count in self._counts.items() if count)
        return f"round {self._begun.round}: {shown or 'nothing yet'}"

    def _finish(self) -> str:
        """Nothing is left to do in this round. Raises ArkvoryError."""
        self._alone.check()
        self._work.forget_unnamed()
        self._look_back()
        words = {"failed": "could not be copied", "refused": "refused: what the upstream has is at fault"}
        missing = "; ".join(f"{self._counts[state]} {said}" for state, said in words.items() if self._counts[state])
        values = {"state": "incomplete" if missing else "complete", "reason": missing or None}
        with self._database.write() as connection:
            connection.execute(_FINISH, self._told() | values)
        return f"{values['state']}; {self._words}"

    def _look_back(self) -> None:
        self._counts = self._work.counts()
        known = self.tally.paths
        mended = known - self._work.unmended(known)
        self.tally.keep(self.tally.paths - mended)

    def _tell_end(self, cut: Cut) -> None:
        """As far as that can be written."""
        try:
            if cut.state == "failed":
                self._work.forgive()
            self._look_back()
            values = {"state": cut.state, "reason": cut.reason[:LONGEST_MESSAGE], "seconds": cut.seconds}
            with self._database.write() as connection:
                connection.execute(_END, self._told() | values)
        except ArkvoryError as error:
            log.warning("the end of a mirror's run could not be told: %s", error)


@dataclass(frozen=True)
class _KeptItem:
    """See `parts.Kept`: what stands in an item's row."""

    run: Run
    list: WorkList
    work: Work

    @property
    def size(self) -> int | None:
        return self.work.item.size

    def known(self) -> tuple[UUID, str] | None:
        upload_id, validator = self.work.upload_id, self.work.validator
        return None if upload_id is None or validator is None else (upload_id, validator)

    def keep(self, upload_id: UUID, validator: str) -> None:
        self.list.keep_part(self.work.item.path, upload_id, validator)

    def require_wanted(self) -> None:
        if self.run.over:
            raise Unavailable("the run of the mirror is over; the rest is fetched by the next one")


def tell_failure(database: Database, begun: Begun, error: ArkvoryError) -> None:
    """Of a run that found no beginning. Raises ArkvoryError."""
    with database.write() as connection:
        connection.execute(_FAILED, {"id": begun.id, "runner": begun.runner, "reason": error.message[:LONGEST_MESSAGE]})


def _fault(error: Exception) -> str:
    """For who manages the repository: what the error says is the log's, since it may quote statements and their values."""
    return f"a fault of the program ({type(error).__name__}); the server's log says more"


def _why_not(there: Any) -> str:
    if there is None:
        return "it was deleted"
    return "its settings were changed, or it is to begin anew" if there.enabled else "it was switched off"


_TALLY = (
    "counts = cast(:counts as jsonb), errors = cast(:errors as jsonb), cursor = :cursor, seen_at = clock_timestamp()"
)
_BEAT = text(
    f"update arkvory_mirrors m set {_TALLY} where m.id = :id "
    "and m.runner = :runner and m.revision = :revision and m.enabled "
    "and exists (select 1 from arkvory_repositories r where r.id = m.repository_id and r.deleted_at is null) returning 1"
)
_THERE = text(
    "select m.enabled from arkvory_mirrors m join arkvory_repositories r on r.id = m.repository_id and r.deleted_at is null "
    "where m.id = :id"
)
# A runner that lingers may not say so while another one has something left to do.
_FINISH = text(
    f"update arkvory_mirrors m set {_TALLY}, state = :state, runner = null, reason = :reason, whole = true, "
    "ended_at = clock_timestamp(), "
    "succeeded_at = case when :state = 'complete' then clock_timestamp() else m.succeeded_at end, "
    "current_at = case when :state = 'complete' then m.round_at else m.current_at end "
    "where m.id = :id and m.runner = :runner "
    "and not exists (select 1 from arkvory_mirror_items i where i.mirror_id = m.id and i.state = 'todo' and i.round = m.round)"
)
_FAILED = text(
    "update arkvory_mirrors set state = 'failed', runner = null, reason = :reason, ended_at = clock_timestamp() "
    "where id = :id and runner = :runner"
)
_END = text(
    f"update arkvory_mirrors m set {_TALLY}, state = :state, runner = null, reason = :reason, ended_at = clock_timestamp(), "
    "not_before = clock_timestamp() + make_interval(secs => :seconds) "
    "where m.id = :id and m.runner = :runner"
)
