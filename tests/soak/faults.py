"""What strikes a soak, one after the other in an order drawn from the seed.

A deck holds each fault once and is shuffled anew when it is used up, so that all come about equally often. In the last
part of a run the faults that end processes are left out: some processes have to grow old, or nobody could say that
their memory stays flat.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from brokerless.testing import (
    Answer,
    Chaos,
    ClockSkew,
    Conflict,
    Corrupted,
    Denied,
    Expired,
    Latency,
    LostAnswer,
    LostRequest,
    PreconditionFailed,
    Reset,
    ServerError,
    SlowDown,
    StaleAbsence,
    Stalled,
    Truncated,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokerless.testing import Fault

Act = Literal["storm", "kill", "pause", "replace", "kill worker", "kill JVM", "kill driver", "kill server"]

STORMS: Final[Mapping[str, Mapping[Fault, float]]] = {
    "LostRequest": {LostRequest(): 0.05},
    "LostAnswer": {LostAnswer(): 0.05},
    "Reset": {Reset(): 0.03, Reset(applied=True): 0.03},
    "Stalled": {Stalled(limit_s=3.0): 0.005, Stalled(limit_s=3.0, applied=True): 0.005},
    "ServerError": {ServerError(): 0.05, ServerError(status=502, applied=True): 0.05},
    "SlowDown": {SlowDown(): 0.15},
    "Answer": {Answer(429, "TooManyRequests"): 0.05, Answer(408, "RequestTimeout"): 0.02},
    "Conflict": {Conflict(): 0.15, Conflict(applied=True): 0.15},
    "PreconditionFailed": {PreconditionFailed(): 0.15, PreconditionFailed(applied=True): 0.15},
    "Latency": {Latency(0.02, tail_s=0.1): 0.1, Latency(0.02, tail_s=0.1, where="answer"): 0.1},
    "Truncated": {Truncated(): 0.05},
    "Corrupted": {Corrupted(): 0.1},
    "StaleAbsence": {StaleAbsence(within_s=0.5): 0.3},
    "ClockSkew": {ClockSkew(3600.0): 0.2, ClockSkew(-3600.0): 0.2},
    "Denied": {Denied(): 0.002},
    "Expired": {Expired(): 0.002},
    "all at once": {
        LostRequest(): 0.01,
        LostAnswer(): 0.01,
        Reset(applied=True): 0.01,
        ServerError(applied=True): 0.01,
        SlowDown(): 0.02,
        Conflict(applied=True): 0.03,
        PreconditionFailed(applied=True): 0.03,
        Latency(0.01, tail_s=0.05): 0.05,
        Truncated(): 0.01,
    },
}
"""Faults by the part of the requests that meet them while the storm lasts."""

_KEYS: Final = {"Corrupted": "part-*.parquet"}
"""Only objects of messages bear a checksum. A log entry that is damaged and still JSON is TLS's business."""

_ENDING: Final = frozenset({"kill", "replace", "kill worker", "kill JVM", "kill driver"})
_ENDING_STORMS: Final = frozenset({"Denied", "Expired"})


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault.

    Attributes:
        act: what is done.
        target: to which role; of a storm, its name.
        seconds: how long it lasts, where that means something.
        seed: of what is drawn in it.
    """

    act: Act
    target: str
    seconds: float
    seed: int

    @property
    def name(self) -> str:
        """For people and for counts."""
        if self.act == "storm":
            return self.target
        return self.act if self.act.endswith(self.target) else f"{self.act} {self.target}"

    @property
    def is_ending(self) -> bool:
        """Whether processes end by it, or may."""
        return self.act in _ENDING or (self.act == "storm" and self.target in _ENDING_STORMS)


def storm(strike: Strike) -> Chaos:
    """What the proxy has to play."""
    return Chaos(strike.seed, STORMS[strike.target], key=_KEYS.get(strike.target, "*"))


def strikes(seed: int, producers: int, *, workers: bool = False) -> Iterator[Strike]:
    """Faults for ever; ``workers`` says whether the pipeline has Python processes below it, as in micro-batches."""
    rng = random.Random(seed)
    roles = [*(f"producer-{n}" for n in range(producers)), "pipeline", "reader", "maintenance"]
    named = [f"producer-{n}" for n in range(producers)] + ["pipeline"]
    deck: list[tuple[Act, str]] = [("storm", name) for name in STORMS]
    deck += [("kill", role) for role in roles] + [("pause", role) for role in roles]
    deck += [("replace", role) for role in named]
    deck += [("kill worker", "pipeline")] if workers else []
    deck += [("kill JVM", "pipeline"), ("kill driver", "pipeline")]
    deck += [("kill server", "server")]
    while True:
        rng.shuffle(deck)
        for act, target in deck:
            seconds = rng.uniform(4, 10) if act == "storm" else rng.uniform(1, 8)
            yield Strike(act, target, seconds, rng.randrange(2**31))
