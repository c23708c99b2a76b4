"""Topics as a whole: create, list, describe, delete."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import (
    AccessDenied,
    BrokerlessError,
    BucketNotFound,
    ConfigError,
    LogDamaged,
    LogIncomplete,
    StoreUnavailable,
    TopicChanged,
    TopicDeleted,
    TopicExists,
    TopicNotFound,
)
from brokerless.forks import refuse_copy
from brokerless.log.entries import LIMIT_KEYS, PARTITIONS_KEY
from brokerless.log.log import DeltaLog
from brokerless.log.probe import check_conditional_put
from brokerless.schema import (
    DEAD_LETTER_COLUMNS,
    MAX_PARTITIONS,
    Schema,
    check_name,
    dead_letters,
    is_table,
    partition_table,
    split_table,
)
from brokerless.settings import Settings
from brokerless.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from brokerless.log.checkpoint import TableState
    from brokerless.log.entries import Entry
    from brokerless.store import Store


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now.

    Attributes:
        heads: the last version of each partition's log.
        logs: the partitions' logs, as they were opened for this. Whoever goes on with them takes copies.
        opened_in: the process that opened them.
    """

    name: str
    schema: Schema
    partitions: int
    uri: str
    heads: tuple[int, ...]
    logs: tuple[DeltaLog, ...] = field(default=(), compare=False, repr=False)
    opened_in: int = field(default_factory=os.getpid, compare=False, repr=False)

    @property
    def table_ids(self) -> tuple[str, ...]:
        """The id of each partition's table: another one is a topic that was created again."""
        return tuple(log.table_id for log in self.logs)

    @property
    def limits(self) -> dict[str, str]:
        """What the topic need not keep (``brokerless.alter.limits_of``), by property of its tables."""
        properties = self.logs[0].state.metadata.configuration if self.logs else {}
        return {key: properties[key] for key in LIMIT_KEYS if key in properties}


@dataclass(frozen=True, slots=True)
class Remains:
    """Partitions of a topic that has no partition 0, which is created last and deleted last.

    Attributes:
        schema, partitions: what the topic was to have.
        tables: the partitions that are there.
        used: those of them that hold commits. Then partition 0 was there, too, and its log was lost.
    """

    name: str
    schema: Schema
    partitions: int
    uri: str
    tables: tuple[int, ...]
    used: tuple[int, ...]

    @property
    def problem(self) -> str:
        """What is wrong, and what to do about it."""
        if self.used:
            return (
                f"Topic {self.name!r} has no log of partition 0, though partition {self.used[0]} holds commits: it is "
                f"lost, or not yet restored. Restore it. Or give up the rest: brokerless topics delete {self.name}."
            )
        return (
            f"Topic {self.name!r} is half created: {len(self.tables)} of {self.partitions} partitions are there, the "
            f'first is not. Finish it: brokerless topics create {self.name} --schema "{self.schema}" --partitions '
            f"{self.partitions}. Or remove it: brokerless topics delete {self.name}."
        )


@dataclass(frozen=True, slots=True)
class BrokenTopic:
    """A topic or another table below the root that cannot be described, and why."""

    name: str
    uri: str
    problem: str


class TopicIncomplete(TopicNotFound):
    """Some partitions of the topic are there, others are not.

    Attributes:
        left: what is there, if partition 0 is not.
    """

    def __init__(self, message: str, left: Remains | None = None) -> None:
        super().__init__(message)
        self.left = left


def create_topic(
    store: Store,
    topic: str,
    schema: Schema,
    *,
    partitions: int = 1,
    exist_ok: bool = False,
    limits: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM,
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
        raise ConfigError(f"{partitions} partitions are not possible; use 1 to {MAX_PARTITIONS}.")
    properties = {key: text for key, text in (limits or {}).items() if text}
    check_conditional_put(store, within=topic, clock=clock)
    there = _existing(store, topic, clock)
    if there is not None:
        return _accept(there, schema, partitions, exist_ok)
    for number in range(partitions - 1, -1, -1):
        log = DeltaLog(store, partition_table(topic, number), clock=clock)
        try:
            log.create(schema_string=schema.to_delta(), configuration={PARTITIONS_KEY: str(partitions), **properties})
        except TopicExists:
            if (there := _existing(store, topic, clock)) is not None:  # another call was faster
                return _accept(there, schema, partitions, exist_ok)
            left = remains(store, topic, clock=clock)
            if left is not None and (left.schema, left.partitions) != (schema, partitions):
                raise TopicExists(left.problem) from None
    return describe_topic(store, topic, clock=clock)


def _existing(store: Store, topic: str, clock: Clock) -> Topic | None:
    """The topic; None if a new one may begin.

    Raises:
        TopicExists: partitions of one are gone: the new topic would begin with what is left of the old one, or with an
            empty log in the place of a lost one.
    """
    try:
        return describe_topic(store, topic, clock=clock)
    except TopicIncomplete as error:
        if error.left is None or error.left.used:
            raise TopicExists(str(error)) from None
        return None
    except TopicNotFound:
        return None


def _accept(there: Topic, schema: Schema, partitions: int, exist_ok: bool) -> Topic:
    if there.schema != schema:
        raise TopicExists(
            f"Topic {there.name!r} exists with the schema '{there.schema}', not '{schema}'. Choose another name."
        )
    if there.partitions != partitions:
        raise TopicExists(
            f"Topic {there.name!r} exists with {there.partitions} partitions, not {partitions}. Choose another name."
        )
    if not exist_ok:
        raise TopicExists(f"Topic {there.name!r} exists already.")
    return there


def create_dead_letters(store: Store, output: str, inputs: list[Schema], *, clock: Clock = SYSTEM) -> Topic:
    """Creates (or accepts) the topic for what a pipeline with this output cannot process.

    Its columns are those of the inputs together, then ``_reason``, ``_topic``, ``_partition`` and ``_offset``.
    """
    columns = {column.name: column for schema in inputs for column in schema.columns}
    schema = Schema.of([*columns.values(), *DEAD_LETTER_COLUMNS], reserved=True)
    return create_topic(store, dead_letters(output), schema, exist_ok=True, clock=clock)


def describe_topic(store: Store, topic: str, *, clock: Clock = SYSTEM) -> Topic:
    """The topic as it is now.

    Raises:
        TopicNotFound: there is none, or only the tombstone of one.
        TopicIncomplete: a ``TopicNotFound``, of which some partitions are there.
    """
    return _describe(store, check_name(topic), clock, folders=None)


def open_topic(
    store: Store, topic: str | Topic, *, clock: Clock = SYSTEM, entries: dict[int, list[Entry]] | None = None
) -> Topic:
    """Return the topic as it is now, with logs that nobody else has.

    One that is given by name is read, as by ``describe_topic``. One that was opened before is brought up to date: two
    GETs a partition show that its tables are still the same, and what has come since.

    Args:
        store: where the topic is.
        topic: its name, or the topic.
        clock: as everywhere.
        entries: takes up, by partition, the entries that were read (``DeltaLog.open``).

    Raises:
        TopicNotFound, TopicIncomplete: as ``describe_topic``.
        TopicChanged, TopicDeleted: the opened one is not there any more, or has other columns.
        UsageError: this process was forked from the one that opened it.
    """
    if isinstance(topic, str) or not topic.logs:
        name = topic if isinstance(topic, str) else topic.name
        return _describe(store, check_name(name), clock, folders=None, entries=entries)
    refuse_copy(topic.opened_in, "topic")
    logs = tuple(log.copy() for log in topic.logs)
    try:
        heads = tuple(log.confirm().version for log in logs)
    except (LogIncomplete, LogDamaged):
        # A reader may begin behind the damage: only the whole log says where that is.
        found = _describe(store, topic.name, clock, folders=None, entries=entries)
        if found.table_ids != topic.table_ids:
            raise TopicChanged(
                f"Topic {topic.name!r} was deleted and created again, or restored, since it was opened. Open it again."
            ) from None
        return found
    return replace(topic, heads=heads, logs=logs)


def store_of(topic: str | Topic, settings: Settings | None, store: Store | None) -> Store:
    """Return the store of an opened topic, else the one that is given, that of the settings or of the environment.

    Raises:
        ConfigError: the topic was opened in another store than the one that is given; or as ``Settings.load``.
    """
    given = store or (open_store(settings) if settings is not None else None)
    if isinstance(topic, str) or not topic.logs:
        return given or open_store(Settings.load())
    own = topic.logs[0].store
    if given is not None and given is not own:
        raise ConfigError(f"Topic {topic.name!r} was opened in {own.uri}, not in {given.uri}; give its name instead.")
    return own


def _describe(
    store: Store,
    topic: str,
    clock: Clock,
    folders: Sequence[str] | None,
    entries: dict[int, list[Entry]] | None = None,
) -> Topic:
    def opened(log: DeltaLog, number: int) -> TableState:
        return log.open(entries=None if entries is None else entries.setdefault(number, []))

    log = DeltaLog(store, topic, clock=clock)
    try:
        metadata = opened(log, 0).metadata
    except (TopicNotFound, TopicDeleted):
        if left := remains(store, topic, clock=clock, folders=folders):
            raise TopicIncomplete(left.problem, left) from None
        raise TopicNotFound(
            f"There is no topic {topic!r} in {store.uri}. Create it with "
            f"'brokerless topics create {topic} --schema \"...\"'; 'brokerless topics list' shows what is there."
        ) from None
    partitions = _partitions(log)
    logs, heads = [log], [log.state.version]
    for number in range(1, partitions):
        logs.append(DeltaLog(store, partition_table(topic, number), clock=clock))
        try:
            heads.append(opened(logs[-1], number).version)
        except TopicDeleted:
            raise TopicIncomplete(
                f"Topic {topic!r} is half deleted. Finish it: brokerless topics delete {topic}."
            ) from None
        except TopicNotFound:
            raise TopicIncomplete(
                f"Topic {topic!r} has {partitions} partitions, but partition {number} has no log: it is lost, or not "
                f"yet restored. Restore it. Or give up the rest: brokerless topics delete {topic}."
            ) from None
    if partitions > 1:
        # Partition 0 is deleted and created last: while it is the same, so are the others that we have read since.
        # Who took some of them from the old topic and some from the new one would write into both.
        try:
            log.refresh()
        except TopicChanged:
            return _describe(store, topic, clock, folders, entries)
    return Topic(topic, Schema.from_delta(metadata.schema_string), partitions, log.uri, tuple(heads), tuple(logs))


def list_topics(store: Store, *, clock: Clock = SYSTEM) -> list[Topic]:
    """All topics below the root, by name, but for those that cannot be described; ``survey_topics`` has them, too."""
    return [topic for topic in survey_topics(store, clock=clock) if isinstance(topic, Topic)]


def survey_topics(store: Store, *, clock: Clock = SYSTEM) -> list[Topic | BrokenTopic]:
    """All topics below the root, by name. One that is damaged, or a foreign table, does not hide the others.

    Raises:
        StoreUnavailable, BucketNotFound: the store did not answer.
        AccessDenied: the topics could not be listed.
    """
    folders = store.folders()
    found: list[Topic | BrokenTopic] = []
    for name in sorted({split_table(folder)[0] for folder in folders if is_table(folder)}):
        try:
            topic = _describe(store, name, clock, folders)
            damage = next((log.state.damage for log in topic.logs if log.state.damage is not None), None)
            found.append(topic if damage is None else BrokenTopic(name, topic.uri, str(damage)))
        except (StoreUnavailable, BucketNotFound):
            raise
        except TopicIncomplete as error:
            found.append(BrokenTopic(name, f"{store.uri}/{name}", str(error)))
        except TopicNotFound:
            continue  # a folder that is no topic, or a deleted one
        except BrokerlessError as error:
            found.append(BrokenTopic(name, f"{store.uri}/{name}", str(error)))
    return found


def delete_topic(store: Store, topic: str, *, clock: Clock = SYSTEM) -> None:
    """Ends the topic's logs with tombstones. Writers and readers that hold it stop by name.

    Objects are removed later by maintenance. Partition 0 goes last, because it knows how many there are: after a crash
    half-way the same call finishes it. It finishes what an interrupted creation left, too.

    Raises:
        TopicNotFound: there is none.
    """
    for log in reversed(live_logs(store, topic, clock=clock)):
        try:
            log.delete()
        except (TopicDeleted, TopicNotFound):
            continue  # another call was faster; the topic may even be another one by now


def live_logs(store: Store, topic: str, *, clock: Clock = SYSTEM) -> list[DeltaLog]:
    """The logs of the topic's partitions that are not deleted, also of one that is half deleted or half created.

    Raises:
        TopicNotFound: there is none.
    """
    logs = _live(store, [check_name(topic)], clock)
    tables = {partition_table(topic, number): None for log in logs for number in range(1, _partitions(log))}
    # Those above are left of an interrupted creation, and would be the beginning of a later topic.
    tables |= dict.fromkeys(_partition_folders(store, topic, folders=None))
    others = sorted(tables, key=split_table)
    logs += [log for log in _live(store, others, clock) if PARTITIONS_KEY in log.state.metadata.configuration]
    if not logs:
        describe_topic(store, topic, clock=clock)  # says how to look for others
        raise TopicNotFound(f"Topic {topic!r} has just been created; try again.")
    return logs


def remains(store: Store, topic: str, *, clock: Clock = SYSTEM, folders: Sequence[str] | None = None) -> Remains | None:
    """What there is of a topic without partition 0; None if that is nothing.

    Args:
        store: where to look.
        topic: its name.
        clock: as everywhere.
        folders: of the store, if they are known.
    """
    logs = [
        log
        for log in _live(store, _partition_folders(store, topic, folders), clock)
        if PARTITIONS_KEY in log.state.metadata.configuration
    ]
    if not logs:
        return None
    used = [log for log in logs if log.state.version > log.state.metadata.first_version]
    return Remains(
        topic,
        Schema.from_delta(logs[0].state.metadata.schema_string),
        _partitions(logs[0]),
        f"{store.uri}/{topic}",
        tuple(split_table(log.table)[1] for log in logs),
        tuple(split_table(log.table)[1] for log in used),
    )


def _partition_folders(store: Store, topic: str, folders: Sequence[str] | None) -> list[str]:
    """The folders that may hold the topic's partitions from the second one on, in order."""
    try:
        names = store.folders() if folders is None else folders
    except AccessDenied:
        return []  # who may read one topic only need not be able to list them all
    return sorted((name for name in names if split_table(name)[0] == topic != name), key=split_table)


def _live(store: Store, tables: Iterable[str], clock: Clock) -> list[DeltaLog]:
    logs: list[DeltaLog] = []
    for table in tables:
        log = DeltaLog(store, table, clock=clock)
        try:
            log.state  # noqa: B018  # reads it
        except (TopicNotFound, TopicDeleted):
            continue
        logs.append(log)
    return logs


def _partitions(log: DeltaLog) -> int:
    return int(log.state.metadata.configuration.get(PARTITIONS_KEY, "1"))
