"""What the workers of one gunicorn master have in common. Made in the master, they inherit it by the fork; no variable carries it."""

from __future__ import annotations

import mmap
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path


class Board:
    """A page of memory that a master shares with all that it forks: whether one of them has begun to serve, and why one could not."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def serves(self) -> bool:
        """Whether a process of this master has begun to serve, ever."""
        return self._page[0] == 1

    def note_serving(self) -> None:
        self._page[0] = 1

    @property
    def refusal(self) -> str:
        """What kept the last process from starting; empty: nothing did."""
        return self._page[1:].partition(b"\0")[0].decode(errors="ignore")

    def note_refusal(self, words: str) -> None:
        self._page[1:] = words.encode()[: len(self._page) - 2].ljust(len(self._page) - 1, b"\0")


@dataclass(frozen=True)
class Master:
    """`token` tells it from every other, also from its predecessor on this machine; `secret` makes a local command the administrator."""

    token: str = field(default_factory=lambda: secrets.token_hex(16))
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    # Folder of the workers' metrics; null where one process answers for itself.
    metrics: Path | None = None
    board: Board = field(default_factory=Board, repr=False, compare=False)


_made: list[Master] = []


def begin(metrics: Path | None) -> Master:
    """In a gunicorn master, before it forks."""
    _made[:] = [Master(metrics=metrics)]
    return _made[0]


def join_workers(metrics: Path | None) -> Master:
    """In a worker: those of one machine share a name, though nobody forked them. `metrics`: of the master that started this one."""
    _made[:] = [Master(token=f"the workers on {socket.gethostname()}", metrics=metrics)]
    return _made[0]


def current() -> Master:
    """That of the process that began, in all that it forked since; else one of this process's own."""
    return _made[0] if _made else begin(None)
