"""What is compared: a door of Arkvory's or of a peer's, and what is asked of it.

To set a further format of Arkvory's beside its peer, give it a contestant of the peer's family in `ours.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.client import Step

PROJECT = "sample"


@dataclass(frozen=True, eq=False)
class Contestant:
    """`file` and `page` are whole requests; `upload` makes the steps that store so many random bytes under a name that is used once."""

    name: str
    family: str
    port: int
    processes: Callable[[], list[int]]
    file: bytes | None = None
    page: bytes | None = None
    upload: Callable[[str, int], list[Step]] | None = None
    ours: bool = False
