"""The figures of a run from the reader's record: verdict, latencies, percentiles, windows, and the published CSV.

All computations are arithmetic on arrays after the run, so that they do not slow down the reader. Runs have up to about
60 million rows: ``Arrivals`` needs 5 bytes per row and ``Latencies`` 13; most temporary arrays have ``BLOCK`` rows.

Percentiles are exact: the nearest rank of the sorted values, never interpolated, so each is the latency of a message.
Only ``published_csv`` counts in buckets, like the benchmark whose format it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.judge import Seen
from benchmarks.result import Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.spec import Spec

ENDS_S: Final = 300.0
BLOCK: Final = 1_000_000
PERCENTILES: Final = (50, 75, 85, 95, 99, 99.9, 100)

_NO_PRODUCER: Final = 2**8 - 1
_NO_NUMBER: Final = 2**32 - 1
_WINDOW_S: Final = 5.0
_MOST_WINDOWS: Final = 120

_PUBLISHED_HEADER: Final = "time_from_start,p50,p75,p85,p95,p99"
_PUBLISHED_PERCENTILES: Final = (50, 75, 85, 95, 99)
_PUBLISHED_BUCKETS: Final = 10_001  # of 10 ms each; the last one is for 100 s and more


class Arrivals:
    """The rows that a reader received, in the order of arrival.

    ``producer`` (uint8) and ``number`` (uint32) have an element per row, ``at`` (seconds since the epoch) and
    ``counts`` (rows) one per batch. They are views, which must be released before the next ``add``.
    """

    def __init__(self) -> None:
        # Growing a bytearray moves pages, not bytes; joining a list of arrays would need twice the memory.
        self._at = bytearray()
        self._counts = bytearray()
        self._producer = bytearray()
        self._number = bytearray()

    def __len__(self) -> int:
        return len(self._producer)

    def add(self, at: float, producer: np.ndarray, number: np.ndarray) -> None:
        """Record a batch that arrived at one time (``at``: seconds since the epoch).

        Invalid ids, such as negative ones, are recorded as the greatest possible id and so count as unknown.
        """
        if not len(producer):
            return
        if len(producer) != len(number):
            raise ValueError(f"Each row needs a producer and a number, got {len(producer)} and {len(number)}.")
        right = (producer >= 0) & (producer < _NO_PRODUCER) & (number >= 0) & (number < _NO_NUMBER)
        self._at += np.float64(at).tobytes()
        self._counts += np.int64(len(producer)).tobytes()
        self._producer += np.where(right, producer, _NO_PRODUCER).astype(np.uint8).tobytes()
        self._number += np.where(right, number, _NO_NUMBER).astype(np.uint32).tobytes()

    @property
    def at(self) -> np.ndarray:
        """Return the arrival time of each batch, in seconds since the epoch."""
        return np.frombuffer(self._at, np.float64)

    @property
    def counts(self) -> np.ndarray:
        """Return the number of rows of each batch."""
        return np.frombuffer(self._counts, np.int64)

    @property
    def producer(self) -> np.ndarray:
        """Return the producer of each row."""
        return np.frombuffer(self._producer, np.uint8)

    @property
    def number(self) -> np.ndarray:
        """Return each row's number among its producer's messages."""
        return np.frombuffer(self._number, np.uint32)

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file, uncompressed because it is read only once."""
        with path.open("wb") as file:
            np.savez(file, at=self.at, counts=self.counts, producer=self.producer, number=self.number)

    @classmethod
    def load(cls, path: Path) -> Arrivals:
        """Read a file that ``save`` wrote."""
        arrivals = cls()
        with np.load(path) as file:
            for name in ("at", "counts", "producer", "number"):
                setattr(arrivals, f"_{name}", bytearray(file[name].view(np.uint8)))
        return arrivals


@dataclass(frozen=True, slots=True)
class Verdict:
    """The counts of a run's messages by their fate.

    Attributes:
        sent: messages given to the peer.
        acknowledged: messages that the peer acknowledged.
        seen: rows that arrived, of any kind.
        lost: sent messages that never arrived.
        duplicated: rows after the first one of their message.
        out_of_order: rows with a lower number than an earlier row of the same producer.
        unknown: rows with an id that was never sent.
    """

    sent: int
    acknowledged: int
    seen: int
    lost: int
    duplicated: int
    out_of_order: int
    unknown: int

    @property
    def problems(self) -> list[str]:
        """Return why the run is not clean, as texts; empty if it is clean."""
        counts = {
            "not acknowledged": self.sent - self.acknowledged,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "out of order": self.out_of_order,
            "with an id that was never sent": self.unknown,
        }
        return [f"{n:,} {'message' if n == 1 else 'messages'} {what}" for what, n in counts.items() if n]


@dataclass(frozen=True, slots=True)
class Latencies:
    """One element per arrived message (its first arrival), in order of arrival within each producer.

    Attributes:
        latency_s: float32; from the intended send time to the arrival. Negative if clocks disagree.
        intended_s: float64; the intended send time, in seconds after the start of the run.
        after_warm_up: the messages with an intended send time after the warm-up.
    """

    latency_s: np.ndarray
    intended_s: np.ndarray
    after_warm_up: np.ndarray

    @property
    def measured_s(self) -> np.ndarray:
        """Return the latencies of measured messages."""
        measured: np.ndarray = self.latency_s[self.after_warm_up]
        return measured

    @property
    def negative(self) -> int:
        """Return the number of messages that arrived before their intended send time, because of a wrong clock."""
        return int(np.count_nonzero(self.latency_s < 0))


def verdict(spec: Spec, arrivals: Arrivals, sent: Sequence[int], acknowledged: Sequence[int]) -> Verdict:
    """Count messages that were lost, duplicated, out of order or unknown.

    Args:
        spec: the run.
        arrivals: the reader's record.
        sent: messages sent by each producer: it sent the numbers 0 to ``sent[p] - 1``.
        acknowledged: messages acknowledged to each producer.
    """
    if not spec.producers == len(sent) == len(acknowledged):
        raise ValueError(f"{spec.producers} producers need as many counts, got {len(sent)} and {len(acknowledged)}.")
    seen = Seen(sent)
    for rows in _blocks(len(arrivals)):
        seen.add(arrivals.producer[rows], arrivals.number[rows])
    return Verdict(
        sent=sum(sent),
        acknowledged=sum(acknowledged),
        seen=len(arrivals),
        lost=sum(int(np.count_nonzero(~seen.is_there(producer))) for producer in range(len(sent))),
        duplicated=seen.counts["duplicated"],
        out_of_order=seen.counts["disordered"],
        unknown=seen.counts["unknown"],
    )


def latencies(spec: Spec, arrivals: Arrivals, begin: float) -> Latencies:
    """Return the latency of each message from its intended send time.

    Measuring from the intended time, not from the actual one, includes waiting: otherwise a peer that delays its
    producers would hide that delay (coordinated omission).

    Args:
        spec: the run; its ``intended`` returns the intended send times.
        arrivals: the reader's record.
        begin: the start of the run, in seconds since the epoch, by the clock of ``arrivals.at``.
    """
    latency, intended, after_warm_up = [], [], []
    batch_ends = np.cumsum(arrivals.counts)
    for producer in range(spec.producers):
        rows = np.flatnonzero((arrivals.producer == producer) & (arrivals.number < spec.count(producer)))
        rows = rows[_firsts(arrivals.number[rows], spec.count(producer))]
        for part in _blocks(len(rows)):
            block = rows[part]
            due = _intended(spec, arrivals.number[block])
            at = arrivals.at[np.searchsorted(batch_ends, block, side="right")]
            latency.append((at - begin - due).astype(np.float32))
            intended.append(due)
            after_warm_up.append(due >= spec.warm_up_s)
    return Latencies(
        _joined(latency, np.dtype(np.float32)),
        _joined(intended, np.dtype(np.float64)),
        _joined(after_warm_up, np.dtype(bool)),
    )


def percentiles(latencies_s: np.ndarray, wanted: Sequence[float] = PERCENTILES) -> dict[float, float | None]:
    """Return exact nearest-rank percentiles: the value at rank ``ceil(n * p / 100)``, counted from 1; None if empty."""
    n = len(latencies_s)
    if not n:
        return dict.fromkeys(wanted)
    ranks = {p: max(1, math.ceil(n * Fraction(str(p)) / 100)) for p in wanted}
    ordered = np.partition(latencies_s, sorted({rank - 1 for rank in ranks.values()}))
    return {p: _seconds(ordered[rank - 1]) for p, rank in ranks.items()}


def windows(measured: Latencies, seconds: float) -> list[Window]:
    """Divide the run into windows of equal length by intended send time, including the warm-up.

    They are 5 s long, or a multiple of that if a run of this many ``seconds`` would have more than 120. The last one
    may be shorter; windows without arrivals are omitted.
    """
    length = _WINDOW_S * max(1, math.ceil(seconds / _WINDOW_S / _MOST_WINDOWS))
    parts: dict[int, list[np.ndarray]] = {}
    for block in _blocks(len(measured.intended_s)):
        which = (measured.intended_s[block] // length).astype(np.int32)
        for window in np.unique(which).tolist():
            parts.setdefault(window, []).append(measured.latency_s[block][which == window])
    found = []
    for window in sorted(parts):
        inside = np.concatenate(parts.pop(window))
        p50, p99, most = (value for value in percentiles(inside, (50, 99, 100)).values() if value is not None)
        found.append(Window(window * length, min((window + 1) * length, seconds), len(inside), p50, p99, most))
    return found


def ends(measured: Latencies, spec: Spec) -> tuple[float | None, float | None]:
    """Return p99 of the first and the last ``ENDS_S`` of the measured time: a difference shows growth."""
    due, is_measured = measured.intended_s, measured.after_warm_up
    first = measured.latency_s[is_measured & (due < spec.warm_up_s + ENDS_S)]
    last = measured.latency_s[is_measured & (due >= spec.seconds - ENDS_S)]
    return percentiles(first, (99,))[99], percentiles(last, (99,))[99]


def cdf(latencies_s: np.ndarray, points: int = 200) -> list[tuple[float, float]]:
    """Return the distribution as at most ``points`` rising pairs (latency in seconds, fraction at or below it).

    Half of the points are spread evenly below the median. The others approach 1 by equal factors, down to a single
    message, so that each step of the tail (90 %, 99 %, 99.9 %, ...) gets the same number. The last is the greatest
    latency.
    """
    n = len(latencies_s)
    if not n:
        return []
    body = np.linspace(0.0, 0.5, points // 2, endpoint=False)
    tail = 1 - np.geomspace(0.5, min(0.5, 1 / n), points - len(body))
    ranks = np.clip(np.ceil(n * np.concatenate([body, tail])).astype(np.int64), 1, n)
    ranks[-1] = n  # rounding must not omit the maximum
    ordered = np.sort(latencies_s)
    values = ordered[ranks - 1]
    at_or_below = np.searchsorted(ordered, values, side="right") / n
    # Of equal latencies only the last pair stays.
    return list(
        {_seconds(value): round(float(part), 9) for value, part in zip(values, at_or_below, strict=True)}.items()
    )


def published_csv(latencies_s: np.ndarray, arrived_s: np.ndarray, rate: int, warm_up_s: float = 30.0) -> str:
    """Return the report that the published benchmark would write for these rows, byte for byte.

    Rows count if they arrived more than ``warm_up_s`` after the consumer process started. Percentiles are over all rows
    since then, in 10 ms buckets: the first bucket at which ``floor(rows * p / 100)`` rows are reached; this rounds down
    and hides the greatest of few rows. There is a line at each multiple of ``rate // 2`` rows (half a second), and a
    last one with the result; the format has no newline at the end.

    Two intended differences: a latency below zero counts as zero, where the original's list index would wrap around to
    the slowest buckets; and at rate 1, where ``rate // 2`` is zero, there is a line for each row.

    Args:
        latencies_s: one per row, in any order that ``arrived_s`` shares.
        arrived_s: seconds from the start of the consumer process to the arrival of each row.
        rate: messages per second.
        warm_up_s: seconds after the start of the consumer process.
    """
    order = np.argsort(arrived_s, kind="stable")
    order = order[arrived_s[order] > warm_up_s]
    step = max(1, rate // 2)
    reached = np.zeros(_PUBLISHED_BUCKETS, np.int64)
    end_s = float(arrived_s.max()) if len(arrived_s) else 0.0
    lines = [_PUBLISHED_HEADER]
    for first in range(0, len(order), step):
        rows = order[first : first + step]
        hundredths = latencies_s[rows].astype(np.float64) * 100
        buckets = np.clip(hundredths, 0, _PUBLISHED_BUCKETS - 1).astype(np.int64)
        reached += np.cumsum(np.bincount(buckets, minlength=_PUBLISHED_BUCKETS))
        if len(rows) == step:
            lines.append(_published_line(float(arrived_s[rows[-1]]), reached))
    lines.append(_published_line(end_s, reached))
    return "\n".join(lines)


def _published_line(from_start_s: float, reached: np.ndarray) -> str:
    thresholds = [int(reached[-1]) * p // 100 for p in _PUBLISHED_PERCENTILES]
    buckets = np.searchsorted(reached, thresholds, side="left")
    return ",".join(f"{value:.2f}" for value in [from_start_s, *(buckets / 100)])


def _intended(spec: Spec, numbers: np.ndarray) -> np.ndarray:
    """Return the intended send times of numbers in any order; within a block they are close together."""
    first = int(numbers.min())
    return spec.intended(first, int(numbers.max()) + 1)[numbers - np.uint32(first)]


def _firsts(numbers: np.ndarray, count: int) -> np.ndarray | slice:
    """Return an index of the first row of each number; a slice of all rows if none is repeated."""
    there = np.zeros(count, bool)
    there[numbers] = True
    if np.count_nonzero(there) == len(numbers):
        return slice(None)
    backwards = numbers[::-1]
    first = np.zeros(count, np.int64)
    first[backwards] = np.arange(len(numbers) - 1, -1, -1)  # for repeated indices, the last assignment wins
    chosen: np.ndarray = first[numbers] == np.arange(len(numbers))
    return chosen


def _blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, BLOCK):
        yield slice(start, start + BLOCK)


def _joined(parts: list[np.ndarray], kind: np.dtype) -> np.ndarray:
    joined = np.concatenate(parts) if parts else np.empty(0, kind)
    parts.clear()
    return joined


def _seconds(value: np.floating) -> float:
    """Round to microseconds, which is finer than the clock's accuracy."""
    return round(float(value), 6)
