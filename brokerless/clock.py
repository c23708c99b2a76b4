"""Time, randomness and sleeping in one object, so that tests and simulations can replace them."""

from __future__ import annotations

import random
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Final


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


_SECONDS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def duration_s(text: str) -> float:
    """Parse a duration such as ``20ms``, ``1.5s``, ``2`` (seconds), ``12h`` or ``7d``, and return it in seconds.

    Raises:
        ValueError: the text is not a duration.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw]|)", text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a duration; write 100ms, 1s, 12h or 7d")
    return float(found[1]) * _SECONDS[found[2]]
