"""The example pipeline: topics ``timezone1`` and ``timezone2`` into ``timezone_unified``.

Runs as it is on Glue 6.0, EMR Serverless, ``spark-submit`` and a laptop (``brokerless run timezone-etl``).
"""

from __future__ import annotations

import argparse
import sys

from brokerless.errors import BrokerlessError, UsageError
from brokerless.settings import Settings
from brokerless.spark import EXECUTOR_ROWS, ensure_dead_letters, read_stream, run, spark_session, write_stream


def main(argv: list[str] | None = None) -> int:
    """Runs the pipeline until it is stopped; with ``--once`` until nothing is left. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="where topics are (default: BROKERLESS_ROOT)")
    parser.add_argument("--profile", help="embedded, minio or aws (default: BROKERLESS_PROFILE)")
    parser.add_argument("--inputs", default="timezone1,timezone2", help="input topics, comma-separated")
    parser.add_argument("--output", default="timezone_unified", help="output topic")
    parser.add_argument("--name", default="timezone-etl", help="the pipeline's name; its progress is kept under it")
    parser.add_argument("--start", default="beginning", help="without progress: beginning, latest or a time")
    parser.add_argument("--engine", choices=["direct", "delta"], default="direct", help="direct, or stock delta-spark")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between batches (0: as fast as it can)")
    parser.add_argument("--executor-rows", type=int, default=EXECUTOR_ROWS, help="larger batches: executors write them")
    parser.add_argument("--once", action="store_true", help="process what is there, then exit")
    parser.add_argument("--json", action="store_true", help="progress as JSON lines")
    args, _ = parser.parse_known_args(argv)  # Glue adds arguments of its own
    try:
        settings = Settings.load(profile=args.profile, root=args.root)
        inputs = args.inputs.split(",")
        from glue_jobs.transforms import unify_timezones

        if args.engine == "delta":
            from brokerless.spark.delta import check_delta_output, delta_session, start_delta

            check_delta_output(settings, args.output)
            spark = delta_session(settings, name=args.name)
            options = {"inputs": inputs, "output": args.output, "name": args.name, "once": args.once}
            stock = start_delta(spark, settings, unify_timezones, **options, interval_s=args.interval)
            run(stock, once=args.once, as_json=args.json)
            return 0
        ensure_dead_letters(settings, args.output, inputs)
        spark = spark_session(settings, name=args.name)
        where = {"name": args.name, "output": args.output, "settings": settings}
        rows = read_stream(spark, inputs, **where, start=args.start, once=args.once)
        options = {"settings": settings, "interval_s": args.interval, "executor_rows": args.executor_rows}
        query = write_stream(unify_timezones(rows), args.output, name=args.name, **options)
        run(query, once=args.once, as_json=args.json)
    except BrokerlessError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
