"""Latencies that Pathway's authors published for Delta tables on MinIO as a queue; not measured here.

The two versions of the benchmark must not be mixed: the pacing is the same (bursts of 10,000), but the length of the
run, the warm-up and the commit interval differ. Percentiles are theirs: steps of 10 ms, rounded down, from the first
send of each hundred messages, with the clock read before the pause between bursts.

- First: "Kafka Alternatives: Streaming with Pathway and MinIO".
- Updated: "Python Kafka Alternative: Achieve Sub-Second Latency with your S3 Storage without Kafka using Pathway".
"""

from __future__ import annotations

from typing import Final

from benchmarks.result import Result

UPDATED: Final = "Pathway's article, updated version, on its authors' hardware (not stated)"
FIRST: Final = "Pathway's article, first version, on its authors' hardware (not stated); its warm-up is not stated"

_PERCENTILES: Final = ("p50_s", "p75_s", "p85_s", "p95_s", "p99_s")

_UPDATED_100_MS: Final = {
    10_000: (0.26, 0.35, 0.36, 0.53, 0.67),
    30_000: (0.28, 0.31, 0.32, 0.38, 0.64),
    70_000: (1.24, 16.06, 24.82, 35.66, 41.32),
}
_UPDATED_1000_MS: Final = {70_000: (1.45,), 150_000: (1.68,), 250_000: (1.98,)}
_FIRST: Final = {
    10_000: (0.49, 0.50, 0.50, 0.50, 1.48),
    20_000: (0.83, 0.96, 0.97, 1.06, 1.35),
    30_000: (0.65, 0.97, 1.05, 1.08, 1.33),
}


def published() -> list[Result]:
    """Return one result per published row, latencies in seconds; the default interval has only (rough) medians."""
    return [
        *_results("Pathway (published, 100 ms)", UPDATED, _UPDATED_100_MS, commit_ms=100, seconds=300),
        *_results("Pathway (published, 1000 ms)", UPDATED, _UPDATED_1000_MS, commit_ms=1000, seconds=300),
        *_results("Pathway (published, first version)", FIRST, _FIRST, commit_ms=1000, seconds=600),
    ]


def _results(
    label: str, source: str, rows: dict[int, tuple[float, ...]], *, commit_ms: int, seconds: int
) -> list[Result]:
    return [
        Result(
            peer="pathway",
            label=label,
            rate=rate,
            hops=1,
            pacing="bursty",
            backend="minio",
            commit_ms=commit_ms,
            payload_bytes=0,
            partitions=1,
            producers=1,
            seconds=seconds,
            warm_up_s=30,
            published=source,
            figures={"message_bytes": "17 to 18"},
            **dict(zip(_PERCENTILES, latencies, strict=False)),
        )
        for rate, latencies in rows.items()
    ]
