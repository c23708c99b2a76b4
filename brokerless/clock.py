"""Time, randomness and sleeping in one object, so that tests and simulations can replace them."""

from __future__ import annotations

import random
import re
import time
import uuid
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    """The system's clocks; tests subclass it and override its methods."""

    rng: random.Random = field(default_factory=random.SystemRandom)

    def time_us(self) -> int:
        """Return the wall-clock time in microseconds since the epoch."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds."""
        time.sleep(seconds)

    def uuid(self) -> str:
        """Return a random UUID, drawn from ``rng``."""
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def backoff(self, attempt: int, *, base_s: float = 0.01, cap_s: float = 2.0) -> None:
        """Sleep a random part of ``base_s * 2**attempt``, at most ``cap_s`` ("full jitter").

        Full jitter spreads writers that collided; see the AWS Architecture Blog, "Exponential Backoff And Jitter".
        """
        self.sleep(self.rng.random() * min(cap_s, base_s * 2 ** min(attempt, 16)))


SYSTEM = Clock()


def duration_s(text: str) -> float:
    """Parse a duration such as ``20ms``, ``1.5s`` or ``2`` (seconds), and return it in seconds.

    Raises:
        ValueError: the text is not a duration.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|)", text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a duration; write 100ms or 1s")
    return float(found[1]) / (1000 if found[2] == "ms" else 1)
