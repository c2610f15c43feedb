"""Threads that work at files. Whoever waits for one and is told to end (a kill, a time limit) ends when the thread is through.

So nobody closes, renames or removes a file under a thread, and nothing that a thread has opened is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
from gevent.event import AsyncResult

from app.errors import ArkvoryError

T = TypeVar("T")


def apart(work: Callable[..., T], *arguments: Any) -> T:
    """What it returns, from the thread pool. Raises what it raises."""
    flight = gevent.get_hub().threadpool.spawn(work, *arguments)
    try:
        flight.wait()
    except BaseException:
        flight.wait()
        raise
    result: T = flight.get()
    return result


def opened(work: Callable[..., T], *arguments: Any, close: Callable[[T], object]) -> T:
    """As `apart`, of what has to be closed: it is, in a thread, where nobody takes it any more."""
    flight = gevent.get_hub().threadpool.spawn(work, *arguments)
    try:
        flight.wait()
    except BaseException:
        # In a greenlet of its own: done also when whoever waits here is told to end once more.
        gevent.spawn(_take_back, flight, close).join()
        raise
    result: T = flight.get()
    return result


def _take_back(flight: AsyncResult, close: Callable[[Any], object]) -> None:
    flight.wait()
    if flight.successful() and flight.value is not None:
        with contextlib.suppress(ArkvoryError):
            apart(close, flight.value)
