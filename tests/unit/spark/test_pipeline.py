"""What a ``Pipeline`` accepts, and what is said of what it does not; nothing here needs Spark."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from brokerless import Pipeline
from brokerless.errors import ConfigError

GOOD = Pipeline("p", inputs=["a", "b"], output="out", transform=lambda rows: rows)


def test_a_pipeline_is_a_value() -> None:
    assert GOOD.inputs == ("a", "b")
    assert GOOD.start == "beginning"
    assert replace(GOOD, output="other").output == "other"
    assert replace(GOOD, start="2026-01-01T00:00:00+00:00") != GOOD


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "1 to 100 characters, without ':' and '/', got ''"),
        ({"name": "a:b"}, "got 'a:b'"),
        ({"name": "x" * 101}, "1 to 100 characters"),
        ({"name": None}, "got None"),
        ({"inputs": []}, r"at least one topic, got \[\]"),
        ({"inputs": "clicks"}, "must be a list of at least one topic, got 'clicks'"),
        ({"inputs": ["a", "a"]}, "name each topic once, got a, a"),
        ({"inputs": [3]}, "must be a string, got 3"),
        ({"inputs": ["../a"]}, "is not a valid topic name"),
        ({"inputs": ["out"]}, "reads its own output 'out'"),
        ({"output": "a/b"}, "is not a valid topic name"),
        ({"output": None}, "must be a string, got None"),
        ({"transform": None}, "must be a function of a DataFrame, got None"),
        ({"start": "soon"}, "'soon'"),
        ({"start": "12:3"}, "beginning, latest or a time with a zone, got '12:3'"),
    ],
)
def test_what_it_refuses(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(GOOD, **change)


@pytest.mark.parametrize("given", ["fast", "20 minutes", "-1s"])
def test_a_commit_interval_is_a_time(given: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration; write 100ms, 1s, 12h or 7d"):
        GOOD.run(commit_interval=given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "direct"}, "must be one of auto, realtime, micro-batch, delta, got 'direct'"),
        ({"skip": "t@1:0"}, "must be a list of objects as table@version:index, got 't@1:0'"),
        ({"commit_interval": None, "engine": None}, "got None"),
    ],
)
def test_what_a_run_refuses(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GOOD.run(**given)


def test_naming_a_pipeline_does_not_load_spark() -> None:
    code = "import sys; from brokerless import Pipeline; print('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
