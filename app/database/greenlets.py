"""Ending greenlets for good; and what is done to its end, whoever is told to end meanwhile."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import gevent

log = logging.getLogger(__name__)

# Longer than any job takes for what it still does at its end.
AGAIN_SECONDS = 10.0


def end(greenlet: gevent.Greenlet) -> None:
    """Returns when it has ended.

    Being killed is an exception like others: one that is raised while it cleans up can take its place, and whoever goes on after
    errors would go on for ever. It is told again until it ends.
    """
    while not greenlet.ready():
        greenlet.kill(timeout=AGAIN_SECONDS)


def to_the_end(work: Callable[[], object]) -> None:
    """Do it in a greenlet of its own: whoever waits here and is told to end (a kill, a time limit) ends when it is done.

    For whatever gives back what was taken: broken off half way, that would be lost. What the work raises is raised here, but never in
    place of an end that its caller was told of before or is told of now.
    """
    ending = sys.exc_info()[1]
    failures: list[BaseException] = []
    working = gevent.spawn(_try, work, failures)
    try:
        working.join()
    except BaseException:
        # Told twice, it is not waited for any more, and done all the same.
        working.join()
        _tell(failures)
        raise
    if is_told_to_end(ending):
        _tell(failures)
    elif failures:
        raise failures[0]


def is_told_to_end(error: BaseException | None) -> bool:
    """Whether it is no failure of what was done, but somebody who wants it to stop."""
    return error is not None and not isinstance(error, Exception)


def _try(work: Callable[[], object], failures: list[BaseException]) -> None:
    try:
        work()
    except BaseException as error:
        failures.append(error)


def _tell(failures: list[BaseException]) -> None:
    for each in failures:
        log.warning("somebody was told to end, and could not give everything back: %s", each)
