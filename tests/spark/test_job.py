"""What a job prints: its progress, and mistakes in its transform, in one line."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

from brokerless.metrics import LATENCY_BOUNDS_S, Histogram
from brokerless.spark import Pipeline
from brokerless.spark.job import run_arguments
from brokerless.spark.progress_line import Progress
from brokerless.spark.running import BatchReport
from tests.support.pipelines import create

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokerless.settings import Settings

pytestmark = pytest.mark.spark


def shown(*counts: tuple[int, int], as_json: bool) -> str:
    """The progress line of one batch with so many messages in these of the histogram's buckets."""
    histogram = Histogram()
    for bucket, count in counts:
        histogram.counts[bucket] = count
    report = BatchReport(0, 1, 0, 5, 0.1, 0.1, "driver", histogram)
    out = io.StringIO()
    Progress("json" if as_json else "text", out).add([report], 1.0)
    return out.getvalue()


def test_ages_beyond_what_is_measured_are_shown_as_such() -> None:
    assert "latency p50 > 1,000 s  p99 > 1,000 s" in shown((-1, 3), as_json=False)
    assert f"latency p50 {LATENCY_BOUNDS_S[0]:.3f} s  p99 > 1,000 s" in shown((0, 2), (-1, 1), as_json=False)


def test_progress_is_json_whatever_the_ages() -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    line = json.loads(shown((0, 2), (-1, 1), as_json=True), parse_constant=refuse)
    assert (line["latency_p50_s"], line["latency_p99_s"]) == (LATENCY_BOUNDS_S[0], None)


def test_a_mistake_in_the_transform_is_one_line_and_wrong_usage(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create(settings)
    for name, value in settings.to_environ().items():
        monkeypatch.setenv(name, value)

    def transform(rows: DataFrame) -> DataFrame:
        return rows.select("date", "mesage")

    typo = Pipeline("typo", inputs=["timezone1"], output="timezone_unified", transform=transform)
    assert run_arguments(typo, []) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith("AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION]")
    assert "`mesage`" in said[0]
    assert "Did you mean" in said[0]
    assert "`message`" in said[0]


def test_a_commit_interval_is_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = Pipeline("p", inputs=["in"], output="out", transform=lambda rows: rows)
    with pytest.raises(SystemExit) as refused:
        run_arguments(pipeline, ["--commit-interval=20 minutes"])
    assert refused.value.code == 2
    assert "is not a duration; write 100ms, 1s, 12h or 7d" in capsys.readouterr().err
