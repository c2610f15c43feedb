"""One run for a crowd: greenlets that ask for the same thing at once share one answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from gevent.event import AsyncResult

V = TypeVar("V")


class SingleFlight(Generic[V]):
    """The first caller runs, the others wait for its value or its error."""

    def __init__(self) -> None:
        self._running: dict[Hashable, AsyncResult] = {}

    def run(self, key: Hashable, work: Callable[[], V]) -> V:
        running = self._running.get(key)
        if running is not None:
            value: V = running.get()
            return value
        result = self._running[key] = AsyncResult()
        try:
            value = work()
            result.set(value)
            return value
        except BaseException as error:
            result.set_exception(error)
            raise
        finally:
            del self._running[key]
