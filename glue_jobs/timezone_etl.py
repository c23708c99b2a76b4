"""The example pipeline: topics ``timezone1`` and ``timezone2`` into ``timezone_unified``.

It runs as it is on a laptop (``brokerless run timezone-etl``), under ``spark-submit``, on Glue 6.0 and EMR Serverless.
All expressions are Spark's own: no Python runs for each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from brokerless import Pipeline
from brokerless.schema import PRODUCED_AT
from brokerless.spark import dead_letter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ZONED: Final = "yyyy-MM-dd HH:mm:ss[.SSSSSS] xx"
"""``2024-08-23 04:52:13.066217 -0400``: one to six digits of fraction or none, a numeric offset without a colon."""


def instant(date: str) -> Column:
    """Return texts in the format ``ZONED`` as timestamps, and null for others."""
    # The parse is half of the cost of a row, and an optional section is a third of the parse.
    usual = ZONED.replace("[", "").replace("]", "")
    parsed = F.coalesce(F.try_to_timestamp(date, F.lit(usual)), F.try_to_timestamp(date, F.lit(ZONED)))
    # The format takes '-2024' and '+12024' for years, too.
    return F.when(F.substring(date, 5, 1) == "-", parsed)


def unify_timezones(rows: DataFrame) -> DataFrame:
    """Return instants for local times with offsets.

    Args:
        rows: ``date string, message string`` and the columns that each transform is given.

    Returns:
        ``timestamp double`` (epoch milliseconds, microseconds as the fraction), ``message string``, ``_produced_at``,
        and ``_dead_letter`` for rows whose date is null or not in the format. The offset is in the text, so an hour
        that a clock change repeats is not ambiguous.
    """
    # In a select of its own, so that it is done once.
    parsed = rows.withColumn("_instant", instant("date"))
    shown = F.substring("date", 1, 60)
    reason = F.when(F.col("date").isNull(), F.lit("date is null")).when(
        F.col("_instant").isNull(),
        F.concat(F.lit("date is not like 2024-08-23 04:52:13.066217 -0400: '"), shown, F.lit("'")),
    )
    return parsed.select(
        (F.unix_micros("_instant") / F.lit(1000.0)).alias("timestamp"),
        "message",
        PRODUCED_AT,
        dead_letter(reason, rows),
    )


pipeline = Pipeline(
    "timezone-etl", inputs=["timezone1", "timezone2"], output="timezone_unified", transform=unify_timezones
)

if __name__ == "__main__":
    pipeline.main()
