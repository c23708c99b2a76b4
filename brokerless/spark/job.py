"""What every job file shares: arguments, wiring, start, and errors as exit codes.

A job is its transform and its defaults; the same file runs on Glue 6.0, on EMR Serverless, under ``spark-submit`` and
on a laptop.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokerless.clock import duration_s
from brokerless.errors import BrokerlessError, ConfigError, UsageError, on_the_way
from brokerless.settings import Settings
from brokerless.spark import EXECUTOR_ROWS, ensure_dead_letters, read_stream, run, spark_session, write_stream
from brokerless.spark.failures import lost_jvm_named, mistake_in_transform
from brokerless.spark.pipeline import source_options
from brokerless.spark.realtime.engine import COMMIT_INTERVAL_S, NotRealtimeError, start_realtime
from brokerless.spark.telemetry import PipelineMeter, published

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from brokerless.spark.delta import DeltaStream
    from brokerless.spark.realtime.engine import RealtimeStream
    from brokerless.spark.sink import Stream

    AnyStream = Stream | DeltaStream | RealtimeStream

ENGINES: Final = ("auto", "realtime", "micro-batch", "delta")


def run_job(
    transform: Callable[[DataFrame], DataFrame],
    argv: Sequence[str] | None = None,
    *,
    name: str,
    inputs: Sequence[str],
    output: str,
    description: str | None = None,
) -> int:
    """Runs a pipeline until it is stopped; with ``--once`` until nothing is left.

    Args:
        transform: from the inputs' messages (``read_stream``) to the output's columns (``write_stream``).
        argv: the arguments; ``sys.argv`` by default. Unknown ones are ignored: Glue adds its own.
        name: the pipeline's name unless ``--name`` gives another; its progress is kept under it.
        inputs: topics, unless ``--inputs`` gives others.
        output: topic, unless ``--output`` gives another.
        description: for ``--help``.

    Returns:
        The exit code: 0, 1 after an error, 2 if wrong usage kept it from starting; errors are named on standard error.
    """
    args, _ = _parser(name, inputs, output, description).parse_known_args(argv)
    try:
        settings = Settings.load(profile=args.profile, root=args.root)
        settings = replace(
            settings, region=args.region or settings.region, state_dir=args.state_dir or settings.state_dir
        )
        if args.metrics_namespace and args.metrics_file:
            raise ConfigError("--metrics-namespace and --metrics-file exclude each other; give one of them.")
        _say_mistakes_once()
        stream, reason = _start(transform, settings, args)
        meter = PipelineMeter(args.name, usd_per_hour=args.usd_per_hour)
        where = {"namespace": args.metrics_namespace, "path": args.metrics_file, "region": settings.region}
        with published(meter.meter, **where), on_the_way():
            run(stream, once=args.once, as_json=args.json, meter=meter, reason=reason)
    except BrokerlessError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) and not error.on_the_way else 1
    except Exception as error:
        if (mistake := mistake_in_transform(error)) is None:
            raise
        print(f"{mistake} Correct the pipeline's transform; nothing was started.", file=sys.stderr)
        return 2
    return 0


def _say_mistakes_once() -> None:
    """Spark prints an error in a transform as JSON, too, before it raises it."""
    with contextlib.suppress(ImportError):  # said below, by name
        from pyspark.logger import PySparkLogger

        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = True


def _parser(name: str, inputs: Sequence[str], output: str, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--root", help="where topics are (default: BROKERLESS_ROOT)")
    parser.add_argument("--profile", help="embedded, minio or aws (default: BROKERLESS_PROFILE)")
    parser.add_argument("--region", help="of AWS (default: AWS_REGION, which Glue does not set)")
    parser.add_argument("--inputs", type=_names, default=list(inputs), help="input topics, comma-separated")
    parser.add_argument("--output", default=output, help="output topic")
    parser.add_argument("--name", default=name, help="the pipeline's name; its progress is kept under it")
    parser.add_argument("--start", default="beginning", help="without progress: beginning, latest or a time")
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="realtime, micro-batch, auto (realtime where it can), or delta: stock delta-spark",
    )
    parser.add_argument(
        "--commit-interval", type=_seconds, help="least time between commits: 20ms, 1s (default: 100ms; batches: 0)"
    )
    parser.add_argument("--interval", type=float, help=argparse.SUPPRESS)  # its name before, in seconds
    parser.add_argument("--executor-rows", type=int, default=EXECUTOR_ROWS, help="larger batches: executors write them")
    parser.add_argument("--once", action="store_true", help="process what is there, then exit")
    parser.add_argument(
        "--accept-new-input", action="store_true", help="begin anew with an input that was made again by hand"
    )
    parser.add_argument(
        "--accept-rewrites", action="store_true", help="deliver again what other engines' deletes and updates keep"
    )
    parser.add_argument(
        "--skip", type=_names, default=[], help="objects that nobody has any more: TABLE@VERSION:INDEX, comma-separated"
    )
    parser.add_argument("--json", action="store_true", help="progress as JSON lines")
    parser.add_argument("--state-dir", type=Path, help="scratch space (default: BROKERLESS_STATE_DIR)")
    parser.add_argument("--metrics-namespace", help="send metrics to this namespace of CloudWatch, once a minute")
    parser.add_argument("--metrics-file", type=Path, help="append metrics to this file, as JSON lines")
    parser.add_argument("--usd-per-hour", type=float, default=0.0, help="price of the workers, for the cost metric")
    return parser


def _names(text: str) -> list[str]:
    return text.split(",")


def _seconds(text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@lost_jvm_named()
def _start(
    transform: Callable[[DataFrame], DataFrame], settings: Settings, args: argparse.Namespace
) -> tuple[AnyStream, str]:
    """The running pipeline, and why it runs by that engine if nobody has asked for it."""
    if args.commit_interval is None:
        args.commit_interval = args.interval
    if args.engine == "delta":
        return _start_delta(transform, settings, args), ""
    ensure_dead_letters(settings, args.output, args.inputs)
    spark = spark_session(settings, name=args.name)
    if args.engine == "micro-batch":
        return _start_batches(spark, transform, settings, args), ""
    try:
        return _start_realtime(spark, transform, settings, args), ""
    except NotRealtimeError as error:
        reason = str(error)
        if args.engine == "realtime":
            raise ConfigError(
                f"This pipeline cannot run in real-time mode: {reason}. Use --engine auto or micro-batch."
            ) from None
    if not args.json:
        print(f"Running in micro-batches: {reason}.", file=sys.stderr, flush=True)
    return _start_batches(spark, transform, settings, args), reason


def _start_realtime(
    spark: SparkSession, transform: Callable[[DataFrame], DataFrame], settings: Settings, args: argparse.Namespace
) -> RealtimeStream:
    interval_s = COMMIT_INTERVAL_S if args.commit_interval is None else args.commit_interval
    options = source_options(
        settings,
        args.inputs,
        name=args.name,
        output=args.output,
        start=args.start,
        once=args.once,
        accept_new_input=args.accept_new_input,
        accept_rewrites=args.accept_rewrites,
        skip=args.skip,
    )
    return start_realtime(
        spark,
        transform,
        args.output,
        name=args.name,
        settings=settings,
        options=options,
        commit_interval_s=interval_s,
    )


def _start_batches(
    spark: SparkSession, transform: Callable[[DataFrame], DataFrame], settings: Settings, args: argparse.Namespace
) -> Stream:
    where = {"name": args.name, "output": args.output, "settings": settings}
    accepted = {"accept_new_input": args.accept_new_input, "accept_rewrites": args.accept_rewrites, "skip": args.skip}
    rows = read_stream(spark, args.inputs, **where, start=args.start, once=args.once, **accepted)
    options = {"settings": settings, "interval_s": args.commit_interval or 0.0, "executor_rows": args.executor_rows}
    return write_stream(transform(rows), args.output, name=args.name, **options)


def _start_delta(
    transform: Callable[[DataFrame], DataFrame], settings: Settings, args: argparse.Namespace
) -> DeltaStream:
    from brokerless.spark.delta import check_delta_output, delta_session, start_delta

    if args.accept_new_input or args.accept_rewrites or args.skip:
        raise ConfigError(
            "--accept-new-input, --accept-rewrites and --skip are for the other engines; Delta's source has no such."
        )
    check_delta_output(settings, args.output)
    spark = delta_session(settings, name=args.name)
    options = {"inputs": args.inputs, "output": args.output, "name": args.name, "once": args.once}
    return start_delta(spark, settings, transform, **options, interval_s=args.commit_interval or 0.0)
