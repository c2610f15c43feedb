"""Ending greenlets for good."""

from __future__ import annotations

import gevent

# Longer than any job takes for what it still does at its end.
AGAIN_SECONDS = 10.0


def end(greenlet: gevent.Greenlet) -> None:
    """Returns when it has ended.

    Being killed is an exception like others: one that is raised while it cleans up can take its place, and whoever goes on after
    errors would go on for ever. It is told again until it ends.
    """
    while not greenlet.ready():
        greenlet.kill(timeout=AGAIN_SECONDS)
