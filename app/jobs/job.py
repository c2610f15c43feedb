"""What a job is, for those who offer one (catalog.py) and for who runs it (running.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection


class Run(Protocol):
    """One run of a job, as the job sees it."""

    def check(self) -> None:
        """Call it before each step that changes anything: raises LockLost when this process may not go on."""

    def tell(self, words: str) -> None:
        """What it is at, for people; written now and then."""


@dataclass(frozen=True)
class Job:
    """`run` does it once, from beginning to beginning every so many seconds, and returns what it did, for people.

    It has one runner in the cluster. Whatever it raises is logged and shown, and it is tried again. It may be ended at any point where
    it waits (GreenletExit): each of its steps is a transaction that is right by itself, and what is half done is gone on with. For a moment
    it may run beside its successor, when its process stood still: so it calls `Run.check`.
    """

    name: str
    every_seconds: float
    run: Callable[[Run], str | None]
    description: str


@dataclass(frozen=True)
class Family:
    """Jobs of which rows say how many there are, named `{kind}/...`; `find` reads them, now and then."""

    kind: str
    find: Callable[[Connection], Iterable[Job]]
