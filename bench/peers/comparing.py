"""The rounds: every contestant takes its turn in each, and the medians stand beside Arkvory's."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from bench import client, downloads, floors
from bench.peers import ours, servers
from bench.peers.contestants import Contestant
from bench.peers.installing import Unavailable
from bench.report import MIB, Section, Table, median, megabytes, spread
from bench.server import House, cpu_seconds, house, proportional_bytes, settle, tree
from bench.small import CONNECTIONS, FILE, SIZE, Question, Rounds, ask, bare_server

GIB = 1024 * MIB
LARGE_UPLOAD = 64 * MIB
MOST_SECONDS = 240.0
CACHE = floors.ROOT / "var" / "bench-peers"
_FAILURES = (OSError, RuntimeError, ValueError, KeyError, HTTPException, subprocess.SubprocessError)

TEXT = """Arkvory and others that serve artifacts, all started for this run, on the same machine at the same time, asked in turns. Each
runs as its documentation says, in one process where that is a choice, with its access log on. What they do for an answer differs: Arkvory
hashes, fsyncs and commits an upload before it says so. A peer stands beside Arkvory's row of the same format, or that of raw where this
run has none of the format. CPU is that of all processes of a server; for Arkvory that is gunicorn and PostgreSQL together."""

WARM = "Files of {size} bytes, already asked for once, over {connections} connections that each wait for their answer, as above."
PAGE = """The Simple API's page of a project with {files} wheels, as pip asks for it: compressed JSON from Arkvory, JSON from
devpi-server, HTML from pypiserver. The abbreviated packument of a package with {files} versions, as npm asks for it. The manifest of an
image, which is a file and no page, by its tag and by its digest."""
UPLOADS = """New files of random bytes over one connection, one after the other, as each format's client sends them: PUT (raw, nginx), a
form (Python), a blob in two requests (OCI), a document with the tarball in base64 (npm). Arkvory gets a token,
devpi-server a login token, the others ask for nothing."""
DOWNLOAD = "One file of {size} MiB, in the kernel's memory, at most {rounds} rounds, scaled to 1 GiB."
MEMORY = "Proportional sets (PSS), all processes of each: after its start, and after all of the above."


@dataclass(frozen=True)
class Sizes:
    """How much is asked in a run."""

    files: int
    seconds: float
    rounds: int
    uploads: int
    large: int
    download: int


FULL = Sizes(files=200, seconds=1.0, rounds=4, uploads=60, large=LARGE_UPLOAD, download=GIB)
QUICK = Sizes(files=50, seconds=0.4, rounds=2, uploads=10, large=LARGE_UPLOAD // 4, download=GIB // 4)


@dataclass
class Field:
    """Who takes part, and who does not and why."""

    pool: ProcessPoolExecutor
    sizes: Sizes
    contestants: list[Contestant] = field(default_factory=list)
    peers: list[servers.Peer] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    deadline: float = field(default_factory=lambda: time.monotonic() + MOST_SECONDS)

    def rounds(self, most: int) -> Iterator[int]:
        """Fewer where the machine is slow, one at least: the rest of the benchmark needs its time too."""
        for number in range(most):
            if number == 0 or time.monotonic() < self.deadline:
                yield number

    def now(self, what: str) -> None:
        """Tell the terminal what is measured next."""
        print(f"bench: peers: {what} ...", file=sys.stderr, flush=True)

    def skip(self, name: str, error: Exception) -> None:
        """Only our own words are shown; what a program says goes to the terminal."""
        print(f"bench: {name}: {error!r}", file=sys.stderr)
        self.skipped.append((name, str(error) if isinstance(error, Unavailable) else "it did not answer as expected"))

    def those(self, able: Callable[[Contestant], object]) -> list[Contestant]:
        return [each for each in self.contestants if able(each)]

    @contextlib.contextmanager
    def allowing(self, contestant: Contestant) -> Iterator[None]:
        """A peer that fails leaves the field; when Arkvory does, the run has failed."""
        try:
            yield
        except _FAILURES as error:
            if contestant.ours:
                raise
            self.contestants.remove(contestant)
            self.skip(contestant.name, error)


def run(folder: Path, quick: bool) -> list[Section]:
    sizes = QUICK if quick else FULL
    with house(folder, "peers") as place, client.workers() as pool, contextlib.ExitStack() as stack:
        run = Field(pool, sizes)
        run.now("installing and starting them")
        groups = _groups(stack, run, place, folder)
        started = _memory(groups)
        port, pid = stack.enter_context(bare_server(folder))
        run.contestants.append(Contestant("floor: bare application", ours.PLAIN, port, lambda: tree(pid), FILE))
        _fill(run, place)
        sections = [_warm(run), _pages(run), _uploads(run), _large(run, place)]
        memory = _memory_section(groups, started)
    return [_about(run), *sections, memory]


def _groups(stack: contextlib.ExitStack, run: Field, place: House, folder: Path) -> dict[str, Callable[[], list[int]]]:
    """Start the peers; the processes of each server by its name."""
    for make in servers.ALL:
        peer = make(CACHE, folder / "servers")
        try:
            stack.enter_context(peer.running())
        except (Unavailable, *_FAILURES) as error:
            run.skip(peer.name, error)
        else:
            run.peers.append(peer)
    ours_alone = {"Arkvory": place.processes, "Arkvory's PostgreSQL": place.database_processes}
    return ours_alone | {peer.name: peer.processes for peer in run.peers}


def _fill(run: Field, place: House) -> None:
    run.now("filling them")
    run.contestants += ours.contestants(place, run.sizes.files)
    for peer in tuple(run.peers):
        try:
            run.contestants += peer.contestants(run.sizes.files)
        except _FAILURES as error:
            run.peers.remove(peer)
            run.skip(peer.name, error)
    families = [ours.PLAIN, *(family for peer in servers.ALL for family in peer.families)]
    run.contestants.sort(key=lambda each: families.index(each.family))


def _about(run: Field) -> Section:
    table = Table(("peer", "", ""), [(peer.name, peer.version, "takes part") for peer in run.peers])
    table.rows += [(name, "skipped", reason) for name, reason in run.skipped]
    return Section("Beside other servers", TEXT, tables=[table])


# What is asked again and again


def _warm(run: Field) -> Section:
    run.now("downloads of 10 KiB")
    found = _asked(run, {each: each.file for each in run.those(lambda each: each.file)})
    text = WARM.format(size=SIZE, connections=CONNECTIONS)
    return Section("Downloads of 10 KiB beside other servers", text, tables=[_table("10 KiB, warm", "requests per second", ".0f", found)])


def _pages(run: Field) -> Section:
    run.now("index pages")
    found = _asked(run, {each: each.page for each in run.those(lambda each: each.page)})
    text = PAGE.format(files=run.sizes.files)
    return Section("Index pages beside other servers", text, tables=[_table("index page", "requests per second", ".0f", found)])


def _asked(run: Field, requests: Mapping[Contestant, bytes | None]) -> dict[Contestant, Rounds]:
    found: dict[Contestant, Rounds] = {each: Rounds() for each in requests}
    for _ in run.rounds(run.sizes.rounds):
        for contestant in run.those(lambda each: each in found):
            with run.allowing(contestant):
                question = Question(contestant.name, requests[contestant] or b"", contestant.port, tuple(contestant.processes()))
                ask(run.pool, question, found[contestant], run.sizes.seconds)
    return _of_all_rounds(run, found)


def _of_all_rounds(run: Field, found: Mapping[Contestant, Rounds]) -> dict[Contestant, Rounds]:
    return {each: figures for each, figures in found.items() if each in run.contestants}


# Uploads


def _uploads(run: Field) -> Section:
    run.now("uploads")
    rounds = min(run.sizes.rounds, 3)
    small = _stored(run, rounds, run.sizes.uploads, SIZE, 1.0)
    large = _stored(run, rounds, 1, run.sizes.large, run.sizes.large / 1e6)
    tables = [
        _table("uploads of 10 KiB", "per second", ".0f", small),
        _table(f"uploads of {run.sizes.large // MIB} MiB", "MB/s", ".0f", large),
    ]
    return Section("Uploads beside other servers", UPLOADS, tables=tables)


def _stored(run: Field, rounds: int, count: int, size: int, unit: float) -> dict[Contestant, Rounds]:
    found = {each: Rounds() for each in run.those(lambda each: each.upload)}
    for _ in run.rounds(rounds):
        for contestant in run.those(lambda each: each in found):
            with run.allowing(contestant):
                _store(run, contestant, found[contestant], count, size, unit)
    return _of_all_rounds(run, found)


def _store(run: Field, contestant: Contestant, figures: Rounds, count: int, size: int, unit: float) -> None:
    """Rates in `unit` each, microseconds for each upload."""
    assert contestant.upload is not None
    steps = [step for _ in range(count) for step in contestant.upload(f"u{next(run.numbers)}", size)]
    settle(contestant.processes, 2.0)
    before = cpu_seconds(contestant.processes())
    seconds = run.pool.submit(client.walk, contestant.port, steps).result()
    figures.micros.append((cpu_seconds(contestant.processes()) - before) / count * 1e6)
    figures.rates.append(count / seconds * unit)


# A large file


def _large(run: Field, place: House) -> Section:
    run.now("a large file")
    size, rounds = run.sizes.download, min(run.sizes.rounds, 4)
    found = {"Arkvory": downloads.Rounds(), "nginx": downloads.Rounds()}
    run.pool.submit(client.upload, place.port, "/raw/public/large", place.authorization, size).result()
    nginx = next((each for each in run.peers if isinstance(each, servers.Nginx)), None)
    asked = b"" if nginx is None else nginx.store_large(size)
    for _ in run.rounds(rounds):
        ours_asked = client.request("GET", "/raw/public/large")
        downloads.once(run.pool, found["Arkvory"], place.port, place.processes(), ours_asked, size)
        if nginx is not None:
            downloads.once(run.pool, found["nginx"], nginx.port, nginx.processes(), asked, size)
    table = Table(("1 GiB", "CPU seconds in the server", "GB/s"))
    for name, each in found.items():
        if each.cpu:
            table.rows.append((name, spread(each.cpu, ".2f"), spread([GIB / 1e9 / seconds for seconds in each.seconds], ".2f")))
    return Section("A download of 1 GiB beside nginx", DOWNLOAD.format(size=size // MIB, rounds=rounds), tables=[table])


# Memory


def _memory(groups: Mapping[str, Callable[[], list[int]]]) -> dict[str, int]:
    return {name: proportional_bytes(processes()) for name, processes in groups.items()}


def _memory_section(groups: Mapping[str, Callable[[], list[int]]], started: Mapping[str, int]) -> Section:
    after = _memory(groups)
    table = Table(("memory", "started", "after the run"))
    table.rows += [(name, megabytes(started[name]), megabytes(after[name])) for name in groups]
    return Section("Memory beside other servers", MEMORY, tables=[table])


# Tables


def _table(title: str, unit: str, form: str, found: Mapping[Contestant, Rounds]) -> Table:
    """Ratios are medians of the rounds' ratios for speed; those of CPU are ratios of medians, since its clock is coarse."""
    table = Table((title, unit, "CPU ms each", "Arkvory's speed, times its", "its CPU, times Arkvory's"))
    for contestant, figures in found.items():
        beside = found[_beside(contestant, found)]
        speed = median([ours / its for ours, its in zip(beside.rates, figures.rates, strict=True)])
        cost = median(figures.micros) / max(median(beside.micros), 1e-9)
        millis = spread([each / 1000 for each in figures.micros], ".2f" if median(figures.micros) > 10_000 else ".3f")
        table.rows.append((contestant.name, spread(figures.rates, form), millis, f"{speed:.2f}", f"{cost:.2f}"))
    return table


def _beside(contestant: Contestant, found: Mapping[Contestant, Rounds]) -> Contestant:
    """Arkvory's of the same format, else of raw, else any."""
    own = [each for each in found if each.ours]
    wanted = (contestant.family, ours.PLAIN)
    return next((each for family in wanted for each in own if each.family == family), own[0])
