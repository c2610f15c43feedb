"""One run for a crowd: greenlets that ask for the same thing at once share one answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from gevent.event import AsyncResult

V = TypeVar("V")


class Interrupted(Exception):
    """Whoever ran was killed."""


class SingleFlight(Generic[V]):
    """The first caller runs, the others wait for its value or its error."""

    def __init__(self) -> None:
        self._running: dict[Hashable, AsyncResult] = {}

    def run(self, key: Hashable, work: Callable[[], V]) -> V:
        while (wait := self.running(key)) is not None:
            try:
                return wait()
            except Interrupted:
                # The end of another greenlet is not ours: once more, perhaps as the one that runs.
                continue
        return self.lead(key, work)

    def running(self, key: Hashable) -> Callable[[], V] | None:
        """Waits for the answer to what runs now: its value, its error, or Interrupted. None when nothing runs."""
        result = self._running.get(key)
        return None if result is None else result.get

    def lead(self, key: Hashable, work: Callable[[], V]) -> V:
        """Run, for all that ask meanwhile; nothing may be `running`."""
        result = self._running[key] = AsyncResult()
        try:
            value = work()
            result.set(value)
            return value
        except Exception as error:
            result.set_exception(error)
            raise
        except BaseException:
            result.set_exception(Interrupted())
            raise
        finally:
            del self._running[key]
