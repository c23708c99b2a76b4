"""What a pipeline's transform makes of exactly these commits: for debugging, without progress and without a commit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from brokerless.errors import ConfigError, StoreError
from brokerless.log.log import DeltaLog
from brokerless.schema import PRODUCED_AT, Column, partition_table
from brokerless.spark.messages import METADATA, ddl, load_object, union_columns, with_metadata
from brokerless.store import open_store
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from brokerless.schema import Schema
    from brokerless.settings import Settings
    from brokerless.spark.pipeline import Pipeline
    from brokerless.store import Store

_VERSIONS: Final = re.compile(r"([^/=]+)/([0-9]{1,4})=([0-9]{1,18}):([0-9]{1,18})")

Versions = dict[tuple[str, int], tuple[int, int]]
"""By topic and partition the first and the last commit."""


def parse_versions(texts: Sequence[str]) -> Versions:
    """Parse ``timezone1/0=12:15``: the commits 12 to 15 of partition 0, both included.

    Raises:
        ConfigError: a text is something else.
    """
    found: Versions = {}
    for text in texts:
        match = _VERSIONS.fullmatch(text)
        if match is None or int(match[3]) > int(match[4]) or (match[1], int(match[2])) in found:
            raise ConfigError(
                f"{text!r} does not name commits; write TOPIC/PARTITION=FIRST:LAST once for each partition, such as "
                "timezone1/0=12:15."
            )
        found[match[1], int(match[2])] = int(match[3]), int(match[4])
    return found


def transform_versions(
    pipeline: Pipeline, settings: Settings, versions: Mapping[tuple[str, int], tuple[int, int]], spark: SparkSession
) -> DataFrame:
    """Return the result of the transform for exactly these commits, with its dead letters, as a static DataFrame.

    The messages are read into this process's memory. Nothing is written.

    Raises:
        ConfigError: a topic that is no input of the pipeline, or a partition or commit that it does not have.
        StoreError: an object cannot be read, or maintenance has removed it.
    """
    import pyarrow as pa

    store = open_store(settings)
    topics = {name: describe_topic(store, name) for name in pipeline.inputs}
    schema = union_columns([topic.schema for topic in topics.values()])
    tables: list[pa.Table] = []
    for (name, number), (first, last) in versions.items():
        if name not in topics or number >= topics[name].partitions:
            raise ConfigError(f"Pipeline {pipeline.name!r} does not read partition {number} of topic {name!r}.")
        tables += _messages(store, DeltaLog(store, partition_table(name, number)), schema, first, last)
    columns = [*schema.columns, Column(PRODUCED_AT, "timestamp"), *METADATA]
    if not tables:
        return pipeline.transform(spark.createDataFrame([], ddl(columns)))
    return pipeline.transform(spark.createDataFrame(pa.concat_tables(tables)))


def _messages(store: Store, log: DeltaLog, schema: Schema, first: int, last: int) -> Iterator[pa.Table]:
    import pyarrow as pa

    for version in range(first, last + 1):
        entry = log.read(version)
        if entry is None:
            raise ConfigError(
                f"{log.uri} has no entry {version} (any more); it holds {log.earliest()} to {log.head()}. Name others."
            )
        index = 0
        for add in entry.messages:
            columns = [*schema.columns, Column(PRODUCED_AT, "timestamp")]
            rows = load_object(store, columns, f"{log.table}/{add.path}")
            if isinstance(rows, StoreError):
                raise rows
            yield with_metadata(pa.table(rows), log.table, version, index)
            index += rows.num_rows
