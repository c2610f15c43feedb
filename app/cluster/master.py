"""What the workers of one gunicorn master have in common. Made in the master, they inherit it by the fork; no variable carries it."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Master:
    """`token` tells it from every other, also from its predecessor on this machine; `secret` makes a local command the administrator."""

    token: str = field(default_factory=lambda: secrets.token_hex(16))
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    # Folder of the workers' metrics; null where one process answers for itself.
    metrics: Path | None = None


_made: list[Master] = []


def begin(metrics: Path | None) -> Master:
    """In a gunicorn master, before it forks."""
    _made[:] = [Master(metrics=metrics)]
    return _made[0]


def join_workers(metrics: Path | None) -> Master:
    """In a worker: those of one machine share a name, though nobody forked them. `metrics`: of the master that started this one."""
    _made[:] = [Master(token=f"the workers on {socket.gethostname()}", metrics=metrics)]
    return _made[0]


def current() -> Master:
    """That of the process that began, in all that it forked since; else one of this process's own."""
    return _made[0] if _made else begin(None)
