"""Ending a greenlet at each point where it waits: at its first switch to the hub, at its second, and so on.

    Ender       counts the switches of one greenlet, and ends it at a chosen one
    House       one process's core within the whole application, that says what of it is not at rest
    Operation   what is ended
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar

import gevent
import pytest
from gevent import get_hub, getcurrent
from gevent.hub import Hub
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool
from werkzeug.test import TestResponse

from app import create_app
from app.errors import ArkvoryError
from app.http.parts import Parts
from app.repository.fetching import PLACES
from app.repository.reading import Ask
from config.settings import Settings
from tests.support import house as core
from tests.support.house import ADMIN, sha256

# Nobody who is told to end takes longer, nor does what comes after it, on however busy a machine; leases last longer.
SOON = 20.0
_watched: dict[Any, Ender] = {}


class Ended(BaseException):
    """Told to somebody who should end, as a time limit would."""


class Ender:
    """As a context it counts the switches of the greenlet that it is entered in. At the switch `at` that greenlet gets `error`:

    before it has waited, or `late`, when what it waited for has come: a kill may arrive in either moment.
    """

    def __init__(self, at: int = 0, error: BaseException | None = None, *, late: bool = False, twice: bool = False) -> None:
        """`twice`: once more at the switch behind that one, as whoever cleans up for too long is told again."""
        self.at = at
        self.error = error
        self.late = late
        self.twice = twice
        self.count = 0
        self.thrown = False
        # How whoever was watched ended.
        self.end: BaseException | None = None
        self.where = ""

    def __enter__(self) -> Ender:
        _watched[getcurrent()] = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del _watched[getcurrent()]
        self.end = error

    def switch(self, wait: Callable[[], Any]) -> Any:
        self.count += 1
        if self.error is None or self.count not in ((self.at, self.at + 1) if self.twice else (self.at,)):
            return wait()
        if self.late and not self.thrown:
            self._wait(wait)
        self.thrown, self.where = True, f"{_where()} {self.where}"
        raise self.error

    def _wait(self, wait: Callable[[], Any]) -> None:
        try:
            wait()
        except BaseException:
            # It came first: whoever is told now hears of it the next time.
            self.at += 1
            raise


def _where() -> str:
    steps = [each for each in traceback.extract_stack() if f"{os.sep}app{os.sep}" in each.filename or "sqlalchemy" in each.filename]
    return " < ".join(f"{each.filename.rpartition('/')[2]}:{each.lineno} {each.name}" for each in reversed(steps[-12:]))


def watch_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait of a greenlet is a switch to the hub."""
    switch = Hub.switch

    def watched(hub: Hub) -> Any:
        ender = _watched.get(getcurrent())
        return switch(hub) if ender is None else ender.switch(lambda: switch(hub))

    monkeypatch.setattr(Hub, "switch", watched)


class House(core.House):
    """With the application around it; looks into the database by one connection."""

    _looking: Connection | None = None

    def _built(self, settings: Settings) -> Parts:
        self.app = create_app(settings)
        parts: Parts = self.app.extensions["arkvory"]
        parts.local_secret = "local"
        return parts

    def rows(self, statement: str, **values: Any) -> list[Any]:
        if self._looking is None:
            self._looking = create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=NullPool).connect()
        result = self._looking.execute(text(statement), values)
        return list(result) if result.returns_rows else []

    def close(self) -> None:
        super().close()
        if self._looking is not None:
            self._looking.close()

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> TestResponse:
        """A request of the administrator, in this greenlet."""
        given = {"Authorization": "Bearer local", **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.app.test_client().open(path, method=method, data=body, headers=given, buffered=True)

    def done(self, method: str, path: str, body: bytes = b"", **headers: str) -> TestResponse:
        answer = self.ask(method, path, body, **headers)
        assert answer.status_code < 300, f"{method} {path}: {answer.status} {answer.text}"
        return answer

    # -- what must be so afterwards

    def unrest(self) -> dict[str, Any]:
        """What is still taken, or goes on, by name."""
        parts = self.parts
        transactions, admission, database = parts.transactions, parts.admission, parts.database
        found: dict[str, Any] = {
            "transactions": transactions.active,
            "commits": len(parts.cache._committing),
            "doubts": len(parts.cache.doubts.open),
            "turns": len(transactions.turns._turns._turns),
            "slots for waiting": len(transactions.turns._slots._turns),
            "turns of the admission": len(admission._turns._turns),
            "turn of the cleanup": 1 - parts.cleanup._turn.counter,
            "places": parts.places.used,
            "waiting for places": parts.places.waiting,
            "open uploads": len(admission.open_uploads),
            "parts": len(parts.part_holds._attempts),
            "completions": len(parts.completions._running),
            "fetches": parts.fetches.running,
            "places for fetches": PLACES - parts.fetches.places.counter,
            "lines": sum(each.connections - each._free.counter for each in parts.fetches.lines),
            "tries of an upstream": sum(each.breaker._trying for each in parts.fetches.lines),
            "write locks": database.write_lock._used,
            "threads": len(get_hub().threadpool),
            "checks of passwords": len(parts.identities.passwords._turns._turns),
            "files": _open_below(str(self.folder / "blobs")),
        }
        for pool in database.pools:
            kept = self._kept_sessions() if pool is database.session else 0
            found[f"connections of {pool.name}"] = pool.engine.pool.checkedout() - kept
            found[f"waiting for {pool.name}"] = pool.waiting
        held = self.rows(
            "select 'upload ' || id from arkvory_uploads where status = 'open' and holder is not null union all "
            "select 'part ' || number from arkvory_parts where holder is not null union all "
            "select name from arkvory_leases where name like '%/%'"
        )
        found["held"] = [each[0] for each in held]
        found["uploads of nobody"] = self.value(
            "select count(*) from arkvory_uploads where status = 'open' and target is null and lease_until > now() "
            "and not (id = any(:mine))",
            mine=list(admission.open_uploads),
        )
        return {name: each for name, each in found.items() if each}

    def _kept_sessions(self) -> int:
        parts = self.parts
        pinning = parts.pins and parts.pins._session
        kept = (parts.ownership._session, parts.loop and parts.loop._connection, pinning and pinning.held._session)
        return sum(each is not None and not each.closed and not each.invalidated for each in kept)

    def assert_at_rest(self, told: str) -> None:
        with contextlib.suppress(gevent.Timeout), gevent.Timeout(SOON):
            while unrest := self.unrest():
                self.parts.transactions.settle_doubts()
                gevent.sleep(0.005)
        assert not unrest, f"{told}: {unrest}"

    def assert_truth(self, path: str, repository: str = "files", format: str = "raw") -> None:
        """Memory says what the database says."""
        rows = self.rows(
            "select b.digest from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id join arkvory_repositories r "
            "on r.id = a.repository_id where r.name = :name and a.path = :path and r.deleted_at is null",
            name=repository, path=path,
        )  # fmt: skip
        assert self.shown(path, repository, format) == (rows[0][0] if rows else "not_found")

    def shown(self, path: str, repository: str = "files", format: str = "raw") -> str:
        """The digest of what a reader gets, or the code of the refusal."""
        try:
            return self.got(path, repository, format)
        except ArkvoryError as error:
            return error.code

    def got(self, path: str, repository: str = "files", format: str = "raw") -> str:
        """The digest of what a reader gets. Raises the refusal."""
        ask = Ask(format, repository, path, ADMIN)
        found, blob = self.parts.reader.open_blob(ask, self.parts.reader.find(ask))
        with contextlib.closing(blob), open(blob.fd, "rb", closefd=False) as file:
            body = file.read()
        assert sha256(body) == found.gate.digest
        return sha256(body)

    def assert_clean_in_the_end(self) -> None:
        """What was left to leases goes with them."""
        self.rows("update arkvory_uploads set lease_until = now() - interval '1 s' where status = 'open'")
        for _ in range(2):
            gevent.sleep(0.01)
            self.clean()
        self.assert_counted()
        self.assert_published_is_there()
        self.assert_no_strays()


def _open_below(folder: str) -> list[str]:
    found = []
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if (name := os.readlink(f"/proc/self/fd/{each}")).startswith(folder):
                found.append(name.removeprefix(folder))
    return found


class Operation:
    """Made anew for each time that it is ended: `number` is that of the time. What is made in `__init__` is there before."""

    environment: ClassVar[dict[str, str]] = {}
    # Whoever waits for what is ended gets an error of the domain, not its end.
    by_another: ClassVar[bool] = False

    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository()

    def __init__(self, house: House, number: int) -> None:
        self.house = house
        self.number = number
        self.begin()

    def begin(self) -> None:
        """What is to be there before."""

    def run(self, ender: Ender) -> None:
        with ender:
            self.act()

    def act(self) -> None:
        raise NotImplementedError

    def again(self) -> None:
        """The same once more, which must succeed at once."""
        self.act()

    def check(self) -> None:
        """What must be true after it was ended, and again after it was done."""


def ended(operation: Operation, ender: Ender) -> bool:
    """Run it and look at what is left of it; whether it came to the switch at which it is ended."""
    runner = gevent.spawn(_outcome, operation, ender)
    how = f"{type(ender.error).__name__}{' late' if ender.late else ''}{' twice' if ender.twice else ''}"
    told = f"{type(operation).__name__}, switch {ender.at}, {how}"
    runner.join(SOON)
    if not runner.ready():
        stack = "".join(traceback.format_stack(runner.gr_frame))
        pytest.fail(f"{told} at {ender.where}: it has not ended\n{stack}")
    told = f"{told} at {ender.where}"
    outcome = runner.value
    if not ender.thrown:
        if outcome is not None:
            raise outcome
        return False
    assert ender.end is ender.error, f"{told}: it ended with {ender.end!r}"
    if operation.by_another:
        assert outcome is None or outcome is ender.error or isinstance(outcome, ArkvoryError), f"{told}: {outcome!r}"
    else:
        assert outcome is ender.error, f"{told}: {outcome!r}"
    house = operation.house
    house.assert_at_rest(told)
    house.assert_counted()
    house.assert_published_is_there()
    house.assert_rows_and_files()
    operation.check()
    with gevent.Timeout(SOON, AssertionError(f"{told}: the same again takes long")):
        operation.again()
    house.assert_at_rest(f"{told}, and again")
    house.assert_counted()
    operation.check()
    return True


def _outcome(operation: Operation, ender: Ender) -> BaseException | None:
    try:
        operation.run(ender)
    except BaseException as error:
        return error
    return None


ENDS: tuple[tuple[type[BaseException], bool], ...] = (
    (gevent.GreenletExit, False), (gevent.Timeout, True), (Ended, False), (gevent.GreenletExit, True),
)  # fmt: skip


def end_of(number: int) -> tuple[BaseException, bool]:
    """One kind after the other: with what somebody is told to end, and whether late."""
    kind, late = ENDS[number % len(ENDS)]
    return kind(), late
