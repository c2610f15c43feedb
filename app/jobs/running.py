"""Who runs jobs: each process looks what is due, and runs what nobody else does.

    worker             at once
    web, in a cluster  what no worker has begun half a minute after it fell due; at once where none lives
    single node        at once: nobody else is there

So nothing stands still without a worker, and nothing runs twice with several.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

import gevent

from app.cluster.schedule import Entry, Planned
from app.database.greenlets import to_the_end
from app.database.outage import outage
from app.errors import ArkvoryError, DatabaseAway, LockLost, NotOwner
from app.http.parts import Parts
from app.jobs.job import Family, Job

log = logging.getLogger(__name__)

# Between two looks. On a single node nobody else changes anything, and whoever does wakes it.
LOOK_SECONDS = {"worker": 1.0, "web": 5.0, "single": 30.0}
PATIENCE_SECONDS = 30.0
# Runs of one family at once: what takes days in one keeps no other from its turn. What is no family's never waits.
MOST_OF_FAMILY = 16
TELL_SECONDS = 2.0
STOP_SECONDS = 5.0


class JobRunner:
    """Of one process; `kind` is worker or web."""

    def __init__(self, house: Parts, kind: str, jobs: Iterable[Job], families: Iterable[Family]) -> None:
        self._house = house
        self._role = kind if house.settings.cluster else "single"
        self._jobs = {each.name: each for each in jobs}
        self._families = tuple(families)
        self._planned: dict[str, Planned] = {}
        self._running: dict[str, gevent.Greenlet] = {}
        self._looking: gevent.Greenlet | None = None

    @property
    def running(self) -> Sequence[str]:
        return list(self._running)

    def start(self) -> None:
        self._looking = gevent.spawn(self._look_on)

    def begin_nothing(self) -> None:
        """Ends what runs, each where it waits: whoever is there next goes on with it at once."""
        greenlets = [each for each in (self._looking, *self._running.values()) if each is not None]
        gevent.killall(greenlets, timeout=STOP_SECONDS)

    # -- what is due

    def _look_on(self) -> None:
        wake = self._house.schedule.changed
        while True:
            wake.clear()
            wake.wait(self._look_quietly())

    def _look_quietly(self) -> float:
        """Seconds until the next look."""
        try:
            return self._look()
        except ArkvoryError as error:
            outage.consequence(log, "jobs are put off: %s", error)
        except Exception:
            log.exception("looking for jobs failed")
        return LOOK_SECONDS["worker"]

    def _look(self) -> float:
        if not self._house.ownership.held:
            # Whoever has the storage runs them.
            return LOOK_SECONDS["worker"]
        patience = PATIENCE_SECONDS if self._role == "web" else 0.0
        entries = self._house.schedule.look(patience)
        known = self._known(entries)
        if self._plan(known.values(), entries):
            entries = self._house.schedule.look(patience)
        waiting = [(entries[name].due_in, job) for name, job in known.items() if name in entries and name not in self._running]
        # Who has waited for the longest comes first, so that none is always behind others.
        waiting.sort(key=lambda each: entries[each[1].name].next_at)
        for due_in, job in waiting:
            if due_in <= 0 and self._has_room(job):
                self._running[job.name] = gevent.spawn(self._run_alone, job)
        return min([LOOK_SECONDS[self._role], *(due_in for due_in, _ in waiting if due_in > 0)])

    def _known(self, entries: Mapping[str, Entry]) -> Mapping[str, Job]:
        """What is nobody's any more is forgotten, once it does not run."""
        if not self._families:
            return self._jobs
        found = {family.kind: jobs for family in self._families if (jobs := self._members(family)) is not None}
        known = {**self._jobs, **{job.name: job for jobs in found.values() for job in jobs}}
        gone = [name for name, each in entries.items() if name.partition("/")[0] in found and name not in known and not each.running]
        if gone:
            self._house.schedule.forget(gone)
        return known

    def _members(self, family: Family) -> Sequence[Job] | None:
        """Null when they cannot be told now: no reason to leave the others."""
        try:
            with self._house.database.read() as connection:
                return list(family.find(connection))
        except Exception as error:
            if isinstance(error, ArkvoryError):
                outage.consequence(log, "jobs of the kind %s are put off: %s", error, family.kind)
            else:
                log.exception("jobs of the kind %s cannot be told", family.kind)
            return None

    def _plan(self, jobs: Iterable[Job], entries: Mapping[str, Entry]) -> bool:
        planned = {job.name: Planned(job.name, job.every_seconds, job.description) for job in jobs}
        new = [each for name, each in planned.items() if name not in entries or self._planned.get(name) != each]
        if new:
            self._house.schedule.plan(new)
            self._planned = planned
        return bool(new)

    def _has_room(self, job: Job) -> bool:
        kind, slash, _ = job.name.partition("/")
        return not slash or sum(name.startswith(f"{kind}/") for name in self._running) < MOST_OF_FAMILY

    # -- running it

    def _run_alone(self, job: Job) -> None:
        leases = self._house.leases
        try:
            if leases is None:
                self._run_quietly(job)
            else:
                leases.run(job.name, lambda: self._run_quietly(job), 0.0)
        except ArkvoryError as error:
            outage.consequence(log, "the job %s is put off: %s", error, job.name)
        finally:
            self._running.pop(job.name, None)

    def _run_quietly(self, job: Job) -> None:
        try:
            self._run(job)
        except ArkvoryError as error:
            outage.consequence(log, "what became of the job %s could not be noted: %s", error, job.name)

    def _run(self, job: Job) -> None:
        begun = self._house.schedule.begin(job.name, self._label)
        if begun is None:
            # Somebody else was faster, and is through with it.
            return
        if begun.lost is not None:
            log.warning("the job %s was left by %s in the middle; it goes on here", job.name, begun.lost)
        outcome, words = "stopped", None
        try:
            outcome, words = self._outcome(job, ThisRun(self._house, job.name, begun.number))
        finally:
            to_the_end(lambda: self._house.schedule.end(job.name, begun.number, outcome, words))
        if outcome != "stopped":
            # There may be room for others now, and on a single node nobody looks for long.
            gevent.spawn_later(0.1, self._house.schedule.changed.set)

    def _outcome(self, job: Job, run: ThisRun) -> tuple[str, str | None]:
        try:
            return "done", job.run(run)
        except (LockLost, NotOwner) as error:
            log.warning("the job %s ends here: %s", job.name, error)
            return "stopped", None
        except DatabaseAway as error:
            outage.consequence(log, "the job %s was broken off: %s", error, job.name)
            return "failed", error.message
        except ArkvoryError as error:
            log.warning("the job %s failed, and is tried again: %s", job.name, error)
            return "failed", error.message
        except Exception as error:
            log.exception("the job %s failed, and is tried again", job.name)
            return "failed", f"{type(error).__name__}: {error}"

    @property
    def _label(self) -> str:
        instance = self._house.instance
        return instance.label if instance else "this server"


class ThisRun:
    """See `job.Run`."""

    def __init__(self, house: Parts, name: str, number: int) -> None:
        self._house = house
        self._name = name
        self._number = number
        self._told_at = float("-inf")

    def check(self) -> None:
        """Raises LockLost, and NotOwner where the storage is another one's."""
        self._house.ownership.require()
        if self._house.leases is not None and not self._house.leases.holds(self._name):
            raise LockLost("this process was silent for so long that another one may run it")

    def tell(self, words: str) -> None:
        """Raises LockLost when the row says that another one runs it."""
        if time.monotonic() - self._told_at < TELL_SECONDS:
            return
        self._told_at = time.monotonic()
        if not self._house.schedule.tell(self._name, self._number, words):
            raise LockLost("another process runs it by now")
