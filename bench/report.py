"""What a run found: bars with their verdicts and tables of figures, as Markdown."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True)
class Bar:
    """A promise, its limit, what was measured, and whether that keeps it."""

    promise: str
    limit: str
    measured: str
    met: bool


@dataclass
class Table:
    """Figures; the first column names them."""

    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)


@dataclass
class Section:
    """One part of the run. `text` says how it was measured; `listings` are shown as they are (title, text)."""

    title: str
    text: str
    bars: list[Bar] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    listings: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Machine:
    """Where it ran."""

    cores: int
    processor: str
    memory: int
    kernel: str
    python: str
    load_before: str
    busy_before: float

    @classmethod
    def here(cls) -> Machine:
        cores = len(os.sched_getaffinity(0))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        system = f"{platform.system()} {platform.release()}"
        return cls(cores, _processor(), memory, system, platform.python_version(), load_average(), busy_share())


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def load_average() -> str:
    return " ".join(f"{each:.2f}" for each in os.getloadavg())


def busy_share(seconds: float = 2.0) -> float:
    """Share of the cores that others use now (time that the hypervisor withholds included); the caller sleeps meanwhile."""
    before = _cpu_times()
    time.sleep(seconds)
    spent = [now - then for now, then in zip(_cpu_times(), before, strict=True)]
    return 1 - (spent[3] + spent[4]) / max(sum(spent), 1)


def _cpu_times() -> list[int]:
    """user nice system idle iowait irq softirq steal, in ticks since the start."""
    return [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, int(len(ordered) * share + 0.999999) - 1))]


def spread(values: Sequence[float], form: str) -> str:
    """Median, and least to most when there are several."""
    middle = format(median(values), form)
    return middle if len(values) < 2 else f"{middle} ({min(values):{form}} to {max(values):{form}})"


def mib(size: float) -> str:
    return f"{size / MIB:.0f} MiB"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.0f} MB"


def render(sections: Sequence[Section], machine: Machine, seconds: float, quick: bool) -> str:
    """The whole page."""
    parts = [_HEAD, _about(machine, seconds, quick)]
    bars = [bar for section in sections for bar in section.bars]
    if bars:
        parts.append("## The promises\n\n" + _bars(bars))
    parts += [_section(each) for each in sections]
    return "\n\n".join(parts) + "\n"


_HEAD = """# Benchmarks

Written by `make bench`. Every figure stands beside a floor from the same run: the disk, one core's SHA-256, the kernel's `sendfile`, a bare
application under the same worker class; or beside another server. What is compared takes turns, round by round, and the median counts: an
absolute figure belongs to the machine and the hour, a ratio lasts longer. Everything runs over the loopback interface, with clients in
processes of their own on the same cores. Other servers' programs are kept in `var/bench-peers`.

    make bench                                      # everything, at most 25 minutes and 20 GiB of disk; writes this page
    .venv/bin/python -m bench --quick               # smaller sizes, at most 5 minutes; prints only
    .venv/bin/python -m bench --only uploads        # a part: downloads, uploads, admission, small, kinds, peers"""


def _about(machine: Machine, seconds: float, quick: bool) -> str:
    table = Table(("", "this run"))
    table.rows = [
        ("date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
        ("machine", f"{machine.cores} cores ({machine.processor}), {machine.memory / 1024**3:.0f} GiB of memory"),
        ("system", f"{machine.kernel}, Python {machine.python}"),
        ("load average before, after", f"{machine.load_before}; {load_average()}"),
        ("busy with other work before, after", f"{machine.busy_before:.0%} of the cores; {busy_share():.0%}"),
        ("duration", f"{seconds:.0f} s{', quick: sizes are too small to judge by' if quick else ''}"),
    ]
    return _table(table)


def _bars(bars: Sequence[Bar]) -> str:
    rows: list[Sequence[str]] = [(bar.promise, bar.limit, bar.measured, "pass" if bar.met else "**miss**") for bar in bars]
    return _table(Table(("promise", "limit", "measured", ""), rows))


def _table(table: Table) -> str:
    lines = ["| " + " | ".join(table.columns) + " |", "| " + " | ".join("---" for _ in table.columns) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in table.rows])


def _section(section: Section) -> str:
    parts = [f"## {section.title}", section.text, *map(_table, section.tables)]
    parts += [f"{title}\n\n```\n{text.rstrip()}\n```" for title, text in section.listings]
    return "\n\n".join(parts)
