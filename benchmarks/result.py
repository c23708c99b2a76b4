"""The stored result of a run: one JSON object, the same for every peer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Window:
    """The latencies of messages with intended send times in one window of the run (seconds after its start)."""

    from_s: float
    to_s: float
    messages: int
    p50_s: float
    p99_s: float
    max_s: float


@dataclass(slots=True)
class Result:
    """The result of one run. Latencies are in seconds from the intended send time to the reader, after the warm-up.

    Attributes:
        peer: the peer's name; ``label`` is its name in reports.
        repeat: the number of the repetition, from 1.
        started: UTC, ISO 8601.
        published: True for a published figure of others, not measured here.
        skipped: why it did not run; then all figures are None or empty.
        problems: why the run is not clean, as texts; empty if it is.
        measured: the number of messages after the warm-up, on which the percentiles are based.
        cdf: rising pairs (latency in seconds, fraction of messages at or below it).
        windows: windows of equal length over the whole run, including the warm-up.
        cpu_s: processor seconds while messages were sent, by role (``load``, ``reader``, ``pipeline``, ``store``...).
        rss_mb: the greatest resident memory by role.
        requests: S3 requests by kind while messages were sent, from a separate pass (None: not counted).
        requests_per_million: their sum per million messages of that pass.
        usd_per_million: running cost per million messages at this rate; ``bill`` has its parts per month.
        commits: log entries of the run's tables; ``objects`` and ``stored_bytes`` are their size in the store.
        figures: figures of the peer itself, and the JVM's part of ``cpu_s["pipeline"]`` (``pipeline_jvm_cpu_s``);
            the rest of that is Python's.
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
        """Return whether the run took place and has no problems."""
        return not self.skipped and not self.published and not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the result as stored in ``benchmarks/results``."""
        return {**asdict(self), "clean": self.clean}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        """Create a result from its stored form; the inverse of ``to_json``."""
        rest = {key: value for key, value in values.items() if key != "clean"}
        windows = [Window(**w) for w in rest.pop("windows")]
        cdf = [(x, y) for x, y in rest.pop("cdf")]
        return cls(**rest, windows=windows, cdf=cdf)
