"""Several processes on one database as the doctor sees them: who is there, who lags, and whether they ought to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from app.cluster import inspection
from app.cluster.inspection import Instance
from app.cluster.loop import OLDEST_POLL_SECONDS, OLDEST_PROBE_SECONDS, Loop
from app.cluster.mailbox import SILENT_SECONDS
from app.cluster.membership import HEARTBEAT_SECONDS
from app.database.clock import now
from app.database.engines import Database
from app.errors import ArkvoryError
from app.http.doctor.database import MOST_SHOWN, has_tables, run_check
from app.http.doctor.findings import Finding, fail, ok, warn
from app.http.doctor.storage import Expected
from app.repository.presence import sample
from config import Settings

# One heartbeat that did not come, and a part of the next.
LATE_HEARTBEAT_SECONDS = 1.5 * HEARTBEAT_SECONDS
# Of mail that a process at work should have read 25 times since.
OLD_MAIL_SECONDS = 5.0
# After which the cleanup should have been there.
NOBODYS_MAIL_SECONDS = 300.0


@dataclass(frozen=True)
class State:
    """What one transaction read; `living` have a heartbeat younger than 30 s and were not replaced."""

    instances: Sequence[Instance]
    connection: Connection

    @property
    def living(self) -> list[Instance]:
        return [each for each in self.instances if each.online]


Check = Callable[[State], Finding]


def examine_cluster(settings: Settings, database: Database) -> list[Finding]:
    """Of a cluster a line for each check, of a single node whether it is alone."""
    if not has_tables(database):
        return []
    checks = _CHECKS if settings.cluster else {"instances": _alone}
    return [run_check(database, name, _on_state(check)) for name, check in checks.items()]


def _on_state(check: Check) -> Callable[[Connection], Finding]:
    return lambda connection: check(_state(connection))


def expected_files(settings: Settings, database: Database) -> Expected:
    """The newest blobs and as many of all times, on whichever machine they were stored; empty where the database cannot tell."""
    try:
        if not has_tables(database):
            return Expected()
        with database.read() as connection:
            machines = {each.host for each in _state(connection).living} if settings.cluster else ()
            return Expected(sample(connection), frozenset(machines))
    except (ArkvoryError, DBAPIError):
        return Expected()


def _state(connection: Connection) -> State:
    return State(inspection.instances(connection), connection)


def _alone(state: State) -> Finding:
    """S1: nothing but the one process of a single node changes repositories. Two of them are kept apart by the ownership."""
    if living := state.living:
        return fail(
            "instances",
            f"this is a single node, but {len(living)} processes of a cluster are at work on its database: {_named(living)}",
            "set ARKVORY_DEPLOYMENT=cluster and an ARKVORY_INSTANCE_ID here, or stop the others",
        )
    return ok("instances", "a single node: nobody else is at work on its database")


def examine_process(loop: Loop) -> Finding:
    """M4 and M6, as the process that answers knows of itself; also while PostgreSQL is away."""
    polled, probed = now() - loop.last_poll, now() - loop.last_probe
    advice = "see its log and the connection to PostgreSQL; it recovers by itself"
    if not loop.online:
        return fail("this process", "it cannot write its heartbeat: others send it no mail, and it lives by the probe", advice)
    if polled > OLDEST_POLL_SECONDS or probed > OLDEST_PROBE_SECONDS:
        words = f"it read its mail {polled:.1f} s and the epochs {probed:.1f} s ago: each read from memory asks the database first"
        return fail("this process", words, advice)
    if loop.corrections:
        words = f"the probe found {loop.corrections} changes since the start that no message had told"
        return warn("this process", words, "all is right now; see the logs for mail that was lost, and the dead letters")
    if not loop.keeps:
        words = "it keeps nothing in memory yet, until transactions end that began before it joined"
        return warn("this process", words, "look in pg_stat_activity for one that is old, and end it if nobody needs it")
    return ok("this process", f"online, it read its mail {polled:.1f} s and the epochs {probed:.1f} s ago")


def _instances(state: State) -> Finding:
    """Names are held by session locks: what is seen here is how far they were passed on."""
    for name in sorted({each.name for each in state.living}):
        machines = sorted({each.host for each in state.living if each.name == name})
        if len(machines) > 1:
            words = f"the name {name} is used on {' and '.join(machines)}"
            return fail("instances", words, "give each server an ARKVORY_INSTANCE_ID of its own")
    if (passed_on := _passed_on(state)) is not None:
        return passed_on
    lately = sorted({each.label for each in state.instances if each.replaced and each.heartbeat_age < SILENT_SECONDS})
    if lately:
        words = f"{', '.join(lately)} were replaced just now, and their predecessors did not say goodbye"
        return warn("instances", words, f"were they killed? This goes by itself within {SILENT_SECONDS} s")
    return ok("instances", f"{len(state.living)} at work: {_named(state.living)}")


def _passed_on(state: State) -> Finding | None:
    """A name that another master took while processes of the former one are at work."""
    for name, ago in sorted(inspection.last_master(state.connection).items()):
        left = [each for each in state.living if each.name == name and each.age - ago > 1]
        if left:
            words = f"another server took the name {name} {ago:.0f} s ago, and {_named(left)} of the former one are still at work"
            return warn("instances", words, "let them end; if they do not, two servers have the same ARKVORY_INSTANCE_ID")
    return None


def _heartbeats(state: State) -> Finding:
    silent = [each for each in state.instances if not (each.online or each.replaced)]
    late = [each for each in state.living if each.heartbeat_age > LATE_HEARTBEAT_SECONDS]
    if late:
        words = f"the last heartbeat of {_named(late)} is {max(each.heartbeat_age for each in late):.0f} s old"
        return warn("heartbeats", words, "see their logs: they are stopped, overloaded, or cannot reach PostgreSQL")
    if silent:
        words = f"{_named(silent)} fell silent {min(each.heartbeat_age for each in silent):.0f} s ago or more"
        return warn("heartbeats", words, "they were killed, or cannot reach PostgreSQL; their rows go after ten minutes")
    return ok("heartbeats", f"each is younger than {LATE_HEARTBEAT_SECONDS:.0f} s")


def _mail(state: State) -> Finding:
    behind = [each for each in state.living if (each.oldest_unread or 0) > OLD_MAIL_SECONDS]
    if behind:
        words = "; ".join(f"{each.unread} wait for {each.label}, the oldest for {each.oldest_unread:.0f} s" for each in behind[:MOST_SHOWN])
        return fail("mail", words, "see their logs: they are stopped or overloaded, and right within a probe's 5 s all the same")
    nobodys = inspection.mail_of_nobody(state.connection)
    if (nobodys.oldest or 0) > NOBODYS_MAIL_SECONDS:
        words = f"{nobodys.count} messages lie in mailboxes of processes that are gone"
        return warn("mail", words, "the cleanup deletes them: run `arkvory cleanup`, and see why it does not run by itself")
    return ok("mail", f"{sum(each.unread for each in state.living)} are unread, none is old")


def _dead_letters(state: State) -> Finding:
    letters = inspection.dead_letters(state.connection, 1)
    if not letters.count:
        return ok("dead letters", "there are none")
    last = letters.latest[0]
    words = f"{letters.count} messages could not be applied, the last one by {last.instance}: {last.error}"
    # The probe did what they meant: nothing is wrong any more.
    advice = "report this fault with what `arkvory cluster dead-letters --json` says; then `arkvory cluster forget`"
    return warn("dead letters", words, advice)


def _versions(state: State) -> Finding:
    counted = Counter(each.version for each in state.living)
    if len(counted) > 1:
        words = ", ".join(f"{version} ({count})" for version, count in sorted(counted.items()))
        return warn("versions", f"different versions are at work: {words}", "finish the rolling upgrade")
    return ok("versions", f"all run {next(iter(counted))}" if counted else "nothing runs")


def _settings(state: State) -> Finding:
    """What each process was started with, where it decides about what all share."""
    told = [(each, each.settings) for each in state.living if each.settings is not None]
    different = []
    for variable in sorted({variable for _, settings in told for variable in settings}):
        by_value: dict[str, list[Instance]] = {}
        for each, settings in told:
            if variable in settings:
                by_value.setdefault(settings[variable], []).append(each)
        if len(by_value) > 1:
            different.append(_difference(variable, by_value))
    if different:
        words = "; ".join(different[:MOST_SHOWN]) + ("; ..." if len(different) > MOST_SHOWN else "")
        return warn("settings", words, "set the same on each server, and restart those that differ")
    return ok("settings", "what must be the same in all processes is the same")


def _difference(variable: str, by_value: Mapping[str, Sequence[Instance]]) -> str:
    if variable == "ARKVORY_SECRET_KEY":
        groups = [_names_alone(some) for some in by_value.values()]
        return f"{variable} (or the key beside the blobs) is another one in {' than in '.join(groups)}"
    return f"{variable} is " + ", ".join(f"{value or 'not set'} in {_names_alone(some)}" for value, some in sorted(by_value.items()))


def _names_alone(some: Sequence[Instance]) -> str:
    return ", ".join(each.label for each in some[:MOST_SHOWN]) + (", ..." if len(some) > MOST_SHOWN else "")


_CHECKS: dict[str, Check] = {
    "instances": _instances,
    "heartbeats": _heartbeats,
    "mail": _mail,
    "dead letters": _dead_letters,
    "versions": _versions,
    "settings": _settings,
}


def _named(some: Sequence[Instance]) -> str:
    return ", ".join(_names(some)) or "none"


def _names(some: Sequence[Instance]) -> Iterator[str]:
    for each in some[:MOST_SHOWN]:
        yield f"{each.label} on {each.host}"
    if len(some) > MOST_SHOWN:
        yield "..."
