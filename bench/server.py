"""A whole Arkvory to be measured: started and filled by its own API, its CPU and memory read from /proc.

"The server" is gunicorn's master with everything below it; the embedded PostgreSQL is no child of it and is read apart.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.server import Server

MIB = 1024 * 1024
TICK = os.sysconf("SC_CLK_TCK")
USER, PASSWORD = "bench", "bench-bench-bench"


@dataclass
class House:
    """A running server with repositories, and a token that may read and write in all.

    These are `public`, `private` (raw), `python`, `node` (npm), `images` (oci).
    """

    server: Server
    token: str

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def authorization(self) -> str:
        """The header's line of the token, without its end."""
        return f"Authorization: Bearer {self.token}"

    def processes(self) -> list[int]:
        """gunicorn's master and all below it."""
        return tree(self.server.pid)

    def database_processes(self) -> list[int]:
        """The embedded PostgreSQL's."""
        return tree(int((self.server.data / "postgres" / "postmaster.pid").read_text().split("\n", 1)[0]))


@contextlib.contextmanager
def house(folder: Path, name: str) -> Iterator[House]:
    """Start a server with its data below `folder`, fill it, and end it again."""
    server = Server(folder / name, {}, cold=True)
    try:
        server.start()
        yield House(server, _furnish(server))
    finally:
        server.close()


def _furnish(server: Server) -> str:
    """Repositories, a user who is no administrator and gets in by rules, and its token."""
    server.repository("public", public=True)
    server.repository("private")
    server.repository("python", format="pypi", public=True)
    server.repository("node", format="npm", public=True)
    server.repository("images", format="oci", public=True)
    _created(server, "/api/v1/users", {"name": USER, "password": PASSWORD})
    for name in ("public", "private", "python", "node", "images"):
        _created(server, f"/api/v1/repositories/{name}/rules", {"subject": f"user:{USER}", "permissions": ["read", "write"]})
    wanted = {"name": "bench", "permissions": ["read", "write"]}
    return str(_created(server, "/api/v1/tokens", wanted, auth=(USER, PASSWORD))["token"])


def _created(server: Server, path: str, document: dict[str, Any], **options: Any) -> dict[str, Any]:
    answer = server.post(path, json=document, **options)
    if answer.status_code != 201:
        raise RuntimeError(f"POST {path}: {answer.status_code} {answer.text}")
    return dict(answer.json())


# Processes


def tree(pid: int) -> list[int]:
    """A process and all its descendants that live now."""
    found, new = [], [pid]
    while new:
        pid = new.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            new += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes and of the children that they have waited for; steps of 10 ms."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(each) for each in fields[11:15])
    return ticks / TICK


def peak_bytes(pids: Iterable[int]) -> int:
    """Sum of the largest resident sets (VmHWM) since each process began; pages that they share count more than once."""
    return sum(_field(f"/proc/{pid}/status", "VmHWM:") for pid in pids)


def resident_bytes(pids: Iterable[int]) -> int:
    """Sum of the resident sets now."""
    return sum(_field(f"/proc/{pid}/status", "VmRSS:") for pid in pids)


def proportional_bytes(pids: Iterable[int]) -> int:
    """Sum of the proportional sets (PSS) now: shared pages count once, whoever shares them."""
    return sum(_field(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in pids)


def _field(file: str, name: str) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


@dataclass
class PeakMemory:
    """Looks at the PSS of two groups of processes every `pause` seconds while it is entered; largest sums in bytes."""

    ours: Callable[[], list[int]]
    theirs: Callable[[], list[int]]
    pause: float = 0.25
    server: int = 0
    database: int = 0
    both: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> PeakMemory:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self.pause):
            server, database = proportional_bytes(self.ours()), proportional_bytes(self.theirs())
            self.server, self.database = max(self.server, server), max(self.database, database)
            self.both = max(self.both, server + database)


def settle(pids: Callable[[], list[int]], seconds: float = 5.0) -> None:
    """Wait until these processes use less than 3 % of a core, at most `seconds`: what came before must not be counted."""
    deadline = time.monotonic() + seconds
    before = cpu_seconds(pids())
    while time.monotonic() < deadline:
        time.sleep(0.33)
        now = cpu_seconds(pids())
        if now - before <= 0.01:
            return
        before = now
