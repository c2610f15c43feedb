"""A large upload: its speed beside the disk's and SHA-256's, what it does to other requests, and to memory."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench import client, floors
from bench.client import Pings
from bench.report import MIB, Bar, Section, Table, median, megabytes, percentile, spread
from bench.server import House, PeakMemory, cpu_seconds, house, peak_bytes, settle

GIB = 1024 * MIB
LEAST_SPEED = 0.8
MOST_MEMORY = 250_000_000
MOST_WAIT = 0.1

TEXT = """In each round: write and fsync a new file of that size on the same file system, in the same pieces of 1 MiB; SHA-256 of as many
bytes by one thread; then one PUT with a token, from its first byte to the answer (so hashed, written, fsynced, placed and committed). Some
seconds before either writes, the kernel drops the files of that size, so that both find memory in the same state. The speed is compared
with the slower of the two floors of its round: it needs two cores for itself, so other work on the machine lowers it more than the floors.
During the uploads another process asks for a warm file of 10 KiB and for `/health/live`, over a connection each, every 25 ms; a request
that is due while the one before still waits counts that wait too. The same requests without an upload are the floor. Memory: sum of the
peaks of the resident sets of all gunicorn processes since they started (VmHWM, password checks included); beside it the largest sum of
proportional sets (PSS, shared pages once), with and without the embedded PostgreSQL."""


@dataclass
class _Rounds:
    """Each round's seconds."""

    write: list[float] = field(default_factory=list)
    sha256: list[float] = field(default_factory=list)
    upload: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    pings: list[float] = field(default_factory=list)

    @property
    def speeds(self) -> list[float]:
        """Upload's speed as a share of that of the slower floor, round by round."""
        return [max(write, sha256) / upload for write, sha256, upload in zip(self.write, self.sha256, self.upload, strict=True)]


def run(folder: Path, quick: bool) -> Section:
    size, rounds = (GIB // 4, 2) if quick else (GIB, 4)
    with house(folder, "uploads") as place, client.workers() as pool:
        place.server.put("/raw/public/small", bytes(10240))
        requests = [client.request("GET", "/raw/public/small"), client.request("GET", "/health/live")]
        with Pings(place.port, requests) as quiet:
            settle(place.processes, 2.0)
        pool.submit(floors.write_seconds, place.server.folder / "warm-up", size).result()
        found = _Rounds()
        with PeakMemory(place.processes, place.database_processes) as memory:
            for number in range(rounds):
                _round(pool, place, requests, found, number, size)
        peak = peak_bytes(place.processes())
    section = Section("Uploading 1 GiB", f"{TEXT} Size in this run: {size // MIB} MiB, {rounds} rounds.")
    _speed(section, found, size)
    _waits(section, found.pings, quiet.seconds)
    _memory(section, peak, memory)
    return section


def _round(pool: ProcessPoolExecutor, place: House, requests: list[bytes], found: _Rounds, number: int, size: int) -> None:
    found.sha256.append(pool.submit(floors.sha256_seconds, size).result())
    floors.forget(place.server.folder, size)
    found.write.append(pool.submit(floors.write_seconds, place.server.folder / f"floor-{number}", size).result())
    floors.forget(place.server.folder, size)
    before = cpu_seconds(place.processes())
    with Pings(place.port, requests) as pings:
        found.upload.append(pool.submit(client.upload, place.port, f"/raw/public/large-{number}", place.authorization, size).result())
    found.cpu.append(cpu_seconds(place.processes()) - before)
    found.pings += pings.seconds


def _speed(section: Section, found: _Rounds, size: int) -> None:
    table = Table(("1 GiB", "MB/s"))
    for name, seconds in (("upload", found.upload), ("floor: write and fsync", found.write), ("floor: SHA-256, one core", found.sha256)):
        table.rows.append((name, spread([size / 1e6 / each for each in seconds], ".0f")))
    table.rows.append(("upload / slower floor", spread(found.speeds, ".2f")))
    table.rows.append(("CPU seconds of the server per GiB (pings included)", spread([each * GIB / size for each in found.cpu], ".2f")))
    speed = median(found.speeds)
    promise = "speed of a 1 GiB upload, beside the slower of disk write and SHA-256"
    section.bars.append(Bar(promise, f"at least {LEAST_SPEED}", f"{speed:.2f}", speed >= LEAST_SPEED))
    section.tables.append(table)


def _waits(section: Section, during: list[float], quiet: list[float]) -> None:
    table = Table(("other requests, ms", "answers", "median", "99th percentile", "longest"))
    for name, seconds in (("during uploads", during), ("floor: no upload", quiet)):
        ms = [each * 1000 for each in seconds]
        table.rows.append((name, str(len(ms)), f"{median(ms):.1f}", f"{percentile(ms, 0.99):.1f}", f"{max(ms):.1f}"))
    wait = percentile(during, 0.99)
    limit = f"under {MOST_WAIT * 1000:.0f} ms"
    section.bars.append(Bar("99th percentile of other requests during a 1 GiB upload", limit, f"{wait * 1000:.1f} ms", wait < MOST_WAIT))
    section.tables.append(table)


def _memory(section: Section, peak: int, memory: PeakMemory) -> None:
    table = Table(("memory, peak", ""))
    table.rows += [
        ("gunicorn's processes, sum of resident sets", megabytes(peak)),
        ("gunicorn's processes, PSS", megabytes(memory.server)),
        ("embedded PostgreSQL, PSS", megabytes(memory.database)),
        ("both together, PSS", megabytes(memory.both)),
    ]
    limit = f"under {megabytes(MOST_MEMORY)}"
    section.bars.append(Bar("memory of the whole server during 1 GiB uploads", limit, megabytes(peak), peak < MOST_MEMORY))
    section.tables.append(table)
