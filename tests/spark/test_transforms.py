"""``unify_timezones`` on the example's fixtures: exact instants, clock changes, and what is refused with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F

from glue_jobs.timezone_etl import unify_timezones

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

# date -> epoch milliseconds; None: a dead letter
CASES = {
    "2024-08-23 04:52:13.066217 -0400": 1724403133066.217,
    "2024-08-23 10:52:13.066217 +0200": 1724403133066.217,  # the same instant
    "2024-11-03 01:30:00.000001 -0400": 1730611800000.001,  # an hour that occurs twice,
    "2024-11-03 01:30:00.000001 -0500": 1730615400000.001,  # told apart by the offset
    "2024-03-31 03:30:00.5 +0200": 1711848600500.0,  # a short fraction
    "2024-03-31 03:30:00 +0200": 1711848600000.0,  # none
    "0001-01-01 00:00:00.000000 +0000": -62135596800000.0,
    "9999-12-31 23:59:59.000000 +0000": 253402300799000.0,
    "-2024-03-31 03:30:00 +0200": None,  # a year before Christ, to Java
    "+12024-03-31 03:30:00 +0200": None,
    "2024-03-31T03:30:00 +0200": None,
    "2024-03-31 03:30:00 +02:00": None,
    "2024-03-31 03:30:00 +1900": None,  # beyond what an offset can be
    "2024-02-30 03:30:00 +0200": None,
    "2024-03-31 03:30:00.1234567 +0200": None,
    "yesterday": None,
    "": None,
    None: None,
}


def frame(spark: SparkSession, dates: list[str | None]) -> DataFrame:
    rows = spark.createDataFrame([(d, str(i)) for i, d in enumerate(dates)], "date string, message string")
    metadata = {
        "_produced_at": F.timestamp_seconds(F.lit(0)),
        "_topic": F.lit("timezone1"),
        "_partition": F.lit(0),
        "_version": F.lit(12).cast("long"),
        "_index": F.lit(3).cast("long"),
    }
    return rows.withColumns(metadata)


def test_instants(spark: SparkSession) -> None:
    dates = list(CASES)
    result = unify_timezones(frame(spark, dates)).select("timestamp", "message")
    expected = spark.createDataFrame(
        [(CASES[d], str(i)) for i, d in enumerate(dates)], "timestamp double, message string"
    )
    assert_df_equality(result, expected, ignore_nullable=True)


def test_what_cannot_be_parsed_is_a_dead_letter_with_its_reason(spark: SparkSession) -> None:
    letters = unify_timezones(frame(spark, ["yesterday", None, "2024-03-31 03:30:00 +0200"])).select("_dead_letter.*")
    expected = spark.createDataFrame(
        [
            (
                "yesterday",
                "0",
                "date is not like 2024-08-23 04:52:13.066217 -0400: 'yesterday'",
                "timezone1",
                0,
                "12:3",
            ),
            (None, "1", "date is null", "timezone1", 0, "12:3"),
            (None, None, None, None, None, None),
        ],
        "date string, message string, _reason string, _topic string, _partition int, _offset string",
    )
    assert_df_equality(letters, expected, ignore_nullable=True)


def test_the_sessions_time_zone_does_not_matter(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        row = unify_timezones(frame(spark, ["2024-08-23 10:52:13.066217 +0200"])).collect()[0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert row.timestamp == 1724403133066.217
