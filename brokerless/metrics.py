"""Latency as a histogram with fixed bounds, so that those of batches, tasks and hosts add up. Standard library only.

Percentiles of a sum are those of all its rows; averages of percentiles are not, so nothing here computes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LATENCY_BOUNDS_S: Final = tuple(round(10 ** (e / 24), 7) for e in range(-72, 73))
"""Upper bounds in seconds, 24 a decade from 1 ms to 1,000 s: a percentile is at most 10 % too high. 145 buckets, fewer
than the 150 values that one CloudWatch PutMetricData entry takes."""


@dataclass(slots=True)
class Histogram:
    """Counts of latencies by ``LATENCY_BOUNDS_S``; the last bucket holds all that are longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))

    @property
    def total(self) -> int:
        """How many latencies were counted."""
        return sum(self.counts)

    def add_counts(self, counts: Sequence[int]) -> None:
        """Adds another histogram's counts."""
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]

    def percentile(self, percent: float) -> float | None:
        """The bound in seconds below which at least ``percent`` of the latencies lie; None of nothing."""
        wanted = math.ceil(self.total * percent / 100)
        if not self.total:
            return None
        running = 0
        for bound, count in zip((*LATENCY_BOUNDS_S, math.inf), self.counts, strict=True):
            running += count
            if running >= max(wanted, 1):
                return bound
        return math.inf
