"""Rows of tables and plots: the repeats of one measurement are one row, and no run is omitted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.result import Result

OURS: Final = "brokerless"
"""The peer that the others are compared with; the names of its variants begin with it."""

_SAME: Final = (
    "peer", "label", "rate", "hops", "pacing", "backend", "commit_ms", "payload_bytes", "partitions", "producers",
    "seconds", "warm_up_s", "published",
)  # fmt: skip
_COMPARABLE: Final = ("pacing", "backend", "commit_ms", "payload_bytes")


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the repeats of a run."""

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """Return the distance of the extremes as a fraction of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


@dataclass(slots=True)
class Row:
    """All repeats of one measurement that ran; never empty. They have the same settings."""

    runs: list[Result] = field(default_factory=list)

    @property
    def one(self) -> Result:
        """Return one run, for what all repeats have in common."""
        return self.runs[0]

    @property
    def clean(self) -> bool:
        """Return whether all runs are clean."""
        return all(run.clean for run in self.runs)

    @property
    def is_ours(self) -> bool:
        """Return whether this is brokerless, not a peer to compare it with."""
        return self.one.peer.startswith(OURS)

    def spread(self, figure: str) -> Spread | None:
        """Return the median and the extremes of an attribute of ``Result``; None if no run has it."""
        values = [value for run in self.runs if (value := getattr(run, figure)) is not None]
        return Spread(median(values), min(values), max(values)) if values else None

    def median(self, figure: str) -> float | None:
        """Return the median alone."""
        spread = self.spread(figure)
        return spread.median if spread else None

    def typical(self, needed: str) -> Result | None:
        """Return the run with the median p99 among those that have ``needed``, for plots that show only one."""
        having = [run for run in self.runs if getattr(run, needed) and run.p99_s is not None]
        if not having:
            return None
        middle = median_low(run.p99_s for run in having if run.p99_s is not None)
        return next(run for run in having if run.p99_s == middle)


def collapse(runs: Iterable[Result]) -> list[Row]:
    """Return rows of all runs that took place, in order of hops, rate and latency."""
    rows: dict[tuple[Any, ...], Row] = {}
    for run in runs:
        if not run.skipped:
            rows.setdefault(tuple(getattr(run, name) for name in _SAME), Row()).runs.append(run)
    return sorted(rows.values(), key=_order)


def comparable(rows: Sequence[Row]) -> list[Row]:
    """Return the measured rows with the conditions of most peers, one for each peer, rate and hops.

    Of several candidates, such as a short and a long run, choose the one with the length of most peers at that rate,
    because longer runs are warmer; then the one with most repeats, then the latest.
    """
    measured = [row for row in rows if not row.one.published]
    if not measured:
        return []
    peers = Counter(conditions for _, conditions in {(row.one.peer, _conditions(row)) for row in measured})
    sizes = Counter(_conditions(row) for row in measured)
    chosen = max(peers, key=lambda conditions: (peers[conditions], sizes[conditions], str(conditions)))
    qualified = [row for row in measured if _conditions(row) == chosen]
    shared = Counter(length for _, length in {(row.one.peer, _length(row)) for row in qualified})

    def rank(row: Row) -> tuple[Any, ...]:
        return shared[_length(row)], len(row.runs), max(run.started for run in row.runs)

    best: dict[tuple[str, int, int], Row] = {}
    for row in qualified:
        key = (row.one.peer, row.one.rate, row.one.hops)
        best[key] = max(best.get(key, row), row, key=rank)
    return sorted(best.values(), key=_order)


def common_rate(rows: Sequence[Row]) -> int | None:
    """Return the rate at which most peers can be compared; the lowest of several."""
    counts = Counter(row.one.rate for row in rows)
    return min(counts, key=lambda rate: (-counts[rate], rate)) if counts else None


def _conditions(row: Row) -> tuple[Any, ...]:
    return tuple(getattr(row.one, name) for name in _COMPARABLE)


def _length(row: Row) -> tuple[Any, ...]:
    return row.one.rate, row.one.hops, row.one.seconds, row.one.warm_up_s


def _order(row: Row) -> tuple[Any, ...]:
    p99 = row.median("p99_s")
    settings = tuple(str(getattr(row.one, name)) for name in _SAME)
    return (row.one.hops, row.one.rate, float("inf") if p99 is None else p99, settings)
