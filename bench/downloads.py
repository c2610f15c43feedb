"""A large download: the server's CPU beside that of a process that only calls `sendfile`."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench import client, floors
from bench.report import MIB, Bar, Section, Table, median, spread
from bench.server import House, cpu_seconds, house, settle

GIB = 1024 * MIB
MOST_CPU = 0.3

TEXT = """One file, uploaded once and so in the kernel's memory, is downloaded whole; the client reads into one buffer and forgets. CPU is
user and system time of gunicorn's master and worker for one download, scaled to 1 GiB. The floor is a process that accepts, calls a
blocking `sendfile` in pieces of 1 MiB, and knows nothing of HTTP but its answer's head."""


@dataclass
class Rounds:
    """Of one way to send the file, each round's figures."""

    cpu: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def run(folder: Path, quick: bool) -> Section:
    size, rounds = (GIB // 4, 2) if quick else (GIB, 5)
    with house(folder, "downloads") as place, client.workers() as pool:
        pool.submit(client.upload, place.port, "/raw/public/large", place.authorization, size).result()
        pool.submit(client.upload, place.port, "/raw/private/large", place.authorization, size).result()
        stored = max((place.server.data / "blobs" / "sha256").rglob("*-*"), key=lambda path: path.stat().st_size)
        ours, private, floor = Rounds(), Rounds(), Rounds()
        with floors.sendfile_server(stored) as (port, pid):
            for _ in range(rounds):
                once(pool, ours, place.port, place.processes(), client.request("GET", "/raw/public/large"), size)
                once(pool, floor, port, [pid], client.request("GET", "/"), size)
                once(pool, private, place.port, place.processes(), client.request("GET", "/raw/private/large", place.authorization), size)
        return _section(place, ours, private, floor, size)


def once(pool: ProcessPoolExecutor, into: Rounds, port: int, pids: list[int], asked: bytes, size: int) -> None:
    settle(lambda: pids)
    before = cpu_seconds(pids)
    into.seconds.append(pool.submit(client.download, port, asked, size).result() * GIB / size)
    into.cpu.append((cpu_seconds(pids) - before) * GIB / size)


def _section(place: House, ours: Rounds, private: Rounds, floor: Rounds, size: int) -> Section:
    table = Table(("1 GiB", "CPU seconds in the server", "times the floor", "GB/s"))
    for name, each in (("public", ours), ("private, with a token", private), ("floor: `sendfile`", floor)):
        rates = [GIB / 1e9 / seconds for seconds in each.seconds]
        ratio = f"{median(each.cpu) / median(floor.cpu):.2f}" if median(floor.cpu) else "-"
        table.rows.append((name, spread(each.cpu, ".2f"), ratio, spread(rates, ".2f")))
    worst = max(median(ours.cpu), median(private.cpu))
    bar = Bar("CPU seconds of the server for a 1 GiB download", f"at most {MOST_CPU}", f"{worst:.2f}", worst <= MOST_CPU)
    return Section("Downloading 1 GiB", f"{TEXT} Size in this run: {size // MIB} MiB, {len(ours.cpu)} rounds.", [bar], [table])
