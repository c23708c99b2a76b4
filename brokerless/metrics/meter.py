"""Collect values of metrics in a process. Standard library only.

Latency is a histogram with fixed bounds, so that those of batches, tasks and hosts can be added. Percentiles of a sum
are those of all its rows; averages of percentiles are not, so nothing here computes them. CloudWatch computes
percentiles of values with counts (``Datum``), for any number of messages in one call.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.metrics.catalogue import Metric

LATENCY_BOUNDS_S: Final = tuple(round(10 ** (e / 24), 7) for e in range(-72, 73))
"""Upper bounds in seconds, 24 a decade from 1 ms to 1,000 s: a percentile is at most 10 % too high. 145 buckets, fewer
than the 150 values that one CloudWatch PutMetricData entry takes."""

_BEYOND_S: Final = 10 * LATENCY_BOUNDS_S[-1]
"""The value that is sent for a latency above all bounds."""


@dataclass(slots=True)
class Histogram:
    """Counts of latencies by ``LATENCY_BOUNDS_S``; the last bucket has all longer ones."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))

    @property
    def total(self) -> int:
        """The number of latencies."""
        return sum(self.counts)

    def add_counts(self, counts: Sequence[int]) -> None:
        """Add another histogram's counts."""
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]

    def percentile(self, percent: float) -> float | None:
        """Return the bound in seconds below which at least ``percent`` of the latencies are; None if there are none."""
        wanted = math.ceil(self.total * percent / 100)
        if not self.total:
            return None
        running = 0
        for bound, count in zip((*LATENCY_BOUNDS_S, math.inf), self.counts, strict=True):
            running += count
            if running >= max(wanted, 1):
                return bound
        return math.inf


@dataclass(frozen=True, slots=True)
class Datum:
    """Values of one metric since the last call, each with its count.

    Attributes:
        of: the dimension's value: the name of the topic, pipeline or stage.
    """

    metric: Metric
    of: str
    values: tuple[float, ...]
    counts: tuple[float, ...]


class Meter:
    """Collects values of metrics, from any thread, until they are taken to be sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[Metric, str], dict[float, float]] = {}

    def add(self, metric: Metric, of: str, value: float, count: float = 1.0) -> None:
        """Add a value that occurred ``count`` times.

        Infinity and NaN are ignored: CloudWatch refuses them, with everything else in the same request.
        """
        if not math.isfinite(value):
            return
        with self._lock:
            values = self._values.setdefault((metric, of), {})
            values[value] = values.get(value, 0.0) + count

    def add_histogram(self, metric: Metric, of: str, histogram: Histogram) -> None:
        """Add latencies in seconds; each counts as its bucket's upper bound."""
        bounds = (*LATENCY_BOUNDS_S, _BEYOND_S)
        for bound, count in zip(bounds, histogram.counts, strict=True):
            if count:
                self.add(metric, of, bound, count)

    def observe(self, metric: Metric, of: str, seconds: float) -> None:
        """Add one latency, rounded up to its bucket's bound, so that many latencies need few values."""
        bounds = (*LATENCY_BOUNDS_S, _BEYOND_S)
        self.add(metric, of, bounds[bisect_left(LATENCY_BOUNDS_S, seconds)])

    def take(self) -> list[Datum]:
        """Return the values since the last call."""
        with self._lock:
            taken, self._values = self._values, {}
        return [Datum(metric, of, tuple(v), tuple(v.values())) for (metric, of), v in taken.items()]
