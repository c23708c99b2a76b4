"""Serverless streaming on object storage: topics are Delta tables, an offset is a place in a log, no broker.

    >>> from brokerless import Client
    >>> with Client("s3://my-bucket/topics", profile="aws") as client:                    # doctest: +SKIP
    ...     clicks = client.create_topic("clicks", "user string, page string", exist_ok=True)
    ...     client.producer(clicks).send([{"user": "ada", "page": "/"}])
    ...     for batch in client.consumer(clicks, start="beginning"):
    ...         print(batch.first, batch.data.num_rows)

Names are loaded on first use: importing the package costs next to nothing, not even ``typing``, so that a Ctrl-C while
the command starts meets its handler and not an import.
"""

from __future__ import annotations

from brokerless.version import VERSION as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from brokerless.bucket import create_bucket
    from brokerless.client import Client
    from brokerless.consumer import Batch, Consumer, Message
    from brokerless.errors import (
        AccessDenied,
        BrokerlessError,
        BucketNotFound,
        BufferFull,
        CommitError,
        CommitUnknown,
        ConditionalPutUnsupported,
        ConfigError,
        DeliveryFailed,
        Fenced,
        GroupActive,
        GroupDamaged,
        GroupError,
        GroupNotFound,
        LogDamaged,
        LogIncomplete,
        MemberFenced,
        MessageError,
        NotCommitted,
        OffsetOutOfRange,
        PipelineError,
        PipelineFenced,
        ProducerFenced,
        SchemaError,
        StoreError,
        StoreUnavailable,
        TopicChanged,
        TopicDeleted,
        TopicError,
        TopicExists,
        TopicNotFound,
        TopicRewritten,
        UnsupportedTable,
        UsageError,
    )
    from brokerless.groups.admin import Group
    from brokerless.lag import Lag
    from brokerless.log.log import DeltaLog
    from brokerless.offsets import Ack, Offset
    from brokerless.producer.producer import Producer
    from brokerless.query.scan import Scan, scan
    from brokerless.schema import Column, Schema
    from brokerless.settings import Settings
    from brokerless.spark.pipeline import Pipeline
    from brokerless.store import Store, open_store
    from brokerless.topics import Topic, create_topic, delete_topic, describe_topic, list_topics

__all__ = [
    "AccessDenied",
    "Ack",
    "Batch",
    "BrokerlessError",
    "BucketNotFound",
    "BufferFull",
    "Client",
    "Column",
    "CommitError",
    "CommitUnknown",
    "ConditionalPutUnsupported",
    "ConfigError",
    "Consumer",
    "DeliveryFailed",
    "DeltaLog",
    "Fenced",
    "Group",
    "GroupActive",
    "GroupDamaged",
    "GroupError",
    "GroupNotFound",
    "Lag",
    "LogDamaged",
    "LogIncomplete",
    "MemberFenced",
    "Message",
    "MessageError",
    "NotCommitted",
    "Offset",
    "OffsetOutOfRange",
    "Pipeline",
    "PipelineError",
    "PipelineFenced",
    "Producer",
    "ProducerFenced",
    "Scan",
    "Schema",
    "SchemaError",
    "Settings",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "Topic",
    "TopicChanged",
    "TopicDeleted",
    "TopicError",
    "TopicExists",
    "TopicNotFound",
    "TopicRewritten",
    "UnsupportedTable",
    "UsageError",
    "__version__",
    "create_bucket",
    "create_topic",
    "delete_topic",
    "describe_topic",
    "list_topics",
    "open_store",
    "scan",
]

_HOME = {
    "Ack": "offsets",
    "Batch": "consumer",
    "Client": "client",
    "Column": "schema",
    "Consumer": "consumer",
    "DeltaLog": "log.log",
    "Group": "groups.admin",
    "Lag": "lag",
    "Message": "consumer",
    "Offset": "offsets",
    "Pipeline": "spark.pipeline",
    "Producer": "producer.producer",
    "Scan": "query.scan",
    "Schema": "schema",
    "Settings": "settings",
    "Store": "store",
    "Topic": "topics",
    "create_bucket": "bucket",
    "create_topic": "topics",
    "delete_topic": "topics",
    "describe_topic": "topics",
    "list_topics": "topics",
    "open_store": "store",
    "scan": "query.scan",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'brokerless' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"brokerless.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value
