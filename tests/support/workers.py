"""Workers of a cluster, each a process of its own, as somebody would start it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.house import eventually
from tests.support.server import ROOT, STOP_SECONDS
from tests.support.warm import Started, Wanted, servers

WORKS = "Arkvory works as"


@dataclass
class Worker:
    """What `arkvory worker` becomes, with these variables, or that command itself; its log below `folder`."""

    folder: Path
    number: int
    name: str
    database_url: str = field(repr=False)
    environment: dict[str, str] = field(default_factory=dict)
    by_command: bool = False
    process: Started | None = None

    def start(self, ready: bool = True) -> Worker:
        """Start it and (if `ready`) wait until it works."""
        given = {name: os.environ[name] for name in ("PATH", "HOME", "PG_BIN") if name in os.environ}
        own = {
            "ARKVORY_DEPLOYMENT": "cluster", "ARKVORY_INSTANCE_ID": self.name, "ARKVORY_DATABASE_URL": self.database_url,
            "ARKVORY_DATA_DIR": str(self.folder / "data"), "ARKVORY_CLEANUP_SECONDS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        log = os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        program, arguments = ("arkvory", ("worker",)) if self.by_command else ("app.jobs", ())
        self.process = servers.start(Wanted(program, arguments, given | own | self.environment), log)
        if ready:
            eventually(lambda: WORKS in self.log() or self.process is None or self.process.poll() is not None, 60)
            assert WORKS in self.log(), self.log()
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def label(self) -> str:
        """Under which it began last."""
        return str(re.findall(rf"{WORKS} (\S+): ", self.log())[-1])

    def log(self) -> str:
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    @property
    def _log_file(self) -> Path:
        return self.folder / f"worker-{self.number}.log"

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(seconds)

    def close(self) -> None:
        """End it, whatever its state."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
            self.process.wait(STOP_SECONDS)
