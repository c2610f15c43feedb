"""config/gunicorn.py: one web process (S1), clear refusals, no extras of gunicorn's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from tests.http.edge import ROOT, until


def refusal(*arguments: str, **settings: str) -> str:
    """What gunicorn says when it does not start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ARKVORY_", "WEB_", "DATABASE_"))}
    environment |= {"PORT": "0", "ARKVORY_BIND": "127.0.0.1", "ARKVORY_DATABASE_URL": "postgresql://127.0.0.1:1/none", **settings}
    command = [sys.executable, "-m", "gunicorn", "-c", "config/gunicorn.py", *arguments, "tests.http.sample:app"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(("settings", "words"), [
    ({"ARKVORY_DEPLOYMENT": "cluster"}, "set ARKVORY_INSTANCE_ID"),
    ({"ARKVORY_DEPLOYMENT": "cluster", "ARKVORY_INSTANCE_ID": "a/b"}, "ARKVORY_INSTANCE_ID: cannot use 'a/b'"),
    ({"ARKVORY_DEPLOYMENT": "single", "WEB_CONCURRENCY": "2"}, "single runs one web process"),
    ({"ARKVORY_DEPLOYMENT": "single", "WEB_CONCURRENCY": "2"}, "such as ARKVORY_INSTANCE_ID=vm1"),
    ({"ARKVORY_MAX_CONNECTIONS": "lots"}, "ARKVORY_MAX_CONNECTIONS"),
    ({"ARKVORY_TRUSTED_PROXIES": "*"}, "ARKVORY_TRUSTED_PROXIES"),
])
def test_a_setting_that_cannot_be_met_is_refused_with_the_reason(settings: dict[str, str], words: str) -> None:
    assert words in refusal(**settings)


def test_more_workers_by_option_are_refused() -> None:
    assert "several need ARKVORY_DEPLOYMENT=cluster" in refusal("--workers", "2")
    cluster = {"ARKVORY_DEPLOYMENT": "cluster", "ARKVORY_INSTANCE_ID": "a", "WEB_CONCURRENCY": "3"}
    assert "WEB_CONCURRENCY says how many" in refusal("--workers", "2", **cluster)


def test_a_higher_concurrency_without_a_deployment_runs_one_process_and_says_so(make_edge: Any) -> None:
    server = make_edge(WEB_CONCURRENCY="3")
    assert "WEB_CONCURRENCY=3 is ignored: one web process runs" in server.complaints()
    assert len(psutil.Process(server.process.pid).children()) == 1


def test_a_signal_for_more_processes_is_ignored(make_edge: Any) -> None:
    server = make_edge()
    server.process.send_signal(signal.SIGTTIN)
    until(lambda: "Handling signal: ttin" in server.errors.read_text())
    until(lambda: "one web process runs; several need" in server.complaints())
    time.sleep(0.5)
    assert len(psutil.Process(server.process.pid).children()) == 1

