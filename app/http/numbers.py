"""The house's numbers of all workers of one gunicorn master, in a folder in memory that the master made (config/gunicorn.py).

    house-PID.json      the numbers of a worker, as it wrote them last
    house-gone.json     the sums of the counters of those that ended
    *.db                prometheus_client's own: request metrics

Whichever worker is asked answers with the sums. A counter never goes back when a worker ends; a gauge goes with it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

# By metric: pairs of a label's value (empty without a label) and a number.
Rows = Mapping[str, list[tuple[str, float]]]

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # the folder there is made by mkdtemp, for this user alone
_PREFIX = "arkvory-metrics-"
_GONE = "house-gone.json"


def make_folder() -> Path:
    """A fresh one for this master; those of masters that were killed go."""
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_PREFIX}*"):
        if _is_left_behind(folder):
            remove_folder(folder)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _is_left_behind(folder: Path) -> bool:
    pid = folder.name.removeprefix(_PREFIX).split("-")[0]
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        # Not another user's, nor one that somebody else is just removing.
        return os.access(folder, os.W_OK)
    except PermissionError:
        pass
    return False


def write(folder: Path, counters: Rows, gauges: Rows) -> None:
    """The numbers of this worker, for the others. Does nothing when the master is gone, and its folder with it."""
    with contextlib.suppress(FileNotFoundError):
        _replace(folder / f"house-{os.getpid()}.json", counters, gauges)


def with_others(folder: Path, rows: Rows) -> Rows:
    """The sums of `rows`, which are this worker's, and those of the others."""
    own = f"house-{os.getpid()}.json"
    others = (_read(path) for path in sorted(folder.glob("house-*.json")) if path.name != own)
    return _sums([rows, *itertools.chain.from_iterable(others)])


def bury(folder: Path, pid: int) -> None:
    """In the master, when a worker has ended: its counters stay in the sums, its gauges go."""
    left = folder / f"house-{pid}.json"
    if left.exists():
        _replace(folder / _GONE, _sums([_read(folder / _GONE)[0], _read(left)[0]]), {})
        left.unlink()
    for gauges in folder.glob(f"gauge_*_{pid}.db"):
        gauges.unlink()


def _sums(several: Iterable[Rows]) -> Rows:
    sums: dict[str, Counter[str]] = {}
    for rows in several:
        for name, values in rows.items():
            counted = sums.setdefault(name, Counter())
            for label, value in values:
                counted[label] += value  # type: ignore[assignment]  # a Counter of floats adds as well
    return {name: list(counted.items()) for name, counted in sums.items()}


def _read(path: Path) -> tuple[Rows, Rows]:
    """Counters and gauges."""
    try:
        counters, gauges = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, {}
    return counters, gauges


def _replace(path: Path, counters: Rows, gauges: Rows) -> None:
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(json.dumps([counters, gauges]))
    fresh.rename(path)
