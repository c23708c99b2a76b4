"""The result of a checker: findings by kind, and the verdict."""

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
"""The number of findings of a kind that a verdict describes; it counts all of them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Attributes:
        events: numbers of the events that show it, from 1: the line in the file, if the history is one file.
    """

    kind: Kind
    text: str
    events: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of a checker.

    Attributes:
        findings: at most ``SHOWN`` of each kind, in the order of ``KINDS``.
        found: the number of findings by kind; kinds without findings are omitted.
        counts: the number of things that were checked.
    """

    findings: tuple[Finding, ...]
    found: Mapping[Kind, int]
    counts: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.found

    def to_json(self) -> dict[str, Any]:
        """Return the verdict for ``json.dumps``."""
        return {
            "ok": self.ok,
            "found": dict(self.found),
            "counts": dict(self.counts),
            "findings": [{"kind": f.kind, "text": f.text, "events": list(f.events)} for f in self.findings],
        }

    def text(self, *, shown: int = 10) -> str:
        """Return the verdict as text: a line of counts, then at most ``shown`` findings of each kind."""
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
    """Collects findings: describes some of each kind, and counts all."""

    def __init__(self) -> None:
        self._shown: dict[Kind, list[Finding]] = {kind: [] for kind in KINDS}
        self._found: Counter[Kind] = Counter()

    def add(self, kind: Kind, text: str, *events: int) -> None:
        """Add a finding; event number 0 means that the event is unknown."""
        self._found[kind] += 1
        if len(self._shown[kind]) < SHOWN:
            self._shown[kind].append(Finding(kind, text, tuple(sorted({number for number in events if number}))))

    def verdict(self, counts: Mapping[str, int]) -> Verdict:
        """Return the verdict; the counts say what was checked."""
        findings = tuple(finding for kind in KINDS for finding in self._shown[kind])
        return Verdict(findings, {kind: self._found[kind] for kind in KINDS if self._found[kind]}, counts)
