"""What a checker says: findings by kind, and the verdict on all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal[
    "lost",
    "duplicate",
    "duplicate-delivery",
    "phantom",
    "failed-but-seen",
    "gap",
    "reordered",
    "non-monotonic-poll",
    "two-owners",
    "zombie-write",
    "inconsistent-offset",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

SHOWN: Final = 100
"""How many findings of a kind a verdict describes; it counts all of them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must not be.

    Attributes:
        events: numbers of the events that show it, from 1: the line in the file, if the history is one file.
    """

    kind: Kind
    text: str
    events: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        findings: at most ``SHOWN`` of each kind, in the order of ``KINDS``.
        found: how many there are, by kind; kinds without any are left out.
        counts: what was looked at.
    """

    findings: tuple[Finding, ...]
    found: Mapping[Kind, int]
    counts: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.found

    def to_json(self) -> dict[str, Any]:
        """All of it, as ``json.dumps`` takes it."""
        return {
            "ok": self.ok,
            "found": dict(self.found),
            "counts": dict(self.counts),
            "findings": [{"kind": f.kind, "text": f.text, "events": list(f.events)} for f in self.findings],
        }

    def text(self, *, shown: int = 10) -> str:
        """For people: a line of counts, then at most ``shown`` findings of each kind."""
        looked = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in self.counts.items() if count)
        lines = [f"{'OK' if self.ok else 'FAILED'}: {looked or 'nothing to judge'}."]
        for kind, count in self.found.items():
            lines.append(f"{kind}: {count:,}")
            some = [finding for finding in self.findings if finding.kind == kind][:shown]
            for finding in some:
                numbers = ", ".join(map(str, finding.events))
                lines.append(f"  {finding.text}{f' (events {numbers})' if numbers else ''}")
            if count > len(some):
                lines.append(f"  ... and {count - len(some):,} more")
        return "\n".join(lines)


class Findings:
    """Collects findings; describes some of each kind, counts all."""

    def __init__(self) -> None:
        self._shown: dict[Kind, list[Finding]] = {kind: [] for kind in KINDS}
        self._found: Counter[Kind] = Counter()

    def add(self, kind: Kind, text: str, *events: int) -> None:
        """One more of this kind; event number 0 means that nobody knows which event shows it."""
        self._found[kind] += 1
        if len(self._shown[kind]) < SHOWN:
            self._shown[kind].append(Finding(kind, text, tuple(sorted({number for number in events if number}))))

    def verdict(self, counts: Mapping[str, int]) -> Verdict:
        """What was found; the counts say what was looked at."""
        findings = tuple(finding for kind in KINDS for finding in self._shown[kind])
        return Verdict(findings, {kind: self._found[kind] for kind in KINDS if self._found[kind]}, counts)
