"""How far a group or a pipeline is behind its topics: messages, and the age of the oldest one that it has not read.

Entries say how many messages their table ever had (``Entry.total``), so two entries tell how many are between them.
Where one does not say, the rows of the entries between are added up. Reading changes nothing and disturbs nobody.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import (
    AccessDenied,
    BrokerlessError,
    GroupNotFound,
    LogIncomplete,
    StoreUnavailable,
    TopicDeleted,
    TopicNotFound,
)
from brokerless.groups.objects import GroupObjects
from brokerless.groups.state import Committed
from brokerless.log.checkpoint import PAGE, listed
from brokerless.log.lifecycle import epoch_of
from brokerless.log.log import DeltaLog
from brokerless.metrics import GROUP_LAG_MESSAGES, GROUP_LAG_SECONDS, LAG_MESSAGES, LAG_SECONDS
from brokerless.offsets import Offset
from brokerless.schema import DEAD_LETTERS_SUFFIX, is_table, partition_table, split_table
from brokerless.spark.progress import owner_id, progress_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from brokerless.groups.assignment import Partition
    from brokerless.log.entries import Entry
    from brokerless.metrics import Metric
    from brokerless.store import Store

_THREADS: Final = 32  # each waits for one request at a time


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a reader of a partition is behind.

    Attributes:
        position: the next offset to read; None if nothing was committed yet.
        end: the offset that the next message will have at the earliest; None if the topic is gone.
        messages: how many are between the two; None if that is not known, as without a position.
        seconds: how long the first of them has been in the log, by its writer's clock; 0 if there is none.
    """

    topic: str
    partition: int
    position: Offset | None
    end: Offset | None
    messages: int | None
    seconds: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dictionary for JSON."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "position": self.position and str(self.position),
            "end": self.end and str(self.end),
            "messages": self.messages,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group or a pipeline is behind."""

    name: str
    kind: Literal["group", "pipeline"]
    partitions: tuple[PartitionLag, ...]

    @property
    def messages(self) -> int:
        """The messages of all partitions where they are known."""
        return sum(one.messages or 0 for one in self.partitions)

    @property
    def seconds(self) -> float:
        """The seconds of the partition that is most behind."""
        return max((one.seconds or 0.0 for one in self.partitions), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dictionary for JSON."""
        partitions = [one.to_dict() for one in self.partitions]
        total = {"messages": self.messages, "seconds": self.seconds}
        return {"name": self.name, "kind": self.kind, **total, "partitions": partitions}


def lag_of(store: Store, name: str, *, clock: Clock = SYSTEM) -> Lag:
    """Return how far a group or a pipeline is behind, per partition.

    For a group that keeps up, it takes a LIST and a GET a partition, many at once, and a GET for the group and each
    member. A pipeline is looked for in the logs of all topics, which are read for that.

    Raises:
        GroupNotFound: there is neither a group nor a pipeline of this name.
        GroupDamaged, StoreError: what it has read cannot be found out.
    """
    objects = GroupObjects(store, name, clock)
    group = objects.read_group()
    if group is not None:
        return Lag(name, "group", measure(store, objects.read_committed(group), clock=clock))
    found = pipeline_positions(store, name, clock=clock)
    if found is None:
        raise GroupNotFound(
            f"There is no group and no pipeline {name!r} in {store.uri}. 'brokerless groups list' shows the groups; a "
            "pipeline has a lag from its first batch on."
        )
    return Lag(name, "pipeline", measure(store, found, clock=clock))


def samples(found: Iterable[Lag]) -> Iterator[tuple[Metric, dict[str, str], float]]:
    """Yield lags as metrics of the catalogue, with labels and value; what is not known is left out."""
    metrics = {
        "group": (GROUP_LAG_MESSAGES, GROUP_LAG_SECONDS),
        "pipeline": (LAG_MESSAGES, LAG_SECONDS),
    }
    for lag in found:
        for one in lag.partitions:
            labels = {lag.kind: lag.name, "topic": one.topic, "partition": str(one.partition)}
            for metric, value in zip(metrics[lag.kind], (one.messages, one.seconds), strict=True):
                if value is not None:
                    yield metric, labels, value


def pipeline_positions(store: Store, pipeline: str, *, clock: Clock) -> dict[Partition, Committed | None] | None:
    """Return where a pipeline goes on in each of its inputs, or None if no topic is an output of it.

    The pipeline goes on at what its outputs record, and with several of them at the least.
    """
    tables = [DeltaLog(store, folder, clock=clock) for folder in store.folders() if is_table(folder)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="brokerless-lag") as pool:
        logs = [log for log, is_there in zip(tables, pool.map(_is_there, tables), strict=True) if is_there]
    owned = [log for log in logs if log.txn(epoch_of(owner_id(pipeline))) is not None]
    # A dead letter may be ahead of its batch's output (``spark.progress``): then the output decides.
    outputs = [log for log in owned if not split_table(log.table)[0].endswith(DEAD_LETTERS_SUFFIX)] or owned
    if not outputs:
        return None
    found: dict[Partition, Committed | None] = {}
    for source in logs:
        known = [progress_in(log, pipeline, source.table) for log in outputs]
        versions = [one.get(source.table_id, one.get(None)) for one in known if one]
        if versions:
            least = min(-1 if version is None else version for version in versions)
            first = source.state.metadata.first_version
            found[split_table(source.table)] = Committed(Offset(max(least + 1, first)), 0, source.table_id)
    return found


def _is_there(log: DeltaLog) -> bool:
    try:
        log.open()
    except (StoreUnavailable, AccessDenied):
        raise
    except BrokerlessError:
        return False  # no table, a deleted one, or one that nobody can read
    return True


def measure(
    store: Store, positions: Mapping[Partition, Committed | None], *, clock: Clock = SYSTEM
) -> tuple[PartitionLag, ...]:
    """Return the lag of a reader with these positions, in the order of the partitions.

    Args:
        store: where the topics are.
        positions: by partition, what the reader has committed; None if that is nothing.
        clock: time.

    Raises:
        StoreError: the store failed.
    """
    if not positions:
        return ()
    with ThreadPoolExecutor(min(_THREADS, len(positions)), thread_name_prefix="brokerless-lag") as pool:
        return tuple(pool.map(lambda item: _measure(store, item[0], item[1], clock), sorted(positions.items())))


def _measure(store: Store, partition: Partition, position: Committed | None, clock: Clock) -> PartitionLag:
    log = DeltaLog(store, partition_table(*partition), clock=clock)
    offset = None if position is None else position.offset
    try:
        found = _newest(log, 0 if offset is None else offset.version)
        if found is None or (position is not None and found[1].table_id not in (None, position.table_id)):
            # The topic was created again since: nothing of it was read.
            log.open()
            offset = Offset(log.earliest())
            found = _newest(log, offset.version)
    except (TopicNotFound, TopicDeleted):
        found = None
    if found is None:
        return PartitionLag(*partition, offset, None, None, None)
    retained, newest = found
    if newest.metadata is not None and newest.metadata.deleted:
        return PartitionLag(*partition, offset, None, None, None)
    end = Offset(newest.version + 1)
    if offset is None:
        return PartitionLag(*partition, None, end, None, None)
    begin = offset if retained <= offset.version else Offset(retained)  # what clean-up removed cannot be read any more
    messages, oldest_ms = _between(log, begin, newest)
    waited_s = 0.0 if oldest_ms is None else max(0.0, clock.time_us() / 1e6 - oldest_ms / 1000)
    return PartitionLag(*partition, offset, end, messages, round(waited_s, 3))


def _newest(log: DeltaLog, version: int) -> tuple[int, Entry] | None:
    """Return the first entry at ``version`` or the one before it that is there, and the newest entry; None if none is.

    One LIST and one GET, a few more if the log goes on for more than a thousand entries.
    """
    after = log.entry_path(version - 2) if version > 1 else None
    entries = listed(log.store, log.table, after=after, most=PAGE).entries
    if not entries:
        return None
    last = entries[-1]
    if len(entries) > PAGE // 2:  # checkpoints are in the page, too
        last = _gallop(log, last)
    newest = log.read(last)
    if newest is None:
        raise LogIncomplete(f"Entry {last} of {log.uri} was listed and is not there. Try again.", version=last)
    return entries[0], newest


def _gallop(log: DeltaLog, low: int) -> int:
    """Return the last entry at or behind ``low``, by steps that double and then halve."""
    step = 1
    while log.store.exists(log.entry_path(low + step)):
        low, step = low + step, step * 2
    while step > 1:
        step //= 2
        if log.store.exists(log.entry_path(low + step)):
            low += step
    return low


def _between(log: DeltaLog, begin: Offset, newest: Entry) -> tuple[int | None, int | None]:
    """Return how many messages are from an offset to the end of an entry, and when the first was committed (ms)."""
    if newest.version < begin.version:
        return 0, None
    messages: int | None = 0
    oldest_ms: int | None = None
    entries = [newest] if begin.version == newest.version else log.read_from(begin.version)
    for entry in entries:
        skipped = begin.index if entry.version == begin.version else 0
        if messages is not None:
            messages = None if entry.rows is None else messages + max(0, entry.rows - skipped)
        if oldest_ms is None and (messages is None or messages):
            oldest_ms = entry.timestamp_ms
        if entry.version >= newest.version or (messages is None and oldest_ms is not None):
            break
        if oldest_ms is not None and messages is not None and None not in (entry.total, newest.total):
            messages += (newest.total or 0) - (entry.total or 0)
            break
    else:  # the next entry is missing, and later ones are there: nobody gets past it
        return None, oldest_ms or newest.timestamp_ms
    return messages, oldest_ms


def messages_between(log: DeltaLog, begin: Offset, end: Offset) -> int | None:
    """Return how many messages are from one offset to another; negative if that is before it, None if not known.

    Raises:
        StoreError: an entry cannot be read.
    """
    if end < begin:
        found = messages_between(log, end, begin)
        return None if found is None else -found
    # Up to the last whole entry, and the beginning of the one that the end is in.
    last = log.read(end.version - 1) if end.version > begin.version else None
    rows = 0 if last is None else _between(log, begin, last)[0]
    return None if rows is None else rows + end.index - (begin.index if end.version == begin.version else 0)
