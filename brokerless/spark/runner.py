"""Start a pipeline by the engine that fits, and follow it to its end."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from brokerless.clock import duration_s
from brokerless.errors import ConfigError, TopicNotFound, on_the_way
from brokerless.schema import PRODUCED_AT, Schema
from brokerless.spark.conf import Engine
from brokerless.spark.failures import lost_jvm_named, named_error
from brokerless.spark.messages import DEAD_LETTER, union_columns, until_option
from brokerless.spark.progress_line import Progress
from brokerless.spark.reader import read_stream, source_options, static_messages
from brokerless.spark.realtime.engine import COMMIT_INTERVAL_S, start_realtime
from brokerless.spark.realtime.requirements import NotRealtimeError
from brokerless.spark.session import borrowed, spark_session
from brokerless.spark.sink import EXECUTOR_ROWS, write_stream
from brokerless.store import open_store
from brokerless.topics import TopicIncomplete, create_dead_letters, create_topic, describe_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from brokerless.settings import Settings
    from brokerless.spark.pipeline import Pipeline
    from brokerless.spark.progress_line import ProgressFormat
    from brokerless.spark.running import RunningPipeline
    from brokerless.spark.telemetry import PipelineMeter
    from brokerless.topics import Topic

STOP_WITHIN_S = 8.0
"""How long a stop waits for the running batch; with Spark's own end it stays below 10 s."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a pipeline is to run; ``Pipeline.run`` describes each.

    Attributes:
        commit_interval_s: seconds, or None for the engine's default.
        executor_rows: rows, or None for ``EXECUTOR_ROWS``.

    Raises:
        ConfigError: an unknown engine, or an end that cannot be.
    """

    once: bool = False
    until: str | None = None
    engine: Engine = "auto"
    commit_interval_s: float | None = None
    create_output: bool = False
    accept_new_input: bool = False
    accept_rewrites: bool = False
    skip: tuple[str, ...] = ()
    executor_rows: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in get_args(Engine):
            raise ConfigError(f"The engine must be one of {', '.join(get_args(Engine))}, got {self.engine!r}.")
        if self.until is not None:
            until_option(self.until)

    @property
    def has_end(self) -> bool:
        """Whether the run ends by itself."""
        return self.once or self.until is not None


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """What a run of a pipeline did.

    Attributes:
        rows: how many it committed to the output.
        dead_letters: how many it committed to the dead-letter topic.
        engine: how it ran: ``realtime``, ``micro-batch`` or ``delta``, which does not count rows.
        reason: why it ran in micro-batches, if that was not asked for; otherwise empty.
    """

    rows: int
    dead_letters: int
    engine: str
    reason: str = ""


def run_pipeline(
    pipeline: Pipeline,
    settings: Settings,
    options: RunOptions,
    *,
    spark: SparkSession | None = None,
    progress: ProgressFormat | None = None,
    stop: threading.Event | None = None,
    meter: PipelineMeter | None = None,
) -> PipelineResult:
    """Run a pipeline to its end, as ``Pipeline.run`` describes; ``meter`` receives the reports of its batches.

    Raises:
        BrokerlessError: as ``Pipeline.run``; ``on_the_way`` is True if the pipeline had been started.
    """
    _print_mistakes_once()
    with contextlib.ExitStack() as stack:
        if spark is not None and options.engine != "delta":  # whose settings are others
            stack.enter_context(borrowed(spark))
        stream, reason = _start(pipeline, settings, options, spark)
        if reason and progress == "text":
            print(f"Running in micro-batches: {reason}.", file=sys.stderr, flush=True)
        with on_the_way():
            return _follow(stream, once=options.has_end, progress=progress, stop=stop, meter=meter, reason=reason)


def interval_s(given: str | float) -> float:
    """Read a commit interval such as ``20ms``, ``1s`` or a number of seconds; return seconds.

    Raises:
        ConfigError: it is not one.
    """
    try:
        return duration_s(str(given))
    except ValueError as error:
        raise ConfigError(f"The commit interval {error}.") from None


def _print_mistakes_once() -> None:
    """Keep Spark from printing an error in a transform as JSON, too, before it raises it."""
    with contextlib.suppress(ImportError):  # spark_session says by name that pyspark is missing
        from pyspark.logger import PySparkLogger

        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = True


# Start


@lost_jvm_named()
def _start(
    pipeline: Pipeline, settings: Settings, options: RunOptions, spark: SparkSession | None
) -> tuple[RunningPipeline, str]:
    """Start the pipeline; return it, and why it runs by that engine if nobody has asked for it."""
    store = open_store(settings)
    # First, so that a missing topic is reported before Spark starts.
    inputs = [describe_topic(store, topic) for topic in pipeline.inputs]
    if options.engine == "delta":
        return _start_delta(pipeline, settings, options, spark), ""
    spark = spark or spark_session(settings, name=pipeline.name)
    _ensure_outputs(pipeline, settings, options, spark, inputs)
    if options.engine == "micro-batch":
        return _start_batches(pipeline, settings, options, spark), ""
    try:
        return _start_realtime(pipeline, settings, options, spark), ""
    except NotRealtimeError as error:
        reason = str(error)
        if options.engine == "realtime":
            raise ConfigError(
                f"This pipeline cannot run in real-time mode: {reason}. Use --engine auto or micro-batch."
            ) from None
    return _start_batches(pipeline, settings, options, spark), reason


def _ensure_outputs(
    pipeline: Pipeline, settings: Settings, options: RunOptions, spark: SparkSession, inputs: Sequence[Topic]
) -> None:
    """Make sure that the output is there, created if that was asked for, and create the topic for dead letters."""
    store = open_store(settings)
    schemas = [topic.schema for topic in inputs]
    try:
        describe_topic(store, pipeline.output)
    except TopicIncomplete:
        raise
    except TopicNotFound:
        schema = _schema_of(pipeline, spark, schemas)
        if not options.create_output:
            raise TopicNotFound(
                f"The output topic {pipeline.output!r} of the pipeline {pipeline.name!r} is not there. Create it: "
                f'brokerless topics create {pipeline.output} --schema "{schema}". Or let the pipeline do it: '
                "--create-output, in Python run(create_output=True)."
            ) from None
        create_topic(store, pipeline.output, schema, exist_ok=True)
    create_dead_letters(store, pipeline.output, schemas)


def _schema_of(pipeline: Pipeline, spark: SparkSession, inputs: Sequence[Schema]) -> Schema:
    """Return the columns that the transform makes of the inputs, without those that are implied."""
    result = pipeline.transform(static_messages(spark, union_columns(inputs), []))
    fields = [field for field in result.schema.fields if field.name not in {DEAD_LETTER, PRODUCED_AT}]
    return Schema.parse(", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields))


def _start_realtime(
    pipeline: Pipeline, settings: Settings, options: RunOptions, spark: SparkSession
) -> RunningPipeline:
    return start_realtime(
        spark,
        pipeline.transform,
        pipeline.output,
        name=pipeline.name,
        settings=settings,
        options=source_options(settings, pipeline.inputs, **_source(pipeline, options)),
        commit_interval_s=COMMIT_INTERVAL_S if options.commit_interval_s is None else options.commit_interval_s,
        any_cluster=options.engine == "realtime",
    )


def _start_batches(pipeline: Pipeline, settings: Settings, options: RunOptions, spark: SparkSession) -> RunningPipeline:
    rows = read_stream(spark, pipeline.inputs, settings=settings, **_source(pipeline, options))
    return write_stream(
        pipeline.transform(rows),
        pipeline.output,
        name=pipeline.name,
        settings=settings,
        interval_s=options.commit_interval_s or 0.0,
        executor_rows=EXECUTOR_ROWS if options.executor_rows is None else options.executor_rows,
    )


def _source(pipeline: Pipeline, options: RunOptions) -> dict[str, Any]:
    """Return the arguments that ``read_stream`` and ``source_options`` share."""
    return {
        "name": pipeline.name,
        "output": pipeline.output,
        "start": pipeline.start,
        "once": options.once,
        "until": options.until,
        "accept_new_input": options.accept_new_input,
        "accept_rewrites": options.accept_rewrites,
        "skip": options.skip,
    }


def _start_delta(
    pipeline: Pipeline, settings: Settings, options: RunOptions, spark: SparkSession | None
) -> RunningPipeline:
    from brokerless.spark.delta import check_delta_output, delta_session, start_delta

    if options.accept_new_input or options.accept_rewrites or options.skip or options.until:
        raise ConfigError(
            "--accept-new-input, --accept-rewrites, --skip and --until are for the other engines; Delta's source has "
            "no such."
        )
    check_delta_output(settings, pipeline.output)
    return start_delta(
        spark or delta_session(settings, name=pipeline.name),
        settings,
        pipeline.transform,
        inputs=pipeline.inputs,
        output=pipeline.output,
        name=pipeline.name,
        once=options.once,
        interval_s=options.commit_interval_s or 0.0,
    )


# Run


@lost_jvm_named()
def _follow(
    stream: RunningPipeline,
    *,
    once: bool,
    progress: ProgressFormat | None = None,
    stop: threading.Event | None = None,
    meter: PipelineMeter | None = None,
    reason: str = "",
) -> PipelineResult:
    """Follow a started pipeline until it is stopped, has done what was there, or fails.

    Raises:
        BrokerlessError: what stopped the pipeline.
    """
    stopping = stop or threading.Event()
    shown = Progress(progress)

    def show(seconds: float) -> None:
        reports = stream.drain()
        if meter is not None:
            meter.record(reports)
        shown.add(reports, seconds)

    with _signals(stopping):
        waiter = threading.Thread(target=_wait, args=(stream, once, stopping), daemon=True)
        waiter.start()
        while not (stream.ready() or stopping.wait(0.005)):
            pass
        if stream.query.exception() is None:
            shown.event(event="started", pipeline=stream.name, engine=stream.engine, reason=reason)
        begun = time.monotonic()
        while not stopping.wait(max(0.0, 1.0 - (time.monotonic() - begun))):
            now = time.monotonic()
            show(now - begun)
            begun = now
        stream.stop(STOP_WITHIN_S)
        show(time.monotonic() - begun)
    shown.event(event="stopped", pipeline=stream.name, rows=shown.rows, dead_letters=shown.dead_letters)
    shown.end()
    failure = stream.error()
    if failure is not None:
        raise failure
    cause = stream.query.exception()
    if cause is not None and "_StoppingError" not in str(cause):
        raise named_error(str(cause)) from cause
    return PipelineResult(shown.rows, shown.dead_letters, stream.engine, reason)


@contextlib.contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT set the event; Python allows that in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(stream: RunningPipeline, once: bool, stopping: threading.Event) -> None:
    try:
        stream.wait(once=once)
    except Exception:  # noqa: S110  # the query keeps it, and _follow reports it
        pass
    finally:
        stopping.set()
