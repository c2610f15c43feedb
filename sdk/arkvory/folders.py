"""Whole folders: small files side by side, large ones one after the other, each in parts.

What is the same on both sides is not sent. One file that fails keeps no other from its turn; in the end they are named (Incomplete).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from arkvory import paths
from arkvory.errors import ArkvoryError, Incomplete, LocalFile
from arkvory.files import sha256_of
from arkvory.retry import Stop, Stopped
from arkvory.working import run_all

T = TypeVar("T")
# Path below the folder, and why.
Skipped = Callable[[str, str], None]
# What ends every other file's way too.
_FATAL = frozenset({"no_answer", "timed_out", "untrusted", "unauthenticated", "capacity_spent", "read_only", "repository_offline"})


class _There(Protocol):
    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str: ...


@dataclass(frozen=True)
class Job(Generic[T]):
    """One file: by what name it is told of, how large it is, and what is to be done (with how many parts at once)."""

    name: str
    size: int
    run: Callable[[int], T]


def do_all(jobs: Iterable[Job[T]], parallel: int, large: int, stop: Stop) -> list[T]:
    """What each came to, in the order of the jobs. Raises Incomplete when all have had their turn."""
    everything, work = list(jobs), _Work[T](stop)
    try:
        run_all([work.alone(job) for job in everything if job.size < large], parallel, stop)
        for job in everything:
            if job.size >= large:
                stop.check()
                work.do(job, parallel)
    except Stopped:
        if not work.failures:
            raise
    if work.failures:
        raise Incomplete(work.failures, len(everything))
    return [work.results[job.name] for job in everything]


class _Work(Generic[T]):
    def __init__(self, stop: Stop) -> None:
        self.results: dict[str, T] = {}
        self.failures: dict[str, ArkvoryError] = {}
        self._stop = stop
        self._lock = threading.Lock()

    def alone(self, job: Job[T]) -> Callable[[Stop], None]:
        """To be done beside others."""
        return lambda _stop: self.do(job, 1)

    def do(self, job: Job[T], parallel: int) -> None:
        try:
            result = job.run(parallel)
        except Stopped:
            raise
        except ArkvoryError as error:
            with self._lock:
                self.failures[job.name] = error
            if error.code in _FATAL:
                self._stop.set()
        else:
            with self._lock:
                self.results[job.name] = result


def files_below(folder: Path, skipped: Skipped, *, follow_links: bool = False) -> Iterator[tuple[str, Path]]:
    """Path with slashes and file, in order; what downloads have left is none of them, nor are empty folders.

    `skipped` hears of each symbolic link that is not followed, and why; with `follow_links` only of those that lead out of the folder, or
    up to one that they are in. The folder itself may be one. Raises LocalFile for a folder that cannot be read.
    """
    if not folder.is_dir():
        raise LocalFile(f"{folder} is not a folder")

    def unreadable(error: OSError) -> None:
        raise LocalFile(f"{error.filename} cannot be read: {error.strerror}") from error

    def goes(file: Path) -> bool:
        why = _why_not(folder, file, follow_links)
        if why:
            skipped(_encodable(file.relative_to(folder).as_posix()), why)
        return not why

    for place, below, names in os.walk(folder, onerror=unreadable, followlinks=follow_links):
        below[:] = [name for name in sorted(below) if goes(Path(place, name))]
        for name in sorted(names):
            file = Path(place, name)
            if not paths.is_left_over(name) and goes(file):
                yield _encodable(file.relative_to(folder).as_posix()), file


def _why_not(folder: Path, file: Path, follow_links: bool) -> str:
    """Why a symbolic link is not followed; empty for what is none, or is."""
    if not file.is_symlink():
        return ""
    if not follow_links:
        return "a symbolic link, not followed"
    target = _real(file)
    if not target.is_relative_to(_real(folder)):
        return "a symbolic link out of the folder, not followed"
    above = [each for each in file.parents if each.is_relative_to(folder)]
    if target.is_dir() and any(_real(each).is_relative_to(target) for each in above):
        return "a symbolic link to a folder that it is in, not followed"
    return ""


def _real(file: Path) -> Path:
    return Path(os.path.realpath(file))


def is_same(file: Path, there: Mapping[str, _There], path: str) -> bool:
    """Whether the other side has these bytes already."""
    known = there.get(path)
    return known is not None and file.is_file() and file.stat().st_size == known.size and sha256_of(file) == known.sha256


def _encodable(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise LocalFile(f"{path!r} is not UTF-8: an artifact cannot have that name") from None
    return path
