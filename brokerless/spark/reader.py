"""The messages of topics as Spark sees them: a streaming DataFrame for a pipeline, a static one for a test."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from brokerless.columns.records import arrow_schema
from brokerless.offsets import parse_start
from brokerless.schema import PRODUCED_AT, Column, Schema
from brokerless.settings import Settings
from brokerless.spark.messages import METADATA, ddl, until_option
from brokerless.spark.worker import settings_option
from brokerless.store import open_store
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

_PRODUCED: Final = datetime(2026, 1, 1, tzinfo=UTC)


def read_stream(
    spark: SparkSession,
    topics: Sequence[str],
    *,
    name: str,
    output: str,
    settings: Settings | None = None,
    start: str = "beginning",
    once: bool = False,
    until: str | None = None,
    metadata: bool = True,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    max_files: int | None = None,
    accept_new_input: bool = False,
    accept_rewrites: bool = False,
    skip: Sequence[str] = (),
) -> DataFrame:
    """Return the messages of several topics as one streaming DataFrame, for the micro-batch engine.

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
        until: end before this position: ``now`` (as ``once``), a time, or for one partition an offset as ``12:0``.
        metadata: whether to add the metadata columns.
        max_rows: limit of one batch, soft by one commit, like the next two.
        max_bytes: of the objects.
        max_files: how many objects.
        accept_new_input: begin anew, at its beginning, with a topic that was removed and made again by hand since this
            pipeline last read it; otherwise the pipeline stops.
        accept_rewrites: where another engine has deleted or updated rows, deliver those that it left again; otherwise
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
        until=until,
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
    until: str | None = None,
    metadata: bool = True,
    accept_new_input: bool = False,
    accept_rewrites: bool = False,
    skip: Sequence[str] = (),
) -> dict[str, str]:
    """Check what ``read_stream`` is given and return it as the options of a source, with keys in lower case.

    Raises:
        TopicNotFound, SchemaError, ConfigError: as ``read_stream``.
    """
    parse_start(start)
    if until is not None:
        until_option(until)
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
        "until": until or ("now" if once else ""),
        "acceptnewinput": str(accept_new_input).lower(),
        "acceptrewrites": str(accept_rewrites).lower(),
        "skip": ",".join(skip),
    }
    return {key: value for key, value in options.items() if value}


def static_messages(
    spark: SparkSession, schema: str | Schema, rows: Sequence[Sequence[Any]], *, topic: str = "topic"
) -> DataFrame:
    """Return rows as a static DataFrame with the columns that a pipeline's transform is given, for tests.

    Args:
        spark: any session.
        schema: the topic's columns, such as ``user string, page string``.
        rows: the messages: for each its values in the order of ``schema``.
        topic: the value of ``_topic``. ``_partition`` is 0, ``_version`` is 1, ``_index`` counts from 0, and
            ``_produced_at`` is the beginning of 2026.

    Raises:
        SchemaError: the schema cannot be read.
    """
    columns = (schema if isinstance(schema, Schema) else Schema.parse(schema)).columns
    values = [(*row, _PRODUCED, topic, 0, 1, index) for index, row in enumerate(rows)]
    return spark.createDataFrame(values, ddl([*columns, Column(PRODUCED_AT, "timestamp"), *METADATA]))
