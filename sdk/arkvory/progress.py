"""What a transfer tells while it goes on: to a function of the caller's, or to a terminal.

    Event       one thing that happened
    Bars        bars on a terminal (rich)
    Lines       plain lines, for logs

The library says nothing by itself: `Client(..., progress=Bars())` or any function that takes an Event. It is called from several threads.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.progress import TaskID

State = Literal["started", "moving", "waiting", "checking", "done", "failed", "skipped"]
# A large file in a log: how far it is, so often.
LINE_SECONDS = 30.0
_VERBS = {"upload": "Uploaded", "download": "Downloaded"}


@dataclass(frozen=True)
class Event:
    """`done` of `size` bytes (null where nobody knows) of the file `name` are through; `words` say why it waits, is skipped, or failed.

    `waiting` without a name is about a request that belongs to no file; a file that is done with words was there already. `resumed` of its
    bytes went in an earlier call, which had no end.
    """

    kind: Literal["upload", "download", "request"]
    name: str
    state: State
    done: int = 0
    size: int | None = None
    words: str = ""
    resumed: int = 0


OnEvent = Callable[[Event], None]


def quiet(_event: Event) -> None:
    """Nobody wants to know."""


class Bars:
    """A bar for each file that moves. To be used as a context, so that the terminal is left in order."""

    def __init__(self, file: IO[str] | None = None) -> None:
        # Here, since who wants no bars need not wait for it.
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[words]}", markup=False), console=Console(file=file or sys.stderr),
        )  # fmt: skip
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        if not event.name:
            self._print(event)
            return
        with self._lock:
            self._show(event, self._task(event))

    def _task(self, event: Event) -> TaskID:
        key = (event.kind, event.name)
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(_clean(event.name), total=event.size, words="")
        return self._tasks[key]

    def _show(self, event: Event, task: TaskID) -> None:
        if event.state in ("done", "failed", "skipped"):
            self._progress.remove_task(task)
            del self._tasks[(event.kind, event.name)]
            self._print(event)
            return
        self._progress.update(task, completed=event.done, total=event.size, words=event.state if event.state == "checking" else "")

    def _print(self, event: Event) -> None:
        self._progress.console.print(_line(event), markup=False, highlight=False)


class Lines:
    """A line when a file waits, is done, skipped or failed, and every half a minute while one moves."""

    def __init__(self, file: IO[str] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file or sys.stderr
        self._clock = clock
        # Of files that move, when they were told of last.
        self._told: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.flush()

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.state in ("waiting", "done", "skipped", "failed") or self._is_due(event):
                self._file.write(_line(event) + "\n")
            if event.state in ("done", "failed"):
                self._told.pop((event.kind, event.name), None)

    def _is_due(self, event: Event) -> bool:
        now, key = self._clock(), (event.kind, event.name)
        if event.state != "moving" or now - self._told.setdefault(key, now) < LINE_SECONDS:
            return False
        self._told[key] = now
        return True


def size_in_words(number: int) -> str:
    """Bytes for people, in powers of 1024."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{number} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _line(event: Event) -> str:
    name = _clean(event.name)
    if event.state == "done":
        size = size_in_words(event.size or event.done)
        if event.words:
            return f"{name} {event.words} ({size})"
        resumed = f", {size_in_words(event.resumed)} of it before" if event.resumed else ""
        return f"{_VERBS[event.kind]} {name} ({size}{resumed})"
    if event.state == "moving":
        return f"{name}: {size_in_words(event.done)}" + (f" of {size_in_words(event.size)}" if event.size else "")
    return f"{name}: {_clean(event.words)}" if name else _clean(event.words)


def _clean(words: str) -> str:
    """A name may hold what a terminal would obey."""
    return "".join(char if char.isprintable() else "\ufffd" for char in words)
