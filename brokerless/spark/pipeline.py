"""A pipeline from its inputs to its end: reading topics, marking dead letters, running, showing progress."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from brokerless.columns.records import arrow_schema
from brokerless.metrics import LATENCY_BOUNDS_S, Histogram
from brokerless.offsets import parse_start
from brokerless.schema import PRODUCED_AT
from brokerless.settings import Settings
from brokerless.spark.failures import lost_jvm_named, named_error
from brokerless.spark.inputs import METADATA
from brokerless.spark.worker import settings_option
from brokerless.store import open_store
from brokerless.topics import create_dead_letters, describe_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from pyspark.sql import Column, DataFrame, SparkSession

    from brokerless.spark.delta import DeltaStream
    from brokerless.spark.realtime.engine import RealtimeStream
    from brokerless.spark.sink import BatchReport, Stream
    from brokerless.spark.telemetry import PipelineMeter

STOP_WITHIN_S = 8.0
"""How long a stop waits for the running batch; with Spark's own end it stays below 10 s."""


def read_stream(
    spark: SparkSession,
    topics: Sequence[str],
    *,
    name: str,
    output: str,
    settings: Settings | None = None,
    start: str = "beginning",
    once: bool = False,
    metadata: bool = True,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    max_files: int | None = None,
    accept_new_input: bool = False,
    accept_rewrites: bool = False,
    skip: Sequence[str] = (),
) -> DataFrame:
    """The messages of several topics as one streaming DataFrame, for the pipeline ``name`` that writes ``output``.

    It begins after what the output records for this pipeline. Its columns are those of all the topics (null where a
    topic lacks one), ``_produced_at``, and with ``metadata`` also ``_topic``, ``_partition``, ``_version``, ``_index``.

    Args:
        spark: a session from ``spark_session`` or ``tune``.
        topics: their names; all partitions are read.
        name: the pipeline's name, as for ``write_stream``.
        output: the output topic, as for ``write_stream``, which refuses another; so each output needs a ``read_stream``
            of its own.
        settings: where, as for ``write_stream``; read from the environment by default.
        start: where to begin without recorded progress: ``beginning``, ``latest`` or a time. ``write_stream`` records
            what that means when it first starts, before anything is read.
        once: end at what the topics hold when the stream starts.
        metadata: whether to add the metadata columns.
        max_rows: limit of one batch, soft by one commit, like the next two.
        max_bytes: of the objects.
        max_files: how many objects.
        accept_new_input: begin anew, at its beginning, with a topic that was removed and made again by hand since this
            pipeline last read it; otherwise the pipeline stops.
        accept_rewrites: where another engine has deleted or updated rows, deliver those that it kept again; otherwise
            the pipeline stops before them.
        skip: objects to go on without if they cannot be read, each as ``table@version:index``: their messages are lost
            to this pipeline.

    Raises:
        TopicNotFound, SchemaError, ConfigError: at once.
    """
    options = source_options(
        settings or Settings.load(),
        topics,
        name=name,
        output=output,
        start=start,
        once=once,
        metadata=metadata,
        accept_new_input=accept_new_input,
        accept_rewrites=accept_rewrites,
        skip=skip,
    )
    limits = {"maxRows": max_rows, "maxBytes": max_bytes, "maxFiles": max_files}
    options |= {key: str(value) for key, value in limits.items() if value}
    options["cores"] = str(spark.sparkContext.defaultParallelism)
    return spark.readStream.format("brokerless").options(**options).load()


def source_options(
    settings: Settings,
    topics: Sequence[str],
    *,
    name: str,
    output: str,
    start: str = "beginning",
    once: bool = False,
    metadata: bool = True,
    accept_new_input: bool = False,
    accept_rewrites: bool = False,
    skip: Sequence[str] = (),
) -> dict[str, str]:
    """What ``read_stream`` is given, checked, as the options of a source; keys in lower case.

    Raises:
        TopicNotFound, SchemaError, ConfigError: as ``read_stream``.
    """
    parse_start(start)
    store = open_store(settings)
    for topic in topics:
        arrow_schema(describe_topic(store, topic).schema)
    options = {
        "topics": ",".join(topics),
        "pipeline": name,
        "output": output,
        "settings": settings_option(settings),
        "start": start,
        "metadata": str(metadata).lower(),
        "until": "now" if once else "",
        "acceptnewinput": str(accept_new_input).lower(),
        "acceptrewrites": str(accept_rewrites).lower(),
        "skip": ",".join(skip),
    }
    return {key: value for key, value in options.items() if value}


def dead_letter(reason: Column, rows: DataFrame) -> Column:
    """The column ``_dead_letter``: null where ``reason`` is null, otherwise what the dead-letter topic keeps.

    Args:
        reason: why the row cannot be processed, as text; null for good rows.
        rows: the DataFrame of ``read_stream`` (with metadata) that the row comes from.
    """
    from pyspark.sql import functions as F

    own = {column.name for column in METADATA} | {PRODUCED_AT}
    kept = [F.col(name) for name in rows.columns if name not in own]
    # concat, not concat_ws: Arrow refuses a null struct whose fields claim never to be null, as concat_ws's does.
    offset = F.concat(F.col("_version").cast("string"), F.lit(":"), F.col("_index").cast("string"))
    return F.when(
        reason.isNotNull(),
        F.struct(*kept, reason.alias("_reason"), "_topic", "_partition", offset.alias("_offset")),
    )


def ensure_dead_letters(settings: Settings, output: str, topics: Sequence[str]) -> None:
    """Creates the dead-letter topic of an output if it is missing."""
    store = open_store(settings)
    create_dead_letters(store, output, [describe_topic(store, topic).schema for topic in topics])


@lost_jvm_named()
def run(
    stream: Stream | DeltaStream | RealtimeStream,
    *,
    once: bool = False,
    as_json: bool = False,
    out: TextIO | None = None,
    meter: PipelineMeter | None = None,
    reason: str = "",
) -> None:
    """Runs a started pipeline to its end, with a line of progress each second.

    Ends when ``once`` has processed what was there, on SIGTERM or SIGINT (after the running batch), or by an error.
    Call it from the main thread.

    Args:
        stream: from ``write_stream``.
        once: end when nothing is left.
        as_json: progress as JSON lines on ``out``; otherwise text, rewritten in place on a terminal.
        out: standard error by default, standard output for JSON.
        meter: gets what the batches did, too.
        reason: why the pipeline runs by this engine; empty if that was asked for.

    Raises:
        BrokerlessError: what stopped the pipeline.
    """
    out = out or (sys.stdout if as_json else sys.stderr)
    stopping = threading.Event()
    with _signals(stopping):
        waiter = threading.Thread(target=_wait, args=(stream, once, stopping), daemon=True)
        waiter.start()
        while not (stream.ready() or stopping.wait(0.005)):
            pass
        if as_json and stream.query.exception() is None:
            _print_json(out, event="started", pipeline=stream.name, engine=stream.engine, reason=reason)
        begun = time.monotonic()
        totals = [0, 0]
        while not stopping.wait(max(0.0, 1.0 - (time.monotonic() - begun))):
            now = time.monotonic()
            _show(_drained(stream, meter), now - begun, totals, as_json=as_json, out=out)
            begun = now
        stream.stop(STOP_WITHIN_S)
        _show(_drained(stream, meter), time.monotonic() - begun, totals, as_json=as_json, out=out)
    if as_json:
        _print_json(out, event="stopped", pipeline=stream.name, rows=totals[0], dead_letters=totals[1])
    elif out.isatty():
        print(file=out)
    failure = stream.error()
    if failure is not None:
        raise failure
    cause = stream.query.exception()
    if cause is not None and "_StoppingError" not in str(cause):
        raise named_error(str(cause)) from cause


def _drained(stream: Stream | DeltaStream | RealtimeStream, meter: PipelineMeter | None) -> list[BatchReport]:
    reports = stream.drain()
    if meter is not None:
        meter.record(reports)
    return reports


@contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    previous = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(stream: Stream | DeltaStream | RealtimeStream, once: bool, stopping: threading.Event) -> None:
    try:
        stream.wait(once=once)
    except Exception:  # noqa: S110  # the query keeps it, and run reports it
        pass
    finally:
        stopping.set()


def _show(
    reports: Sequence[BatchReport], seconds: float, totals: list[int], *, as_json: bool, out: TextIO
) -> None:  # fmt: skip
    latency = Histogram()
    for report in reports:
        latency.add_counts(report.latency.counts)
    rows, letters = sum(r.rows for r in reports), sum(r.dead_letters for r in reports)
    totals[0] += rows
    totals[1] += letters
    if as_json:
        if reports:
            _print_json(
                out,
                event="progress",
                rows=rows,
                rows_per_s=round(rows / max(seconds, 1e-9), 1),
                dead_letters=letters,
                latency_p50_s=_finite(latency.percentile(50)),
                latency_p99_s=_finite(latency.percentile(99)),
                lag_rows=reports[-1].lag_rows,
                batches=len(reports),
                compute_ms=round(1000 * sum(r.compute_s for r in reports) / len(reports), 1),
                commit_ms=round(1000 * sum(r.commit_s for r in reports) / len(reports), 1),
                by=reports[-1].by,
            )
        return
    if not reports and not out.isatty():
        return
    text = f"{totals[0]:,} rows  {rows / max(seconds, 1e-9):,.0f}/s"
    if latency.total:
        text += f"  latency p50 {_seconds(latency.percentile(50))}  p99 {_seconds(latency.percentile(99))}"
    if reports:
        batch = 1000 * sum(r.compute_s + r.commit_s for r in reports) / len(reports)
        text += f"  lag {reports[-1].lag_rows:,} rows  batch {batch:.0f} ms"
    if totals[1]:
        text += f"  dead letters {totals[1]:,}"
    print(f"\r\033[K{text}" if out.isatty() else text, end="" if out.isatty() else "\n", file=out, flush=True)


def _finite(seconds: float | None) -> float | None:
    """None also for what is beyond the histogram's last bound: JSON knows no Infinity."""
    return None if seconds is None or math.isinf(seconds) else seconds


def _seconds(seconds: float | None) -> str:
    known = _finite(seconds)
    return f"> {LATENCY_BOUNDS_S[-1]:,.0f} s" if known is None else f"{known:.3f} s"


def _print_json(out: TextIO, **values: object) -> None:
    print(json.dumps(values), file=out, flush=True)
