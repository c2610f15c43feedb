"""Where what need not outlive the tests is kept: in memory, where a database is made in an eighth of the time that a disk takes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
# The largest files of tests are of some GiB.
ENOUGH_BYTES = 8 * 1024**3


def folder_in_memory() -> Path | None:
    """Null where there is none, or none that is large enough."""
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    return SHARED_MEMORY if usable and shutil.disk_usage(SHARED_MEMORY).free >= ENOUGH_BYTES else None
