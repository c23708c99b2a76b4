"""How far a pipeline is: positions in its inputs, kept as txns in the logs of its outputs.

A position is a vector: for each input table the last version that was read (whole commits only). The txn of pipeline
``p`` for partition 0 of topic ``t`` has the application id ``p:t:0:<table id>``. With the id, because a table that was
removed and made again by hand counts its versions from 0 anew: an old position in it would skip other messages.
(Before they named the id, pipelines wrote ``p:t:0``. That counts for the table that is there, until the pipeline's next
start names it.)

Two outputs, two commits. A batch's dead letters are committed first, then its output, each with the batch's end as
txns. So the output's position is where a restart begins, the dead letters' is never behind it by rows that matter, and
after a crash between the two it is ahead: ``cap`` then ends the next batch at or before that position, and the dead
letters of such a batch are skipped as a whole. No row needs to be told from another.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from brokerless.errors import TopicChanged
from brokerless.schema import split_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerless.log.log import DeltaLog

Position = dict[str, int]
"""Input table -> last version read."""

TableIds = dict[str, str]
"""Input table -> the id of the table that was read."""


def owner_id(pipeline: str) -> str:
    """What a pipeline claims in its outputs; no producer's id has a slash, so none can fence it."""
    return f"pipeline/{pipeline}"


def app_id(pipeline: str, table: str, table_id: str | None) -> str:
    """The txn's application id for one input table; without an id as it was before they named one."""
    topic, partition = split_table(table)
    return f"{pipeline}:{topic}:{partition}" + ("" if table_id is None else f":{table_id}")


def progress_in(log: DeltaLog, pipeline: str, table: str) -> dict[str | None, int]:
    """What an output's log records for one input, by the table ids that it had; None is progress without an id."""
    plain = app_id(pipeline, table, None)
    ids: dict[str, str | None] = {plain: None}
    ids |= {app: app.removeprefix(f"{plain}:") for app in log.state.txns if app.startswith(f"{plain}:")}
    found = {table_id: log.txn(app) for app, table_id in ids.items()}
    return {table_id: version for table_id, version in found.items() if version is not None}


def position_in(log: DeltaLog, pipeline: str, ids: TableIds) -> Position:
    """The position that an output's log records for these very tables; those that it does not know are left out."""
    found: Position = {}
    for table, table_id in ids.items():
        version = log.txn(app_id(pipeline, table, table_id))
        if version is None and set(known := progress_in(log, pipeline, table)) == {None}:
            version = known[None]
        if version is not None:
            found[table] = version
    return found


def recorded_in(log: DeltaLog, pipeline: str, source: DeltaLog) -> int | None:
    """Where a pipeline goes on in an input as it is now, by its output's log; None if that knows nothing of it.

    A topic that was deleted and created again by this kit goes on at its new beginning.

    Raises:
        TopicChanged: what is recorded is of another table, or beyond the end of this one: it was removed, and made
            again or restored from an older copy.
    """
    known, state = progress_in(log, pipeline, source.table), source.state
    if not known:
        return None
    first, now = state.metadata.first_version, state.metadata.id
    named = {table_id: version for table_id, version in known.items() if table_id is not None}
    if now in named:
        version, what = named[now], "this very table"
    elif not named:
        version, what = max(known[None], first), "a table whose id was not noted"
    else:
        last = max(named, key=lambda table_id: named[table_id])
        if named[last] < first:
            return first
        version, what = named[last], f"the table {last}"
    # The input may have been opened before the commit that the output has recorded.
    if (now in named or not named) and (version <= state.version or version <= source.refresh().version):
        return version
    raise TopicChanged(
        f"{source.uri} is not the table that the pipeline {pipeline!r} has read: its output {log.table!r} records "
        f"{what} up to entry {version}, but the topic's table is now {now} with the entries {first} to "
        f"{source.state.version}, and its log does not continue the old one. It was removed and made again, or "
        "restored from an older copy, without 'brokerless topics delete'. Nothing was read or written. Restore the old "
        "table and start again; or accept this one as a new input, read from its beginning: --accept-new-input, or "
        "read_stream(..., accept_new_input=True). (--start does not do it: it is for inputs without progress.)"
    )


def covers(done: Position, start: Position, end: Position) -> bool:
    """Whether an output at ``done`` holds everything between ``start`` and ``end`` already."""
    return all(done.get(table, -1) >= version for table, version in end.items() if version > start.get(table, -1))


def follows(done: Position, start: Position) -> bool:
    """Whether a batch that begins at ``start`` continues an output at ``done``: no gap, nothing twice."""
    return all(start.get(table) == version for table, version in done.items())


def halves(start: Position, end: Position) -> list[tuple[Position, Position]]:
    """A batch in two parts, each from a position to a position; nothing of a single commit, which has none."""
    moving = [table for table, version in end.items() if version > start[table]]
    middle = {table: (start[table] + version) // 2 for table, version in end.items()}
    if middle == start:
        if len(moving) < 2:
            return []
        middle |= {table: end[table] for table in moving[: len(moving) // 2]}
    return [(start, middle), (middle, end)]


def pieces(start: Position, end: Position, count: int) -> list[tuple[Position, Position]]:
    """A batch in about so many parts, in order."""
    cut = halves(start, end) if count > 1 else []
    return [piece for a, b in cut for piece in pieces(a, b, count // 2)] or [(start, end)]


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a run begins, as far as its output can note it.

    Attributes:
        at: the position; no txn says "before version 0", so such tables are left out.
        ids: of all inputs.
        anew: inputs that are begun anew although an output records something of them.
    """

    at: Position
    ids: TableIds
    anew: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """What the source hands to Spark as an offset, as JSON.

    Attributes:
        at: the position after the batch.
        since: the position with which this run began; the same in all offsets of a run.
        ids: of the tables that were read, as this run opened them.
        rows: messages up to ``at``, counted from the beginning of this run.
        seen: messages that the source knew of when it cut the batch, counted likewise; the difference is the lag.
        asked: S3 requests of source and tasks by kind (``cost.RequestKind``), counted likewise.
    """

    at: Position
    since: Position
    ids: TableIds
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
