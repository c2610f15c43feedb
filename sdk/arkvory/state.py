"""What a transfer remembers for the next one, should this one end: small JSON files, replaced as a whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_KEPT_SECONDS = 30 * 24 * 3600


def cache_folder() -> Path:
    """This user's, for what may be lost without harm."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "arkvory" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "arkvory"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arkvory"


def read(file: Path) -> dict[str, Any]:
    """Empty where there is none, or none that can be read."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write(file: Path, content: Any) -> None:
    """Whole or not at all, for its owner alone. What a killed one left half written, the next one or `remove` takes away."""
    _new(file).unlink(missing_ok=True)
    descriptor = os.open(_new(file), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as new:
        json.dump(content, new)
    _new(file).replace(file)


def remove(file: Path) -> None:
    for each in (file, _new(file)):
        with contextlib.suppress(OSError):
            each.unlink()


def _new(file: Path) -> Path:
    return file.with_name(file.name + ".new")


class Uploads:
    """Uploads under way, each by all that makes it the same one again: server, repository, path, file, its size and time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "uploads"

    def file(self, *facts: object) -> Path:
        """Where it is remembered. Raises OSError where nothing can be."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._forget_old()
        return self._folder / (hashlib.sha256(json.dumps([str(each) for each in facts]).encode()).hexdigest() + ".json")

    def _forget_old(self) -> None:
        for each in self._files():
            with contextlib.suppress(OSError):
                if each.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    each.unlink()

    def _files(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            yield from self._folder.glob("*.json*")
