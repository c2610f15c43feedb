"""Stopping a greenlet at a chosen point, to let others run there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gevent.event import Event


class Pause:
    """Stands in for a function. The first call stops (after its work, or before it) until `go`; later ones do not."""

    def __init__(self, function: Callable[..., Any], *, before: bool = False) -> None:
        self._function = function
        self._before = before
        self._armed = True
        # Set when somebody stands there.
        self.there, self._go = Event(), Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        mine, self._armed = self._armed, False
        if mine and self._before:
            self._stop()
        result = self._function(*arguments, **named)
        if mine and not self._before:
            self._stop()
        return result

    def __get__(self, owner: object, _kind: type) -> Callable[..., Any]:
        """As a method, when it stands in a class."""
        return functools.partial(self, owner)

    def _stop(self) -> None:
        self.there.set()
        assert self._go.wait(60), "nobody let it go on"

    def reached(self) -> None:
        """Wait until somebody stands there."""
        assert self.there.wait(20), "nobody came there"

    def go(self) -> None:
        self._go.set()
