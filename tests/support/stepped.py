"""config/gunicorn.py for servers whose steps are watched (tests/support/steps.py).

The master has the application's modules in memory before it forks, so that a worker that was killed is replaced in half a second.
"""

# ruff: noqa: F403  # it is gunicorn's configuration, with some names of it changed
from config.gunicorn import *

# isort: split
import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

import config.gunicorn as real

sys.path.insert(0, str(Path(__file__).parents[2]))


def on_starting(server: Any) -> None:
    real.on_starting(server)
    import app

    for name in ("app.api", "app.jobs.lifecycle", *(each.name for each in pkgutil.walk_packages(app.__path__, "app."))):
        if name in {"app.api", "app.jobs.lifecycle"} or name.endswith(".routes"):
            importlib.import_module(name)


def post_fork(server: Any, worker: Any) -> None:
    real.post_fork(server, worker)
    importlib.import_module("tests.support.steps").install()


def post_worker_init(worker: Any) -> None:
    importlib.import_module("tests.support.steps").watch(worker.wsgi)
    real.post_worker_init(worker)
