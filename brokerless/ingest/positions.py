"""Store positions of ordered sources in the topic's log, so that a redelivered message is written once.

A Kinesis shard, a Kafka partition or a message group of an SQS FIFO queue delivers in order, and delivers again from
some position after a failure. The commit that holds messages of a source also holds the position of the last one, and
messages up to that position are skipped. A position has up to 189 bits and a Delta txn 63, so it is three txns,
``<source>#2`` (highest bits) to ``<source>#0``, which change together by compare-and-set.

Two rules, or messages are lost without an error: one batch of a source is ingested at a time and in order (Kinesis: a
parallelization factor of 1), and positions only grow (a Kafka topic that is created again needs another name). Each
source adds three txns to every checkpoint: thousands of message groups are fine, one for each of millions is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brokerless.columns.records import to_table
from brokerless.errors import ConfigError, NotCommitted
from brokerless.log.commit import commit_table
from brokerless.log.log import TxnAdvanced
from brokerless.producer.split import selected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brokerless.clock import Clock
    from brokerless.columns.records import Messages
    from brokerless.log.log import DeltaLog
    from brokerless.schema import Schema

MAX_POSITION: Final = 2**189 - 1

_BITS: Final = 63
_PARTS: Final = 3
_MASK: Final = 2**_BITS - 1
# A rival with the same source is another delivery of the same batch: it commits once and ends.
_TRIES: Final = 10


@dataclass(frozen=True, slots=True, order=True)
class SourcePosition:
    """The position of a message in an ordered source.

    Attributes:
        source: such as ``kinesis/<stream>/<shard>``. It has a '/', which a producer's id cannot have, so no producer
            can change its position.
        position: 0 to ``MAX_POSITION``.
    """

    source: str
    position: int

    def __post_init__(self) -> None:
        if "/" not in self.source:
            raise ConfigError(
                f"A source must contain '/', got {self.source!r}: a producer could have its id. Add a prefix."
            )
        if not 0 <= self.position <= MAX_POSITION:
            raise ConfigError(f"A position of {self.source!r} must be 0 to 2**189 - 1, got {self.position}.")


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write: all rows are in the log now.

    Attributes:
        rows: number of rows that this call wrote.
        skipped: number of rows that were in the log before.
        conflicts: number of conditional PUTs that failed because another writer was faster.
    """

    rows: int
    skipped: int
    conflicts: int


def txns_of(source: str, position: int | None) -> dict[str, int]:
    """Return the txns that store a position; for None, the values before the first one (-1, as ``expect`` has it)."""
    return {
        f"{source}#{part}": -1 if position is None else position >> (_BITS * part) & _MASK
        for part in reversed(range(_PARTS))
    }


def position_of(log: DeltaLog, source: str) -> int | None:
    """Return the position of a source in the part of the log that was read; None if it has none.

    Raises:
        TopicNotFound, TopicDeleted: the table does not exist.
    """
    parts = [log.txn(f"{source}#{part}") for part in range(_PARTS)]
    if any(part is None for part in parts):
        return None
    return sum((part or 0) << (_BITS * number) for number, part in enumerate(parts))


def write_once(
    log: DeltaLog,
    messages: Messages,
    positions: Sequence[SourcePosition],
    *,
    schema: Schema,
    topic: str,
    timeout_s: float,
    clock: Clock,
) -> Written:
    """Commit the rows that are not in the log yet, in one commit, with the positions of their sources.

    Rows of one source are written in the order of their positions. Two rows with one position are one message.

    Args:
        log: the log of the sources' partition; always the same one for a source.
        messages: rows of any number of sources, as ``Producer.send`` takes them.
        positions: the position of each row.
        schema: the schema of the topic.
        topic: the name for errors.
        timeout_s: the limit of each attempt in seconds.
        clock: time and randomness.

    Raises:
        SchemaError, MessageError: a row does not fit the schema; nothing was written.
        TopicChanged: the topic was created again since the log was opened; nothing was written or skipped.
        NotCommitted, StoreError: nothing was written.
        CommitUnknown: the outcome is unknown; the same call later finds out.
    """
    sources = sorted({row.source for row in positions})
    table = to_table(messages, schema, topic=topic, produced_at_us=clock.time_us())
    conflicts = 0
    for attempt in range(_TRIES):
        known = {source: position_of(log, source) for source in sources}
        fresh = _beyond(positions, known)
        if not fresh:
            # Nothing is written, so only a read can prove that these positions belong to this topic.
            log.confirm()
            return Written(0, len(positions), conflicts)
        txns: dict[str, int] = {}
        expect: dict[str, int] = {}
        # Only sources whose position changes: a commit must not name what it does not change.
        for source, position in {positions[row].source: positions[row].position for row in fresh}.items():
            txns |= txns_of(source, position)
            expect |= txns_of(source, known[source])
        try:
            rows = selected(table, fresh)
            commit = commit_table(log, rows, txns=txns, expect=expect, timeout_s=timeout_s, clock=clock)
        except TxnAdvanced:
            conflicts += 1  # the log has read the other commit, so the next attempt sees its positions
            clock.backoff(attempt)
            continue
        return Written(len(fresh), len(positions) - len(fresh), conflicts + commit.attempts - 1)
    raise NotCommitted(
        f"{log.uri}: other writers changed the positions of {', '.join(sources[:3])} {_TRIES} times; nothing was "
        "written. Let only one function read a source."
    )


def _beyond(positions: Sequence[SourcePosition], known: Mapping[str, int | None]) -> list[int]:
    """Return the numbers of the rows that are not in the log, in the order of their positions."""
    reached = {source: -1 if position is None else position for source, position in known.items()}
    fresh: list[int] = []
    for number in sorted(range(len(positions)), key=positions.__getitem__):
        row = positions[number]
        # guard: what is not beyond the known position is skipped
        if row.position > reached[row.source]:
            reached[row.source] = row.position
            fresh.append(number)
    return fresh
