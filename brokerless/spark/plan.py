"""What a transform may be: its plan has one source, keeps no state, and makes the columns of the output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from brokerless.errors import ConfigError, SchemaError
from brokerless.schema import PRODUCED_AT
from brokerless.spark.messages import DEAD_LETTER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from brokerless.schema import Schema
    from brokerless.settings import Settings

_STATEFUL: Final = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "GlobalLimit",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)


def nodes(df: DataFrame) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the Java nodes of the plan, each with its children."""
    nodes = [df._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        children = node.children()
        parts = [children.apply(i) for i in range(children.size())]
        yield node, parts
        nodes += parts


def options_of_sources(df: DataFrame) -> list[dict[str, str]]:
    """Return the options of the brokerless sources in the plan; keys in lower case."""
    relations = (node for node, _ in nodes(df) if node.nodeName() == "StreamingRelationV2")
    return [dict(node.extraOptions()) for node in relations if node.sourceName() == "brokerless"]


def check_stateless(df: DataFrame) -> None:
    """Refuse stateful transforms: their state would be in the scratch checkpoint and be lost with it."""
    for node, parts in nodes(df):
        name = node.nodeName()
        if name in _STATEFUL or (name == "Join" and all(part.isStreaming() for part in parts)):
            raise ConfigError(
                f"The transform is stateful ({name}), and this engine does not store state durably. "
                "Use the delta engine, or store the state in a table that the transform joins with."
            )


def check_source(df: DataFrame, table: str, name: str, settings: Settings) -> None:
    """Refuse a source that reads its progress from another location than this sink writes it to."""
    sources = options_of_sources(df)
    if any(options != sources[0] for options in sources):
        raise ConfigError(
            "A pipeline has one source: give read_stream all topics, and use the column _topic to distinguish them."
        )
    for options in sources:
        have = options.get("pipeline"), options.get("output"), json.loads(options["settings"])["root"]
        want = name, table, settings.root
        if have != want:
            given, needed = ("name={!r}, output={!r}, root {}".format(*values) for values in (have, want))
            raise ConfigError(
                f"The source reads the pipeline's progress from {given}, but this pipeline writes it to {needed}. Give "
                "read_stream and write_stream the same name, output and root."
            )


def check_columns(df: DataFrame, schema: Schema, topic: str) -> None:
    """Refuse a transform that does not make exactly the columns of the topic."""
    have = [name for name in df.columns if name not in {DEAD_LETTER, PRODUCED_AT}]
    unknown, missing = sorted(set(have) - set(schema.names)), sorted(set(schema.required) - set(have))
    if unknown or missing:
        raise SchemaError(
            f"Topic {topic!r} has the columns {', '.join(schema.names)}; the pipeline writes {', '.join(have)}. "
            "Select exactly the topic's columns."
        )


def is_shuffled(df: DataFrame) -> bool:
    """Return whether the transform shuffles rows between tasks.

    Spark keeps shuffled rows as long as the batch lasts, so a second job would get the rows of the first one, although
    it has to read another part of the batch.
    """
    return "Shuffled" in df._jdf.queryExecution().toRdd().toDebugString()
