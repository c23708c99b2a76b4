"""A reader's check of a pipeline's output: whether dates were parsed correctly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from benchmarks.spec import Spec

SAMPLE: Final = 5  # rows per call

# The error of two values: a date is rounded to a microsecond, epoch milliseconds as a float to a quarter of one.
TOLERANCE_MS: Final = 0.002

# All producers have the same start. A lost or wrong UTC offset moves all dates of a zone by at least half an hour,
# which differences within one producer do not show.
APART_MS: Final = 60_000.0


class TimestampCheck:
    """A check of parsed timestamps against the schedule, on a few rows per call; one object per reader.

    It does not know the start of the run: it compares the rows of a producer with the producer's first row, and the
    producers with each other. It cannot find an error that all rows of all producers share.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._begins_ms: dict[int, float] = {}

    def check(self, producers: np.ndarray, numbers: np.ndarray, timestamps_ms: np.ndarray) -> None:
        """Raise unless the sampled rows (first, last and some between) are on schedule.

        Args:
            producers: the producer of each row.
            numbers: each row's number among its producer's messages.
            timestamps_ms: each row's timestamp, in milliseconds since the epoch; null is NaN.

        Raises:
            ValueError: a row is not on schedule; the text names it.
        """
        rows = len(numbers)
        for row in np.unique(np.linspace(0, rows - 1, min(rows, SAMPLE)).astype(np.int64)):
            self._row(int(producers[row]), int(numbers[row]), float(timestamps_ms[row]))

    def _row(self, producer: int, number: int, timestamp_ms: float) -> None:
        after_ms = float(self._spec.intended(number, number + 1)[0]) * 1000
        begin_ms = timestamp_ms - after_ms
        known_ms = self._begins_ms.setdefault(producer, begin_ms)
        # Not inverted, because comparisons with NaN are false.
        if not abs(timestamp_ms - (known_ms + after_ms)) <= TOLERANCE_MS:
            raise ValueError(
                f"The timestamp of message {number} of producer {producer} is {timestamp_ms:.3f} ms; "
                f"by the producer's first one it should be {known_ms + after_ms:.3f} ms."
            )
        first, reference_ms = next(iter(self._begins_ms.items()))
        if not abs(begin_ms - reference_ms) <= APART_MS:
            raise ValueError(
                f"Producer {producer} began {(begin_ms - reference_ms) / 1000:.0f} s after producer {first} "
                "by their timestamps; an offset was not parsed."
            )
