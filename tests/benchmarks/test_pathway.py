"""The published figures, as printed in the articles."""

from __future__ import annotations

import json
from collections import Counter

from benchmarks.peers.pathway import published
from benchmarks.result import Result


def test_every_published_row_once() -> None:
    rows = {
        (r.seconds, r.commit_ms, r.rate): (r.p50_s, r.p75_s, r.p85_s, r.p95_s, r.p99_s) for r in published()
    }  # fmt: skip
    medians_only = (None, None, None, None)
    assert rows == {
        (300, 100, 10_000): (0.26, 0.35, 0.36, 0.53, 0.67),
        (300, 100, 30_000): (0.28, 0.31, 0.32, 0.38, 0.64),
        (300, 100, 70_000): (1.24, 16.06, 24.82, 35.66, 41.32),
        (300, 1000, 70_000): (1.45, *medians_only),
        (300, 1000, 150_000): (1.68, *medians_only),
        (300, 1000, 250_000): (1.98, *medians_only),
        (600, 1000, 10_000): (0.49, 0.50, 0.50, 0.50, 1.48),
        (600, 1000, 20_000): (0.83, 0.96, 0.97, 1.06, 1.35),
        (600, 1000, 30_000): (0.65, 0.97, 1.05, 1.08, 1.33),
    }


def test_versions_are_kept_apart() -> None:
    groups = Counter((r.label, r.published) for r in published())
    assert set(groups.values()) == {3}
    assert len({label for label, _ in groups}) == 3
    assert len({source for _, source in groups}) == 2


def test_they_are_not_measured_here() -> None:
    for result in published():
        assert not result.clean
        assert result.published
        assert (result.sent, result.measured, result.hops, result.pacing) == (None, None, 1, "bursty")
        assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result
