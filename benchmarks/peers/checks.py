"""What a reader of a pipeline's output verifies while it reads: that the dates were parsed right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from benchmarks.spec import Spec

SAMPLE: Final = 5  # rows per call

# A date is rounded to a microsecond, and the float of today's epoch milliseconds to a quarter of one: two of them.
TOLERANCE_MS: Final = 0.002

# All producers count from one begin. A lost or mistaken offset moves all dates of a zone by half an hour at least,
# which differences within one producer do not show.
APART_MS: Final = 60_000.0


class TimestampCheck:
    """Compares parsed timestamps with the schedule, on a few rows per call; one object per reader.

    It knows no begin of the run: what it sees first of a producer is what the rest of that producer is held against,
    and the producers against each other. An error that all rows of all producers share stays unseen.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._begins_ms: dict[int, float] = {}

    def check(self, producers: np.ndarray, numbers: np.ndarray, timestamps_ms: np.ndarray) -> None:
        """Passes if the sampled rows (first, last and some between) are on schedule.

        Args:
            producers: of each row.
            numbers: of each row, within its producer.
            timestamps_ms: of each row, in milliseconds since the epoch; null is NaN.

        Raises:
            ValueError: a row is not; names it.
        """
        rows = len(numbers)
        for row in np.unique(np.linspace(0, rows - 1, min(rows, SAMPLE)).astype(np.int64)):
            self._row(int(producers[row]), int(numbers[row]), float(timestamps_ms[row]))

    def _row(self, producer: int, number: int, timestamp_ms: float) -> None:
        after_ms = float(self._spec.intended(number, number + 1)[0]) * 1000
        begin_ms = timestamp_ms - after_ms
        known_ms = self._begins_ms.setdefault(producer, begin_ms)
        # Not turned round: comparisons with NaN are false.
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
