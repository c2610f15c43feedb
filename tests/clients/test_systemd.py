"""The unit file of the deployment page, as systemd reads it, and its settings, as Arkvory does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from app.database import writelocks
from app.database.engines import RESERVED_CONNECTIONS
from config.settings import SETTINGS, Settings
from tests.support import clients
from tests.support.server import ROOT

UNIT = ROOT / "config" / "arkvory.service"


def complaints(folder: Path, unit: str) -> list[str]:
    """What systemd says about this unit; the programs that ours names are not installed here."""
    clients.require_packages("systemd-analyze")
    file = folder / "arkvory.service"
    file.write_text(unit.replace("/opt/arkvory/.venv/bin/arkvory", "/bin/sh"))
    done = subprocess.run([clients.require("systemd-analyze"), "verify", str(file)], capture_output=True, text=True, check=False)
    # The machine's other units are none of ours.
    return [line for line in (done.stdout + done.stderr).splitlines() if "arkvory" in line]


def test_systemd_takes_the_units_without_a_word(tmp_path: Path) -> None:
    unit = UNIT.read_text()
    assert complaints(tmp_path, (ROOT / "config" / "arkvory-worker.service").read_text()) == []
    assert complaints(tmp_path, unit) == []
    assert complaints(tmp_path, unit.replace("KillMode=", "KillMod=")) != []


def test_the_unit_waits_longer_than_a_stop_takes() -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert found is not None
    # config/gunicorn.py gives the workers ten seconds more than their requests.
    assert int(found.group(1)) > Settings.from_environment({}).graceful_seconds + 10


def test_the_settings_are_ones_that_the_server_takes() -> None:
    lines = (ROOT / "config" / "arkvory.env").read_text().splitlines()
    given = dict(line.lstrip("#").split("=", 1) for line in lines if re.fullmatch(r"#?[A-Z_]+=.*", line))
    known = {name for each in SETTINGS for name in each.variables}
    assert set(given) <= known
    settings = Settings.from_environment(given)
    assert (settings.cluster, settings.instance_id, settings.processes) == (True, "vm1", 2)
    # Two such servers, and a worker with each, fit into a PostgreSQL as it comes.
    web, worker = (sum(settings.pool_sizes(worker=each).values()) for each in (False, True))
    assert settings.serve_worker
    assert 2 * (settings.processes * web + worker + writelocks.LEAST) <= 100 - RESERVED_CONNECTIONS
