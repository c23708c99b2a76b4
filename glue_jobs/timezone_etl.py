"""The example pipeline: topics ``timezone1`` and ``timezone2`` into ``timezone_unified``.

Runs as it is on Glue 6.0, EMR Serverless, ``spark-submit`` and a laptop (``brokerless run timezone-etl``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from brokerless.spark.job import run_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def transform(rows: DataFrame) -> DataFrame:
    """See ``unify_timezones``; imported late, so that a missing pyspark is a named error."""
    from glue_jobs.transforms import unify_timezones

    return unify_timezones(rows)


def main(argv: list[str] | None = None) -> int:
    """Runs the pipeline until it is stopped. Returns the exit code."""
    inputs = ["timezone1", "timezone2"]
    return run_job(
        transform, argv, name="timezone-etl", inputs=inputs, output="timezone_unified", description=__doc__
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
