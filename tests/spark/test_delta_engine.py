"""The delta engine, in a process and a JVM of its own; and delta-spark as a reader of what the kit writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from brokerless.errors import UnsupportedTable
from brokerless.log.log import DeltaLog
from brokerless.producer.producer import Producer
from brokerless.schema import Schema, dead_letters
from brokerless.store import open_store
from brokerless.topics import create_topic
from tests.support.pipelines import BAD, OUTPUT, create, rows_of, run_once, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokerless.settings import Settings

# Slow: it fetches 25 MB of jars on first use.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(420)]

STOCK = "unified_by_stock"

READ = """
import json, sys
from brokerless.settings import Settings
from brokerless.spark.delta import delta_session
spark = delta_session(Settings.load(), name="reader")
root = Settings.load().root.replace("s3://", "s3a://", 1)
found = {t: sorted(r.message for r in spark.read.format("delta").load(f"{root}/{t}").collect()) for t in sys.argv[1:]}
print("FOUND", json.dumps(found))
"""


WINDOWED = """
from pyspark.sql import functions as F
from brokerless import Pipeline

def transform(rows):
    windows = rows.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("n"))
    return windows.select(F.col("window.start").alias("at"), "n")

Pipeline("windows", inputs=["events"], output="per_minute", transform=transform).main()
"""


def run_stock(settings: Settings, output: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "glue_jobs.timezone_etl", "--engine", "delta", "--once", "--output", output]
    return subprocess.run(
        command, env={**os.environ, **settings.to_environ()}, capture_output=True, text=True, timeout=300, check=False
    )


def test_stock_delta_streaming_end_to_end(settings: Settings) -> None:
    create(settings)
    send(settings, "timezone1", ["a", "b"])
    send(settings, "timezone2", ["c"], date=BAD)
    assert run_stock(settings, STOCK).returncode == 0
    send(settings, "timezone1", ["d"])
    done = run_stock(settings, STOCK)
    assert done.returncode == 0, done.stderr[-2000:]
    assert Counter(row["message"] for row in rows_of(settings, STOCK)) == Counter("abd")
    letters = rows_of(settings, dead_letters(STOCK))
    assert [(row["message"], row["_topic"], row["_offset"]) for row in letters] == [("c", "timezone2", None)]
    # Nobody else may commit there, and it may commit nowhere else.
    with pytest.raises(UnsupportedTable, match="output of the delta engine"):
        DeltaLog(open_store(settings), STOCK).append([], {"x": 1})
    refused = run_stock(settings, OUTPUT)
    assert refused.returncode == 2
    assert "written by another engine" in refused.stderr
    assert rows_of(settings, OUTPUT) == []


def test_windows_close_without_further_messages(settings: Settings) -> None:
    create_topic(open_store(settings), "events", Schema.parse("at timestamp"))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with Producer("events", settings=settings) as producer:
        producer.send({"at": [noon + timedelta(seconds=20 * number) for number in range(45)]})
    done = subprocess.run(
        [sys.executable, "-c", WINDOWED, "--engine", "delta", "--once"],
        env={**os.environ, **settings.to_environ()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # Fifteen minutes, of which the last two are not behind the watermark, 12:13:40.
    assert sorted((row["at"].minute, row["n"]) for row in rows_of(settings, "per_minute")) == [
        (m, 3) for m in range(13)
    ]


def test_delta_spark_reads_topics_and_outputs(spark: SparkSession, settings: Settings) -> None:
    create(settings)
    send(settings, "timezone1", ["a", "b"])
    send(settings, "timezone2", ["c"], date=BAD)
    run_once(spark, settings)
    topics = ["timezone1", OUTPUT, dead_letters(OUTPUT)]
    done = subprocess.run(
        [sys.executable, "-c", READ, *topics],
        env={**os.environ, **settings.to_environ()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    line = next((x for x in done.stdout.splitlines() if x.startswith("FOUND ")), None)
    assert line is not None, done.stderr[-2000:]
    assert json.loads(line.removeprefix("FOUND ")) == {
        topic: sorted(row["message"] for row in rows_of(settings, topic)) for topic in topics
    }
