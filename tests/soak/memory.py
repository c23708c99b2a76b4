"""Whether memory stays flat, of processes that live on and of those that are killed and start anew.

The rule, with "not above" meaning at most 10 % and 50 MB more:

* Of the process of each role that lived longest, if that was ``LONG_S`` or more: the median of the last third of its
  life is not above that of the second third. The first third is left to warming up.
* Of roles that were started several times: at equal ages (in steps of ``STEP_S``), processes in the second half of the
  run are not above those in the first half. So what grows with the tables, rather than with a process, shows too.

A role without enough samples for either is not judged, and named as such.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG_S: Final = 300.0
"""The memory of a JVM under Spark grows for its first two minutes, while classes load and the heap finds its size."""

STEP_S: Final = 10.0
MIN_STEPS: Final = 2
MORE: Final = 1.10
MORE_MB: Final = 50.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a role.

    Attributes:
        at_s: seconds after the begin of the run.
        incarnation: which process of the role, from 1.
        age_s: how old that was.
        mb: resident memory of it and all its children.
    """

    at_s: float
    incarnation: int
    age_s: float
    mb: float


@dataclass(frozen=True, slots=True)
class Growth:
    """What became of a role's memory.

    Attributes:
        compared: "life" or "equal ages"; "not judged" where there was too little to compare.
        early_mb: before.
        late_mb: after.
    """

    compared: str
    early_mb: float = 0.0
    late_mb: float = 0.0

    @property
    def is_flat(self) -> bool:
        """Whether the rule holds."""
        return self.late_mb <= self.early_mb * MORE + MORE_MB


def growth(samples: Sequence[Sample]) -> list[Growth]:
    """What the rule says about one role; one or two comparisons, or one that says that there was too little."""
    found = [one for one in (_life(samples), _equal_ages(samples)) if one is not None]
    return found or [Growth("not judged")]


def _life(samples: Sequence[Sample]) -> Growth | None:
    lives: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        lives[sample.incarnation].append(sample)
    longest = max(lives.values(), key=lambda life: life[-1].age_s, default=[])
    if not longest or longest[-1].age_s < LONG_S:
        return None
    end_s = longest[-1].age_s
    second = [one.mb for one in longest if end_s / 3 <= one.age_s < end_s * 2 / 3]
    last = [one.mb for one in longest if one.age_s >= end_s * 2 / 3]
    return Growth("life", median(second), median(last)) if second and last else None


def _equal_ages(samples: Sequence[Sample]) -> Growth | None:
    if len({sample.incarnation for sample in samples}) < 2:
        return None
    middle_s = (samples[0].at_s + samples[-1].at_s) / 2
    early: defaultdict[int, list[float]] = defaultdict(list)
    late: defaultdict[int, list[float]] = defaultdict(list)
    for sample in samples:
        born_s = sample.at_s - sample.age_s
        (early if born_s < middle_s else late)[int(sample.age_s / STEP_S)].append(sample.mb)
    ages = sorted(early.keys() & late.keys())[1:]  # of the first step, most is starting up
    if len(ages) < MIN_STEPS:
        return None
    return Growth("equal ages", mean(median(early[age]) for age in ages), mean(median(late[age]) for age in ages))
