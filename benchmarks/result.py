"""What is kept of a run: one JSON object, the same for every peer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Window:
    """Latencies of the messages that were meant to be sent in one stretch of the run (seconds after its begin)."""

    from_s: float
    to_s: float
    messages: int
    p50_s: float
    p99_s: float
    max_s: float


@dataclass(slots=True)
class Result:
    """One run. Latency in seconds from the intended send time to the reader, of messages after the warm-up.

    Attributes:
        peer: its name; ``label`` is for people.
        repeat: which repetition, from 1.
        started: UTC, ISO 8601.
        published: a figure from elsewhere, not measured here.
        skipped: why it did not run; then the figures are all None or empty.
        problems: why the run does not count as clean, in words; empty if it does.
        measured: messages after the warm-up, from which the percentiles are.
        cdf: pairs (latency in seconds, fraction of messages at or below it), rising.
        windows: stretches of equal length over the whole run, warm-up included.
        cpu_s: processor seconds while messages were sent, by role (``load``, ``reader``, ``pipeline``, ``store``...).
        rss_mb: greatest resident memory by role.
        requests: S3 requests by kind while messages were sent, from a pass of its own (None: not counted).
        requests_per_million: their sum per million messages of that pass.
        usd_per_million: running cost per million messages at this rate; ``bill`` has its parts per month.
        commits: log entries of the run's tables; ``objects`` and ``stored_bytes`` what lies in the store after it.
        figures: the peer's own, and of ``cpu_s["pipeline"]`` what its JVM used (``pipeline_jvm_cpu_s``); the rest is
            Python's.
    """

    peer: str
    label: str
    rate: int
    hops: int
    pacing: str
    backend: str
    commit_ms: float
    payload_bytes: int
    partitions: int
    producers: int
    seconds: float
    warm_up_s: float
    repeat: int = 1
    started: str = ""
    published: str = ""
    skipped: str = ""
    problems: list[str] = field(default_factory=list)
    sent: int | None = None
    acknowledged: int | None = None
    seen: int | None = None
    lost: int | None = None
    duplicated: int | None = None
    out_of_order: int | None = None
    max_late_s: float | None = None
    measured: int | None = None
    p50_s: float | None = None
    p75_s: float | None = None
    p85_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    p999_s: float | None = None
    max_s: float | None = None
    cdf: list[tuple[float, float]] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    cpu_s_per_million: float | None = None
    rss_mb: dict[str, float] = field(default_factory=dict)
    commits: int | None = None
    objects: int | None = None
    stored_bytes: int | None = None
    requests: dict[str, int] | None = None
    requests_per_million: float | None = None
    usd_per_million: float | None = None
    usd_per_month: float | None = None
    bill: dict[str, float] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether the run took place and nothing speaks against its figures."""
        return not self.skipped and not self.published and not self.problems

    def to_json(self) -> dict[str, Any]:
        """As kept in ``benchmarks/results``."""
        return {**asdict(self), "clean": self.clean}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        """The inverse."""
        rest = {key: value for key, value in values.items() if key != "clean"}
        windows = [Window(**w) for w in rest.pop("windows")]
        cdf = [(x, y) for x, y in rest.pop("cdf")]
        return cls(**rest, windows=windows, cdf=cdf)
