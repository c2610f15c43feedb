"""What a change and a poll cost with many instances: rows with young heartbeats, and mailboxes that a few greenlets poll."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gevent
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from app.cluster import mailbox
from app.cluster.loop import POLL_SECONDS
from tests.support.house import House

POLLERS = 4
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Publish:
    """What one publish costs with so many others: rows of mail, WAL in bytes, milliseconds (median, 99 of 100)."""

    instances: int
    rows: float
    wal: int
    median: float
    slowest: float


@dataclass(frozen=True)
class Polling:
    """Polling at the real pace with so many publishes a second: polls a second, CPU of PostgreSQL, delay of mail in milliseconds."""

    instances: int
    publishes: float
    polls: float
    cores: float
    microseconds: float
    delay: float
    slowest: float


class Crowd:
    """Instances that are rows only."""

    def __init__(self, house: House, postmaster: int) -> None:
        self.house = house
        self._postmaster = postmaster
        self.ids: list[int] = []

    def grow(self, count: int) -> None:
        missing = count - len(self.ids)
        rows = self.house.rows(
            "insert into arkvory_instances (name, slot, kind, host, pid, version) "
            "select 'crowd', n, 'web', 'h', 1, 'v' from generate_series(1, :count) n returning id", count=missing,
        )  # fmt: skip
        self.ids += [row[0] for row in rows]

    def beat(self) -> None:
        self.house.rows("update arkvory_instances set heartbeat_at = clock_timestamp() where id = any(:ids)", ids=self.ids)

    # -- publishing

    def measure_publish(self, times: int) -> Publish:
        """Nobody polls meanwhile."""
        house = self.house
        self.beat()
        house.rows("truncate arkvory_mail")
        house.publish("warm", b"x")
        known = house.value("select count(*) from arkvory_mail")
        wal, seconds = house.value("select pg_current_wal_insert_lsn()::text"), []
        for number in range(times):
            began = time.perf_counter()
            house.publish("file", b"version %d" % number)
            seconds.append((time.perf_counter() - began) * 1000)
        written = int(house.value("select pg_current_wal_insert_lsn() - cast(:wal as pg_lsn)", wal=wal))
        rows = (house.value("select count(*) from arkvory_mail") - known) / times
        house.rows("truncate arkvory_mail")
        return Publish(len(self.ids), rows, written // times, statistics.median(seconds), _percentile(seconds, 99))

    # -- polling

    def measure_polling(self, seconds: float, publishes: float) -> Polling:
        """Each mailbox every 200 ms, while somebody publishes so often."""
        self.beat()
        self.house.rows("truncate arkvory_mail")
        delays: list[float] = []
        polls = [0]
        end = time.monotonic() + seconds
        shares = [self.ids[number::POLLERS] for number in range(POLLERS)]
        cpu, began = self._cpu(), time.monotonic()
        with self._publishing(publishes):
            gevent.joinall([gevent.spawn(self._poll, share, end, delays, polls) for share in shares if share], raise_error=True)
        cpu, took = self._cpu() - cpu, time.monotonic() - began
        delays = delays or [0.0]
        return Polling(
            len(self.ids), publishes, polls[0] / took, cpu / took, cpu / polls[0] * 1e6, statistics.median(delays), _percentile(delays, 99)
        )

    @contextmanager
    def _publishing(self, every_second: float) -> Iterator[None]:
        def publish() -> None:
            while True:
                self.house.publish("file", os.urandom(8))
                gevent.sleep(1 / every_second)

        writer = gevent.spawn(publish) if every_second else None
        try:
            yield
        finally:
            if writer is not None:
                writer.kill()

    def _poll(self, ids: list[int], end: float, delays: list[float], polls: list[int]) -> None:
        engine = create_engine(self.house.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            due = {each: time.monotonic() + POLL_SECONDS * number / len(ids) for number, each in enumerate(ids)}
            while (now := time.monotonic()) < end:
                receiver = min(due, key=lambda each: due[each])
                gevent.sleep(max(0.0, due[receiver] - now))
                letters = mailbox.take(connection, receiver)
                if letters:
                    mailbox.acknowledge(connection, letters)
                delays += [each.age * 1000 for each in letters]
                polls[0] += 1
                due[receiver] += POLL_SECONDS

    def _cpu(self) -> float:
        """Seconds that PostgreSQL has used, its children that ended included."""
        children = Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children").read_text().split()
        return sum(_seconds(int(pid), own_children=pid == str(self._postmaster)) for pid in [*children, str(self._postmaster)])


def _seconds(pid: int, *, own_children: bool) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if own_children else 13])) / _TICKS


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]

