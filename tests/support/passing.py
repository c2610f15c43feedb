"""Time that passes when a test lets it: what comes due is seen at once, and nothing comes due because the machine stood still."""

from __future__ import annotations

import importlib
import time
from datetime import datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import Any

import pytest

# That look at a clock of this process; the database has its own.
MODULES = (
    "app.access.throttle", "app.cache.regions", "app.repository.fetching", "app.repository.proxy", "app.repository.reading",
    "app.repository.withholding", "app.upstream.breaker",
)  # fmt: skip


class Passing:
    """Stands in for `time` and `datetime` in those modules. Monotonic time stands still but for what is let pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._passed = 0.0
        began = time.monotonic()
        clocks = SimpleNamespace(monotonic=lambda: began + self._passed, time=lambda: time.time() + self._passed)
        calendar = type("Calendar", (datetime,), {"now": self._now})
        for name in MODULES:
            module = importlib.import_module(name)
            if hasattr(module, "time"):
                monkeypatch.setattr(module, "time", clocks)
            if hasattr(module, "datetime"):
                monkeypatch.setattr(module, "datetime", calendar)

    def _now(self, zone: tzinfo | None = None) -> Any:
        return datetime.now(zone) + timedelta(seconds=self._passed)

    def let(self, seconds: float = 0.0, *, days: float = 0.0) -> None:
        """Pass."""
        self._passed += seconds + 86_400.0 * days
