"""One run for a crowd: greenlets that ask for the same thing at once share one answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from gevent.event import AsyncResult

V = TypeVar("V")


class _Interrupted(Exception):
    """Whoever ran was killed."""


class SingleFlight(Generic[V]):
    """The first caller runs, the others wait for its value or its error."""

    def __init__(self) -> None:
        self._running: dict[Hashable, AsyncResult] = {}

    def run(self, key: Hashable, work: Callable[[], V]) -> V:
        while (running := self._running.get(key)) is not None:
            try:
                shared: V = running.get()
                return shared
            except _Interrupted:
                # The end of another greenlet is not ours: once more, perhaps as the one that runs.
                continue
        result = self._running[key] = AsyncResult()
        try:
            value = work()
            result.set(value)
            return value
        except Exception as error:
            result.set_exception(error)
            raise
        except BaseException:
            result.set_exception(_Interrupted())
            raise
        finally:
            del self._running[key]
