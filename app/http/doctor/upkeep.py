"""What runs by itself, and how full quotas are, as the doctor sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection

from app.cluster.schedule import Entry, entries
from app.http.doctor.findings import Finding, ok, shown, warn
from app.repository.mirrors.settings import Progress, followers, standings
from app.repository.quotas import fillings

# After it was due. Web processes leave half a minute to a worker.
OVERDUE_SECONDS = 180.0
MOST_SHOWN = 5
MOST_LINES = 20


def examine_jobs(connection: Connection, *, serving: bool) -> Finding:
    """Whether each ends well, and runs where somebody is `serving`."""
    found, mirrors = entries(connection), followers(connection)
    # Mirrors have lines of their own.
    failing = [each for each in found if each.failures and each.name not in mirrors]
    if failing:
        words = "; ".join(f"{each.name} failed {each.failures} times in a row: {each.said}" for each in failing[:MOST_SHOWN])
        return warn("jobs", words, "it is tried again by itself; see the log of the process that ran it (`arkvory jobs`)")
    overdue = [each for each in found if serving and _is_overdue(each)]
    if overdue:
        names = ", ".join(_named(each.name, mirrors) for each in overdue[:MOST_SHOWN])
        words = f"nobody runs {names}, which should have begun minutes ago"
        return warn("jobs", words, "start the server, or a worker; see `arkvory jobs`")
    return ok("jobs", f"{len(found)} are known, none failed the last time" if found else "none has run yet")


def _is_overdue(entry: Entry) -> bool:
    return entry.due_in <= 0 and not entry.running and (datetime.now(UTC) - entry.next_at).total_seconds() > OVERDUE_SECONDS


def _named(job: str, mirrors: Mapping[str, str]) -> str:
    return f"{job} ({mirrors[job]})" if job in mirrors else job


def examine_mirrors(connection: Connection) -> list[Finding]:
    """A line for each that does not bring all that its upstream has."""
    found = standings(connection)
    wrong = [each for each in found if each.enabled and (each.failures or each.state == "incomplete")]
    lines = [_of_mirror(each) for each in wrong[:MOST_LINES]]
    if len(wrong) > MOST_LINES:
        lines.append(warn("mirrors", f"and {len(wrong) - MOST_LINES} more", "see `arkvory mirror list`"))
    return lines or [ok("mirrors", _of_well(found))]


def _of_well(mirrors: Sequence[Progress]) -> str:
    if not mirrors:
        return "no repository has one"
    off = sum(not each.enabled for each in mirrors)
    return f"{len(mirrors)} are known" + (f", {off} of them switched off" if off else "") + "; none that runs failed the last time"


def _of_mirror(mirror: Progress) -> Finding:
    words = f"that of {mirror.repository} ({mirror.job}) "
    words += f"failed {mirror.failures} times in a row" if mirror.failures else "is incomplete"
    advice = f"it is tried again by itself; what is wrong says `arkvory mirror show {mirror.repository}`"
    return warn("mirrors", f"{words}: {mirror.reason or mirror.state}", advice)


def examine_quotas(connection: Connection) -> Finding:
    """Of repositories, from the counters; the server's capacity has a line of its own."""
    found = fillings(connection, None)
    high = sorted((each for each in found if each.level), key=lambda each: each.ratio, reverse=True)
    if high:
        words = "; ".join(f"{each.name} takes {shown(each.bytes)} of {shown(each.quota_bytes)}" for each in high[:MOST_SHOWN])
        more = f"; and {len(high) - MOST_SHOWN} more" if len(high) > MOST_SHOWN else ""
        return warn("quotas", words + more, "delete something there, or raise the quota; at 100 % uploads get 507")
    return ok("quotas", f"{len(found)} repositories have one, none is at 80 % or above" if found else "no repository has one")
