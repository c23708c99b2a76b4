"""A pipeline as a job: its command line, and errors as exit codes.

The same command line holds on Glue 6.0, on EMR Serverless, under ``spark-submit`` and for ``brokerless run``.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from brokerless.clock import duration_s
from brokerless.errors import BrokerlessError, ConfigError, UsageError
from brokerless.settings import Settings
from brokerless.spark.conf import Engine
from brokerless.spark.exact import parse_versions, transform_versions
from brokerless.spark.failures import mistake_in_transform
from brokerless.spark.runner import RunOptions, run_pipeline
from brokerless.spark.session import spark_session
from brokerless.spark.sink import EXECUTOR_ROWS
from brokerless.spark.telemetry import PipelineMeter, published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.spark.pipeline import Pipeline

ENGINES: Final = get_args(Engine)


def run_arguments(pipeline: Pipeline, argv: Sequence[str] | None = None) -> int:
    """Run a pipeline until it is stopped, with ``--once`` until nothing is left; return the exit code.

    Args:
        pipeline: with the defaults for ``--name``, ``--inputs``, ``--output`` and ``--start``.
        argv: the arguments; those of this process by default. Unknown ones are ignored: Glue adds its own.

    Returns:
        0, 1 after an error, or 2 if a mistake prevented the start. Errors are named on standard error.
    """
    args, _ = _parser(pipeline).parse_known_args(argv)
    try:
        settings = Settings.load(profile=args.profile, root=args.root)
        settings = replace(
            settings, region=args.region or settings.region, state_dir=args.state_dir or settings.state_dir
        )
        if args.metrics_namespace and args.metrics_file:
            raise ConfigError("--metrics-namespace and --metrics-file exclude each other; give one of them.")
        pipeline = replace(pipeline, name=args.name, inputs=args.inputs, output=args.output, start=args.start)
        if args.versions:
            return _print_versions(pipeline, settings, args.versions)
        meter = PipelineMeter(pipeline.name, usd_per_hour=args.usd_per_hour)
        sink = {"namespace": args.metrics_namespace, "path": args.metrics_file, "region": settings.region}
        with published(meter.meter, **sink):
            run_pipeline(pipeline, settings, _options(args), progress="json" if args.json else "text", meter=meter)
    except BrokerlessError as error:
        return report_error(error)
    except Exception as error:
        if (mistake := mistake_in_transform(error)) is None:
            raise
        print(f"{mistake} Correct the pipeline's transform; nothing was started.", file=sys.stderr)
        return 2
    return 0


def _print_versions(pipeline: Pipeline, settings: Settings, texts: Sequence[str]) -> int:
    versions = parse_versions(texts)
    spark = spark_session(settings, name=pipeline.name)
    for row in transform_versions(pipeline, settings, versions, spark).toJSON().collect():
        print(row)
    return 0


def report_error(error: BrokerlessError) -> int:
    """Print an error by its name on standard error; return the exit code."""
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 2 if isinstance(error, UsageError) and not error.on_the_way else 1


def _options(args: argparse.Namespace) -> RunOptions:
    return RunOptions(
        once=args.once,
        until=args.until,
        engine=args.engine,
        commit_interval_s=args.interval if args.commit_interval is None else args.commit_interval,
        create_output=args.create_output,
        accept_new_input=args.accept_new_input,
        accept_rewrites=args.accept_rewrites,
        skip=tuple(args.skip),
        executor_rows=args.executor_rows,
    )


def _parser(pipeline: Pipeline) -> argparse.ArgumentParser:
    module = sys.modules.get(getattr(pipeline.transform, "__module__", ""))
    parser = argparse.ArgumentParser(
        description=module.__doc__ if module else None, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", help="where topics are (default: BROKERLESS_ROOT)")
    parser.add_argument("--profile", help="embedded, minio or aws (default: BROKERLESS_PROFILE)")
    parser.add_argument("--region", help="of AWS (default: AWS_REGION, which Glue does not set)")
    parser.add_argument("--inputs", type=_names, default=pipeline.inputs, help="input topics, comma-separated")
    parser.add_argument("--output", default=pipeline.output, help="output topic")
    parser.add_argument("--create-output", action="store_true", help="create the output if it is missing")
    parser.add_argument("--name", default=pipeline.name, help="the pipeline's name; its progress is recorded under it")
    parser.add_argument(
        "--start", "--from", default=pipeline.start, help="without progress: beginning, latest or a time"
    )
    parser.add_argument("--until", help="end before now, a past time, or an offset such as 12:0 of the only partition")
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
    parser.add_argument(
        "--versions",
        type=_names,
        help="print what the transform makes of these commits, and write nothing: TOPIC/PARTITION=FIRST:LAST, "
        "comma-separated",
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
