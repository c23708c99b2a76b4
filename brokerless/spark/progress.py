"""How far a pipeline is: positions in its inputs, kept as txns in the logs of its outputs.

A position is a vector: for each input table the last version that was read (whole commits only). The txn of pipeline
``p`` for partition 0 of topic ``t`` has the application id ``p:t:0``.

Two outputs, two commits. A batch's dead letters are committed first, then its output, each with the batch's end as
txns. So the output's position is where a restart begins, the dead letters' is never behind it by rows that matter, and
after a crash between the two it is ahead: ``cap`` then ends the next batch at or before that position, and the dead
letters of such a batch are skipped as a whole. No row needs to be told from another.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from brokerless.topics import split_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokerless.log import DeltaLog

Position = dict[str, int]
"""Input table -> last version read."""


def app_id(pipeline: str, table: str) -> str:
    """The txn's application id for one input table."""
    topic, partition = split_table(table)
    return f"{pipeline}:{topic}:{partition}"


def position_in(log: DeltaLog, pipeline: str, tables: Iterable[str]) -> Position:
    """The position that an output's log records; tables that it does not know are left out."""
    found = {table: log.txn(app_id(pipeline, table)) for table in tables}
    return {table: version for table, version in found.items() if version is not None}


def covers(done: Position, start: Position, end: Position) -> bool:
    """Whether an output at ``done`` holds everything between ``start`` and ``end`` already."""
    return all(done.get(table, -1) >= version for table, version in end.items() if version > start.get(table, -1))


def follows(done: Position, start: Position) -> bool:
    """Whether a batch that begins at ``start`` continues an output at ``done``: no gap, nothing twice."""
    return all(start.get(table) == version for table, version in done.items())


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """What the source hands to Spark as an offset, as JSON.

    Attributes:
        at: the position after the batch.
        since: the position with which this run began; the same in all offsets of a run.
        born: where inputs begin that were deleted and created again: what comes before is another topic's.
        rows: messages up to ``at``, counted from the beginning of this run.
        seen: messages that the source knew of when it cut the batch, counted likewise; the difference is the lag.
        asked: S3 requests of source and tasks by kind (``cost.RequestKind``), counted likewise.
    """

    at: Position
    since: Position
    born: Position
    rows: int
    seen: int
    asked: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """As Spark wants it."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, object] | str) -> SourceOffset:
        """From Spark's dictionary or JSON text."""
        if isinstance(values, str):
            values = json.loads(values)
        return cls(**values)  # type: ignore[arg-type]
