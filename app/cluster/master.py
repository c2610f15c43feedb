"""What the workers of one gunicorn master have in common. Made in the master, they inherit it by the fork; no variable carries it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Master:
    """`token` tells it from every other, also from its predecessor on this machine; `secret` makes a local command the administrator."""

    token: str = field(default_factory=lambda: secrets.token_hex(16))
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


_made: list[Master] = []


def current() -> Master:
    """The same one in the process that asked first and in all that it forked since."""
    if not _made:
        _made.append(Master())
    return _made[0]
