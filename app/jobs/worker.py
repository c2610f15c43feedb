"""`arkvory worker` in a cluster: a process without HTTP that runs the jobs (DESIGN 2).

It changes content, so it is an instance like any other: with a name and a slot, a heartbeat, a mailbox and the probe, and it sends mail.
Its name is its server's with `:worker` behind it, which no server can have; the workers of one machine share that, in slots.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from gevent import event, get_hub, monkey

from app.cluster import master
from app.database import embedded
from app.database.pools import patch_for_gevent
from app.errors import ArkvoryError
from config import Settings
from config.settings import SettingError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class Process:
    """What the lifecycle asks of a process (as of gunicorn's worker); `parent` is the process with which it ends, null: none."""

    kind = "worker"
    age = 0

    def __init__(self, parent: int | None, embedded_database: embedded.EmbeddedPostgres | None) -> None:
        self.embedded_database = embedded_database
        self.alive = True
        # Ended by itself: whoever started it should start another one.
        self.replaced = False
        self._parent = parent
        self._stop = event.Event()

    def notify(self) -> None:
        """While it waits for PostgreSQL."""
        self._look_after_parent()

    def handle_exit(self, number: int | None, frame: Any) -> None:
        self.alive = False
        self.replaced = number is None
        # A signal arrives anywhere, also inside the loop: only this way in is safe.
        get_hub().loop.run_callback_threadsafe(self._stop.set)

    def wait(self) -> None:
        """Until it is to stop."""
        while self.alive:
            self._look_after_parent()
            self._stop.wait(LOOK_SECONDS)

    def _look_after_parent(self) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            log.info("the server that this worker belongs to is gone")
            self.alive = False


def main(parent: int | None = None, metrics: Path | None = None) -> None:
    """Runs until SIGTERM or SIGINT, or the parent's end; never returns. `metrics`: where it leaves its numbers for the parent."""
    with contextlib.ExitStack() as stack:
        try:
            settings = Settings.from_environment()
            running = None
            if settings.database_url is None:
                running = stack.enter_context(embedded.start(settings))
                settings = replace(settings, database_url=running.url)
        except (SettingError, ArkvoryError) as error:
            sys.exit(f"arkvory: {error}")
        # Not before: while PostgreSQL is being started, gevent's own would wait for a loop that does not turn.
        monkey.patch_os()
        monkey.patch_signal()
        monkey.patch_subprocess()
        master.join_workers(metrics)
        replaced = _work(settings.of_worker(), Process(parent, running))
    sys.exit(1 if replaced else 0)


def _work(settings: Settings, process: Process) -> bool:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, process.handle_exit)
    patch_for_gevent()
    # By name: the table of contents imports every room, this one's neighbours too.
    app = importlib.import_module("app").create_app(settings)
    house, lifecycle = app.extensions["arkvory"], app.extensions["arkvory.lifecycle"]
    lifecycle.start(process)
    try:
        jobs = ", ".join(f"{each.name} every {each.every_seconds:g} s" for each in lifecycle.jobs)
        sys.stdout.write(f"Arkvory works as {house.instance.label}: it runs the jobs of the cluster ({jobs}), and answers no requests\n")
        sys.stdout.flush()
        process.wait()
    finally:
        lifecycle.stopping()
        lifecycle.stop()
    log.info("this worker has ended")
    return process.replaced
