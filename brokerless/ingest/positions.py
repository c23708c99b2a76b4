"""Places in sources that are read in order, kept in the log, so that what a source delivers again is written once.

A Kinesis shard, a Kafka partition, a message group of an SQS FIFO queue: each delivers its messages in order, and from
some place on once more when anything went wrong, often cut into other batches. So the place of the last message that a
partition took stands in the commit that took it, and what is not beyond that place is skipped. Before a whole batch is
skipped, the log is asked: the topic may have been created anew since, and then it has none of it.

A place has up to 189 bits (Kinesis needs 186, SQS 128), a Delta txn holds 63. So it is three txns, ``<source>#2`` (the
highest bits) to ``<source>#0``, which move together by compare-and-set: a commit names the place from which it moves,
and two functions that were given the same batch cannot both commit it.

What must hold, or messages are lost without an error:

* One batch of a source at a time, in order. A Kinesis event source mapping with a parallelization factor above 1 breaks
  this: of two batches of a shard, the one that commits first would hide the other.
* Places only grow. Those of a Kafka topic that is deleted and created again begin at 0: give it another name.

Each source costs its three txns in every checkpoint for as long as the topic lives: thousands of message groups are
fine, one for each customer of millions is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brokerless.columns.records import to_table
from brokerless.errors import ConfigError, NotCommitted
from brokerless.log.commit import commit_table
from brokerless.log.log import TxnAdvanced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brokerless.clock import Clock
    from brokerless.log.log import DeltaLog
    from brokerless.schema import Schema

MAX_POSITION: Final = 2**189 - 1

_BITS: Final = 63
_PARTS: Final = 3
_MASK: Final = 2**_BITS - 1
# A rival with the same source is another copy of the same delivery: it wins once and is gone.
_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class PositionedRow:
    """A message and its place.

    Attributes:
        source: what is read in order, such as ``kinesis/<stream>/<shard>``. It has a '/', which the id of a producer
            cannot have: no producer can move it.
        position: in that source, 0 to ``MAX_POSITION``.
        values: the topic's columns.
    """

    source: str
    position: int
    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        if "/" not in self.source:
            raise ConfigError(
                f"The source {self.source!r} has no '/', so a producer's id could be the same. Add its kind in front."
            )
        if not 0 <= self.position <= MAX_POSITION:
            raise ConfigError(f"The position {self.position} of {self.source!r} is not between 0 and 2**189 - 1.")


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the rows: all of them are in the log now.

    Attributes:
        rows: how many this call wrote.
        skipped: how many were there already.
        conflicts: conditional PUTs that were sent in vain.
    """

    rows: int
    skipped: int
    conflicts: int


def txns_of(source: str, position: int | None) -> dict[str, int]:
    """The txns that say that a source was read up to a position; None is nowhere yet (-1, as ``expect`` has it)."""
    return {
        f"{source}#{part}": -1 if position is None else position >> (_BITS * part) & _MASK
        for part in reversed(range(_PARTS))
    }


def position_of(log: DeltaLog, source: str) -> int | None:
    """How far a source was read, as far as the log was read; None if nothing of it was.

    Raises:
        TopicNotFound, TopicDeleted: there is no table.
    """
    parts = [log.txn(f"{source}#{part}") for part in range(_PARTS)]
    if any(part is None for part in parts):
        return None
    return sum((part or 0) << (_BITS * number) for number, part in enumerate(parts))


def write_once(
    log: DeltaLog, rows: Sequence[PositionedRow], *, schema: Schema, topic: str, timeout_s: float, clock: Clock
) -> Written:
    """Commits the rows that the log does not have yet, all in one commit, with the positions of their sources.

    Rows of one source are written in the order of their positions. Two rows at one position are one message.

    Args:
        log: of the partition that takes these sources; always the same one for a source.
        rows: of any number of sources.
        schema: of the topic.
        topic: for errors.
        timeout_s: how long each try goes on.
        clock: time and randomness.

    Raises:
        SchemaError, MessageError: a row does not fit; nothing was written.
        TopicChanged: this is no longer the topic that the log was opened on; nothing was written or skipped.
        NotCommitted, StoreError: nothing was written.
        CommitUnknown: nobody can say yet; the same call later finds out.
    """
    ordered = sorted(rows, key=lambda row: (row.source, row.position))
    sources = sorted({row.source for row in rows})
    produced_at_us = clock.time_us()
    conflicts = 0
    for attempt in range(_TRIES):
        known = {source: position_of(log, source) for source in sources}
        fresh = _beyond(ordered, known)
        if not fresh:
            # Nothing of it goes into the log, so only a look can tell whether these positions are those of this topic.
            log.confirm()
            return Written(0, len(rows), conflicts)
        txns: dict[str, int] = {}
        expect: dict[str, int] = {}
        # Only sources that move: a commit must not name what it does not change.
        for source, position in {row.source: row.position for row in fresh}.items():
            txns |= txns_of(source, position)
            expect |= txns_of(source, known[source])
        table = to_table([row.values for row in fresh], schema, topic=topic, produced_at_us=produced_at_us)
        try:
            commit = commit_table(log, table, txns=txns, expect=expect, timeout_s=timeout_s, clock=clock)
        except TxnAdvanced:
            conflicts += 1  # the log has read who came first, so the next look sees it
            clock.backoff(attempt)
            continue
        return Written(len(fresh), len(rows) - len(fresh), conflicts + commit.attempts - 1)
    raise NotCommitted(
        f"{log.uri}: others moved the positions of {', '.join(sources[:3])} {_TRIES} times meanwhile; nothing was "
        "written. Let one function read a source."
    )


def _beyond(ordered: Sequence[PositionedRow], known: Mapping[str, int | None]) -> list[PositionedRow]:
    reached = {source: -1 if position is None else position for source, position in known.items()}
    fresh: list[PositionedRow] = []
    for row in ordered:
        # guard: what is not beyond the known position is skipped
        if row.position > reached[row.source]:
            reached[row.source] = row.position
            fresh.append(row)
    return fresh
