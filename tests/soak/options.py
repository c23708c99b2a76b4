"""What one run of the soak is, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tests.soak.judge import Verdict
    from tests.soak.memory import Growth


@dataclass(frozen=True, slots=True)
class Options:
    """What one run is.

    Attributes:
        seconds: how long messages are sent.
        rate: messages a second, over all producers.
        seed: of everything that is drawn.
        server: which.
        producers: how many.
        retention_s: of the logs, in the scaled maintenance; no process may stand still for so long.
        calm_s: without faults between two of them, at least.
        drain_s: how long after the last message everything must have been seen.
        catch_up_s: after this long the next fault strikes, whether the last one has been made good or not.
        warm_s: before the first fault.
        engine: of the pipeline.
    """

    seconds: float
    rate: int
    seed: int
    server: Literal["embedded", "minio"]
    producers: int = 2
    retention_s: float = 300.0
    calm_s: float = 4.0
    drain_s: float = 300.0
    catch_up_s: float = 120.0
    warm_s: float = 15.0
    engine: Literal["realtime", "micro-batch"] = "realtime"


@dataclass(slots=True)
class Outcome:
    """What one run found."""

    verdict: Verdict
    seconds: float
    failures: list[str]
    counts: dict[str, float]
    details: list[dict[str, Any]] = field(default_factory=list)


def rise(name: str, found: Growth) -> str:
    """Return the rise of a role's memory as a text."""
    return f"the memory of {name} rose, comparing {found.compared}: {found.early_mb:.0f} to {found.late_mb:.0f} MB"


def middle(values: list[float]) -> float | None:
    """Return the median, rounded; None if there are no values."""
    return round(median(values), 1) if values else None


def some(values: list[Any], most: int) -> list[Any]:
    """Return at most this many of the values, evenly spread."""
    step = max(1, -(-len(values) // most))
    return values[::step]
