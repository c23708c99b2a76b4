"""Turns at a log that many write to: who waits how long, so that each gets its share and few requests are wasted.

A conditional PUT has one winner and nobody is told who lost. Left alone, the last winner wins again: it knows the head
already, while the others still read. And a writer that backs off further with each loss, as on a network, loses more
often the longer it waits. So:

* Each handle counts the other writers whose entries it has read lately (the commit ids of one handle begin alike), and
  knows how long one PUT takes. The two give the length of a round in which everybody commits once.
* Who has committed leaves the others their turn: it waits until half a round or more has passed since.
* Who has lost waits a random part of a round, less the longer it has tried already, then reads what has come and tries.

A single writer never waits. Two wait only for each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from brokerless.clock import Clock
    from brokerless.log.entries import Entry

SEEN_S: Final = 30.0
"""For so long a writer counts as a rival after its last entry: as long as a commit is tried by default."""

_SMOOTHING: Final = 0.2
_SHARE: Final = 0.25  # of the time that is left, the most that one wait may take


class Turns:
    """What one handle knows of the others at its log.

    Args:
        writer: how its own commit ids begin.
        clock: time, randomness and sleeping.
    """

    def __init__(self, writer: str, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._seen: dict[str, float] = {}
        self.put_s = 0.005
        """How long a conditional PUT takes, smoothed."""
        self._committed_at = float("-inf")

    def saw(self, entry: Entry) -> None:
        """Takes note of an entry of another writer."""
        if entry.writer is not None and entry.writer != self._writer:
            self._seen[entry.writer] = self._clock.monotonic()

    def put_took(self, seconds: float) -> None:
        """Takes note of how long a conditional PUT took, whatever came of it."""
        self.put_s += _SMOOTHING * (seconds - self.put_s)

    def committed(self) -> None:
        """Takes note of a commit of this handle."""
        self._committed_at = self._clock.monotonic()

    def rivals(self) -> int:
        """How many others have committed lately."""
        since = self._clock.monotonic() - SEEN_S
        self._seen = {writer: at for writer, at in self._seen.items() if at > since}
        return len(self._seen)

    def before(self, deadline: float) -> None:
        """Waits, before the first try of a commit, until the others had their turn since the last one."""
        if rivals := self.rivals():
            now = self._clock.monotonic()
            due = self._committed_at + rivals * self.put_s * (0.5 + 0.5 * self._clock.rng.random())
            self._wait(due - now, deadline - now)

    def after_loss(self, begun: float, deadline: float) -> None:
        """Waits, after a try that came too late, before what has come meanwhile is read."""
        now = self._clock.monotonic()
        left = deadline - now
        # The first to come back has the best chances, so waits shrink with age: nobody is passed over for ever.
        youth = max(0.0, left / max(deadline - begun, 1e-9))
        self._wait(self._clock.rng.random() * (self.rivals() - 1) * self.put_s * youth, left)

    def _wait(self, seconds: float, left: float) -> None:
        if (wait := min(seconds, left * _SHARE)) > 0:
            self._clock.sleep(wait)
