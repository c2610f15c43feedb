"""Time that has passed, whatever happened to the machine meanwhile."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds on a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
