"""Hold what a soak's reader saw against the journals of its producers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.judge import COUNTS, EXAMPLES, Seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.soak.load import Sent


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of all messages.

    Attributes:
        sent: messages that some incarnation of a producer handed over.
        acknowledged: those of them that were acknowledged.
        unacknowledged_seen: those that were not, and are there all the same, which is allowed.
        lost: acknowledged and never seen.
        phantom: seen and never sent.
        counts: the reader's, by ``COUNTS``.
        examples: some of what was found, in words.
    """

    sent: int
    acknowledged: int
    unacknowledged_seen: int
    lost: int
    phantom: int
    counts: dict[str, int]
    examples: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """What may not be, a line each; empty if all is well."""
        found = {"lost": self.lost, "phantom": self.phantom}
        found |= {name: self.counts[name] for name in COUNTS if name not in {"rows", "dead_letters"}}
        lines = [f"{count:,} messages {name}" for name, count in found.items() if count]
        return lines + self.examples if lines else []


def judge(seen: Seen, journals: Sequence[Sent]) -> Verdict:
    """Holds what was seen against what was sent."""
    sent = acknowledged = unsure = lost = phantom = 0
    examples = list(seen.examples)
    for producer, journal in enumerate(journals):
        there = seen.is_there(producer)
        handed, sure = (_mask(ranges, len(there)) for ranges in (journal.sent, journal.acknowledged))
        missing, invented = np.flatnonzero(sure & ~there), np.flatnonzero(there & ~handed)
        sent += int(np.count_nonzero(handed))
        acknowledged += int(np.count_nonzero(sure))
        unsure += int(np.count_nonzero(there & handed & ~sure))
        lost += len(missing)
        phantom += len(invented)
        for name, numbers in (("lost", missing), ("phantom", invented)):
            runs = merged_runs(numbers)
            examples += [f"{name}: messages {a} to {b} of producer {producer}" for a, b in runs[:EXAMPLES]]
    return Verdict(sent, acknowledged, unsure, lost, phantom, seen.counts, examples)


def merged_runs(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, first and last of each."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    firsts, lasts = np.append(0, breaks + 1), np.append(breaks, len(numbers) - 1)
    return list(zip(numbers[firsts].tolist(), numbers[lasts].tolist(), strict=True))


def _mask(ranges: np.ndarray, length: int) -> np.ndarray:
    mask = np.zeros(length, bool)
    for first, end in ranges:
        mask[first:end] = True
    return mask
