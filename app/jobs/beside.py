"""The worker that a gunicorn master starts beside its web processes, and starts again when it ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from app.http import numbers

# From one start to the next: the least, and the most for one that ends again and again.
RESTART_SECONDS = 2.0
LONGEST_RESTART_SECONDS = 60.0
STOP_SECONDS = 15.0


class Beside:
    """One worker; `log` is gunicorn's, `metrics` the folder in which the processes of this master leave their numbers."""

    def __init__(self, log: Any, metrics: Path) -> None:
        self._log = log
        self._metrics = metrics
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = float("-inf")
        self._pause = RESTART_SECONDS
        self._ends = False

    def look(self) -> None:
        """Called every second or so: start it, unless it runs."""
        if self._ends or self._runs():
            return
        if self._process is not None:
            self._log.warning("The worker (pid:%s) has ended; another one is started", self._process.pid)
            numbers.bury(self._metrics, self._process.pid)
            self._process = None
            lasted = time.monotonic() - self._started_at
            self._pause = RESTART_SECONDS if lasted > LONGEST_RESTART_SECONDS else min(self._pause * 2, LONGEST_RESTART_SECONDS)
        if time.monotonic() - self._started_at >= self._pause:
            self._started_at = time.monotonic()
            command = [sys.executable, "-m", "app.jobs", str(os.getpid()), str(self._metrics)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def restart(self) -> None:
        """Let another one take its place, of the present code."""
        if self._process is not None:
            self._process.terminate()

    def end(self) -> None:
        """Tell it to stop; none is started any more."""
        self._ends = True
        self.restart()

    def wait(self) -> None:
        """For its end, which is made if it does not come by itself."""
        if self._process is not None:
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._log.warning("The worker (pid:%s) does not stop; it is killed", self._process.pid)
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()

    def _runs(self) -> bool:
        # gunicorn may have reaped it: Popen then takes it for ended, which it is.
        return self._process is not None and self._process.poll() is None
