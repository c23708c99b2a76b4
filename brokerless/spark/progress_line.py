"""The progress of a running pipeline as a line of text, or as JSON lines."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from brokerless.metrics import LATENCY_BOUNDS_S, Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from brokerless.spark.running import BatchReport

ProgressFormat = Literal["text", "json"]


@dataclass(slots=True)
class Progress:
    """The sums of a run so far, shown as they change.

    Attributes:
        format: ``text`` is a line a second, rewritten in place on a terminal; ``json`` is JSON lines; None shows
            nothing.
        out: standard output for JSON, standard error for text by default.
        rows: committed to the output.
        dead_letters: committed to the dead-letter topic.
    """

    format: ProgressFormat | None
    out: TextIO = field(default_factory=lambda: sys.stderr)
    rows: int = 0
    dead_letters: int = 0

    def __post_init__(self) -> None:
        if self.format == "json" and self.out is sys.stderr:
            self.out = sys.stdout

    def event(self, **values: object) -> None:
        """Show the start or the end, in JSON only."""
        if self.format == "json":
            print(json.dumps(values), file=self.out, flush=True)

    def end(self) -> None:
        """End the line that is rewritten in place."""
        if self.format == "text" and self.out.isatty():
            print(file=self.out)

    def add(self, reports: Sequence[BatchReport], seconds: float) -> None:
        """Add the batches of the last ``seconds`` and show them."""
        rows, dead_letters = sum(r.rows for r in reports), sum(r.dead_letters for r in reports)
        self.rows += rows
        self.dead_letters += dead_letters
        latency = Histogram()
        for report in reports:
            latency.add_counts(report.latency.counts)
        per_s = rows / max(seconds, 1e-9)
        if self.format == "json" and reports:
            self.event(
                event="progress",
                rows=rows,
                rows_per_s=round(per_s, 1),
                dead_letters=dead_letters,
                latency_p50_s=_finite(latency.percentile(50)),
                latency_p99_s=_finite(latency.percentile(99)),
                lag_rows=reports[-1].lag_rows,
                batches=len(reports),
                compute_ms=round(1000 * sum(r.compute_s for r in reports) / len(reports), 1),
                commit_ms=round(1000 * sum(r.commit_s for r in reports) / len(reports), 1),
                by=reports[-1].by,
            )
        elif self.format == "text" and (reports or self.out.isatty()):
            is_tty = self.out.isatty()
            text = self._text(reports, per_s, latency)
            print(f"\r\033[K{text}" if is_tty else text, end="" if is_tty else "\n", file=self.out, flush=True)

    def _text(self, reports: Sequence[BatchReport], per_s: float, latency: Histogram) -> str:
        text = f"{self.rows:,} rows  {per_s:,.0f}/s"
        if latency.total:
            text += f"  latency p50 {_seconds(latency.percentile(50))}  p99 {_seconds(latency.percentile(99))}"
        if reports:
            batch_ms = 1000 * sum(r.compute_s + r.commit_s for r in reports) / len(reports)
            text += f"  lag {reports[-1].lag_rows:,} rows  batch {batch_ms:.0f} ms"
        return text + (f"  dead letters {self.dead_letters:,}" if self.dead_letters else "")


def _finite(seconds: float | None) -> float | None:
    """Return None also for what is beyond the histogram's last bound: JSON knows no Infinity."""
    return None if seconds is None or math.isinf(seconds) else seconds


def _seconds(seconds: float | None) -> str:
    known = _finite(seconds)
    return f"> {LATENCY_BOUNDS_S[-1]:,.0f} s" if known is None else f"{known:.3f} s"
