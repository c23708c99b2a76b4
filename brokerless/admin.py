"""Topics as a whole: create, list, describe, delete."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokerless.clock import SYSTEM, Clock
from brokerless.entries import PARTITIONS_KEY
from brokerless.errors import (
    ConditionalPutUnsupported,
    ConfigError,
    StoreError,
    TopicDeleted,
    TopicExists,
    TopicNotFound,
)
from brokerless.log import DeltaLog
from brokerless.topics import MAX_PARTITIONS, Column, Schema, check_name, dead_letters, partition_table, split_table

if TYPE_CHECKING:
    from brokerless.store import Store


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now.

    Attributes:
        heads: the last version of each partition's log.
    """

    name: str
    schema: Schema
    partitions: int
    uri: str
    heads: tuple[int, ...]


def create_topic(
    store: Store, topic: str, schema: Schema, *, partitions: int = 1, exist_ok: bool = False, clock: Clock = SYSTEM
) -> Topic:
    """Creates a topic, or with ``exist_ok`` accepts one that is the same already.

    Partition 0 is created last and marks the topic as complete: after a crash half-way the same call finishes it.

    Raises:
        TopicExists: it is there, with another schema or number of partitions, or ``exist_ok`` is False.
        ConfigError: a bad name or number of partitions.
        ConditionalPutUnsupported: the store would let commits overwrite each other.
    """
    check_name(topic)
    if not 1 <= partitions <= MAX_PARTITIONS:
        msg = f"{partitions} partitions are not possible; use 1 to {MAX_PARTITIONS}."
        raise ConfigError(msg)
    check_conditional_put(store, within=topic, clock=clock)
    _refuse_half_deleted(store, topic, clock)
    wanted = schema.to_delta()
    for number in range(partitions - 1, -1, -1):
        log = DeltaLog(store, partition_table(topic, number), clock=clock)
        fresh = False
        try:
            found = log.create(schema_string=wanted, configuration={PARTITIONS_KEY: str(partitions)})
            fresh = True
        except TopicExists:
            found = log.state.metadata
        have = int(found.configuration.get(PARTITIONS_KEY, "1"))
        there = Schema.from_delta(found.schema_string)
        if there != schema:
            msg = f"Topic {topic!r} exists with the schema '{there}', not '{schema}'. Choose another name."
            raise TopicExists(msg)
        if have != partitions:
            msg = f"Topic {topic!r} exists with {have} partitions, not {partitions}. Choose another name."
            raise TopicExists(msg)
        if number == 0 and not exist_ok and not fresh:
            msg = f"Topic {topic!r} exists already."
            raise TopicExists(msg)
    return describe_topic(store, topic, clock=clock)


def create_dead_letters(store: Store, output: str, inputs: list[Schema], *, clock: Clock = SYSTEM) -> Topic:
    """Creates (or accepts) the topic for what a pipeline with this output cannot process.

    Its columns are those of the inputs together, then ``_reason``, ``_topic``, ``_partition`` and ``_offset``.
    """
    columns = {column.name: column for schema in inputs for column in schema.columns}
    extra = [Column("_reason", "string"), Column("_topic", "string"), Column("_partition", "integer")]
    schema = Schema.of([*columns.values(), *extra, Column("_offset", "string")], reserved=True)
    return create_topic(store, dead_letters(output), schema, exist_ok=True, clock=clock)


def describe_topic(store: Store, topic: str, *, clock: Clock = SYSTEM) -> Topic:
    """The topic as it is now.

    Raises:
        TopicNotFound: there is none, or only the tombstone of one.
    """
    check_name(topic)
    heads: list[int] = []
    # Who only looks can do without an entry that cannot be read.
    log = DeltaLog(store, topic, clock=clock, skip_damaged=True)
    try:
        metadata = log.state.metadata
    except (TopicNotFound, TopicDeleted):
        msg = (
            f"There is no topic {topic!r} in {store.uri}. Create it with "
            f"'brokerless topics create {topic} --schema \"...\"'; 'brokerless topics list' shows what is there."
        )
        raise TopicNotFound(msg) from None
    partitions = _partitions(log)
    heads.append(log.state.version)
    try:
        for number in range(1, partitions):
            part = DeltaLog(store, partition_table(topic, number), clock=clock, skip_damaged=True)
            heads.append(part.state.version)
    except TopicDeleted:
        raise TopicNotFound(_half_deleted(topic)) from None
    if partitions > 1:
        # Partition 0 is deleted and created last: while it is the same, so are the others that we have read since.
        # Who took some of them from the old topic and some from the new one would write into both.
        try:
            log.refresh()
        except TopicDeleted:
            return describe_topic(store, topic, clock=clock)
    return Topic(topic, Schema.from_delta(metadata.schema_string), partitions, log.uri, tuple(heads))


def list_topics(store: Store, *, clock: Clock = SYSTEM) -> list[Topic]:
    """All topics below the root, by name."""
    names = [name for name in store.folders() if split_table(name) == (name, 0) and not name.startswith(("_", "."))]
    found: list[Topic] = []
    for name in names:
        try:
            found.append(describe_topic(store, name, clock=clock))
        except (TopicNotFound, ConfigError):
            continue  # a folder that is no topic, or a deleted one
    return found


def delete_topic(store: Store, topic: str, *, clock: Clock = SYSTEM) -> None:
    """Ends the topic's logs with tombstones. Writers and readers that hold it stop by name.

    Objects are removed later by maintenance. Partition 0 goes last, because it knows how many there are: after a crash
    half-way the same call finishes it.

    Raises:
        TopicNotFound: there is none.
    """
    partitions = _partitions(first_log(store, topic, clock=clock))
    for number in reversed(range(partitions)):
        try:
            DeltaLog(store, partition_table(topic, number), clock=clock).delete()
        except (TopicDeleted, TopicNotFound):
            continue  # an earlier call got this far


def first_log(store: Store, topic: str, *, clock: Clock = SYSTEM) -> DeltaLog:
    """The log of partition 0, which a half deleted topic has, too.

    Raises:
        TopicNotFound: there is none.
    """
    log = DeltaLog(store, check_name(topic), clock=clock)
    try:
        log.state  # noqa: B018  # reads it
    except (TopicNotFound, TopicDeleted):
        describe_topic(store, topic, clock=clock)  # says how to look for others
        raise
    return log


def _partitions(log: DeltaLog) -> int:
    return int(log.state.metadata.configuration.get(PARTITIONS_KEY, "1"))


def _half_deleted(topic: str) -> str:
    return f"Topic {topic!r} is half deleted. Finish it: brokerless topics delete {topic}."


def _refuse_half_deleted(store: Store, topic: str, clock: Clock) -> None:
    """A new topic must not begin with what is left of an old one."""
    try:
        partitions = _partitions(DeltaLog(store, topic, clock=clock))
    except (TopicNotFound, TopicDeleted):
        return
    for number in range(1, partitions):
        try:
            DeltaLog(store, partition_table(topic, number), clock=clock).refresh()
        except TopicDeleted:
            raise TopicExists(_half_deleted(topic)) from None


def check_conditional_put(store: Store, *, within: str = "_brokerless", clock: Clock = SYSTEM) -> None:
    """Asks the store to create one object twice, and insists that the second time it refuses.

    Args:
        store: which one.
        within: the folder for that object: whoever may write one topic only has to be able to ask.
        clock: the object's name.

    Raises:
        ConditionalPutUnsupported: it did not.
    """
    path = f"{within}/_probe-{clock.uuid()}"
    try:
        first = store.put_if_absent(path, b"probe")
        second = store.put_if_absent(path, b"probe")
    finally:
        with contextlib.suppress(StoreError):  # it must not hide what the PUTs said
            store.delete([path])
    if first == "created" and second == "created":
        msg = (
            f"The store at {store.uri} ignores 'If-None-Match: *': two writers could overwrite each other's commits. "
            "Use AWS S3, MinIO, SeaweedFS, Google Cloud Storage or Azure Blob Storage."
        )
        raise ConditionalPutUnsupported(msg)
