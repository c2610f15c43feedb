from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.pauses import Pause


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pause]:
    """pause(owner, name): the next call of it ends in a pause, after it has done its work."""

    def make(owner: Any, name: str, *, before: bool = False) -> Pause:
        made = Pause(getattr(owner, name), before=before)
        monkeypatch.setattr(owner, name, made)
        return made

    return make
