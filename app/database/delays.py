"""How long things took, as a histogram of Prometheus' kind."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


class Delays:
    """Counts by upper bound in seconds."""

    BOUNDS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.BOUNDS, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """How many took no longer than each bound, which is written as Prometheus does."""
        bounds = (*(f"{each:g}" for each in self.BOUNDS), "+Inf")
        return list(zip(bounds, accumulate(self.counts), strict=True))
