"""A pipeline's progress: positions in its inputs, stored as txns in the logs of its outputs.

A position is a vector: for each input table the last version that was read (whole commits only). The txn of pipeline
``p`` for partition 0 of topic ``t`` has the application id ``p:t:0:<table id>``. The id is needed because a table that
was deleted and created again by hand begins at version 0 again: an old position would skip its messages. (Old versions
wrote ``p:t:0``, which counts for the existing table until the pipeline's next start adds the id.)

A batch's dead letters are committed first, then its output, each with the batch's end as txns. A restart begins at the
output's position. After a crash between the two commits, the dead letters' position is ahead: the next batch then ends
at or before it, and its dead letters are skipped as a whole.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from brokerless.errors import TopicChanged
from brokerless.schema import split_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerless.log.log import DeltaLog

Position = dict[str, int]
"""A mapping from input table to the last version that was read."""

TableIds = dict[str, str]
"""A mapping from input table to the id of the table that was read."""


def owner_id(pipeline: str) -> str:
    """Return the id with which a pipeline claims its outputs; it has a slash, so no producer id can equal it."""
    return f"pipeline/{pipeline}"


def app_id(pipeline: str, table: str, table_id: str | None) -> str:
    """Return the txn's application id for one input table; without a table id in the format of old versions."""
    topic, partition = split_table(table)
    return f"{pipeline}:{topic}:{partition}" + ("" if table_id is None else f":{table_id}")


def progress_in(log: DeltaLog, pipeline: str, table: str) -> dict[str | None, int]:
    """Return the recorded versions of one input by table id; the key None is progress without an id."""
    plain = app_id(pipeline, table, None)
    ids: dict[str, str | None] = {plain: None}
    ids |= {app: app.removeprefix(f"{plain}:") for app in log.state.txns if app.startswith(f"{plain}:")}
    found = {table_id: log.txn(app) for app, table_id in ids.items()}
    return {table_id: version for table_id, version in found.items() if version is not None}


def position_in(log: DeltaLog, pipeline: str, ids: TableIds) -> Position:
    """Return the position that an output's log records for the tables with these ids; unknown ones are omitted."""
    found: Position = {}
    for table, table_id in ids.items():
        version = log.txn(app_id(pipeline, table, table_id))
        if version is None and set(known := progress_in(log, pipeline, table)) == {None}:
            version = known[None]
        if version is not None:
            found[table] = version
    return found


def recorded_in(log: DeltaLog, pipeline: str, source: DeltaLog) -> int | None:
    """Return the position in an input that its output's log records, or None if it records none.

    A topic that was deleted and created again with brokerless continues at its new beginning.

    Raises:
        TopicChanged: the recorded position belongs to another table, or is after the end of this one: the table was
            deleted and created again, or restored from an older copy.
    """
    known, state = progress_in(log, pipeline, source.table), source.state
    if not known:
        return None
    first, now = state.metadata.first_version, state.metadata.id
    named = {table_id: version for table_id, version in known.items() if table_id is not None}
    if now in named:
        version, what = named[now], "the same table"
    elif not named:
        version, what = max(known[None], first), "a table without an id"
    else:
        last = max(named, key=lambda table_id: named[table_id])
        if named[last] < first:
            return first
        version, what = named[last], f"the table {last}"
    # The input's log may have been opened before the commit that the output records.
    if (now in named or not named) and (version <= state.version or version <= source.refresh().version):
        return version
    raise TopicChanged(
        f"{source.uri} is not the table that the pipeline {pipeline!r} has read: its output {log.table!r} records "
        f"{what} up to entry {version}, but the topic's table is now {now} with the entries {first} to "
        f"{source.state.version}, and its log does not continue the old one. The table was deleted and created again, "
        "or restored from an older copy, without 'brokerless topics delete'. Nothing was read or written. Restore the "
        "old table and start again; or read this one as a new input from its beginning with --accept-new-input or "
        "read_stream(..., accept_new_input=True). (--start has no effect here: it is for inputs without progress.)"
    )


def covers(done: Position, start: Position, end: Position) -> bool:
    """Return whether an output at ``done`` already contains everything between ``start`` and ``end``."""
    return all(done.get(table, -1) >= version for table, version in end.items() if version > start.get(table, -1))


def follows(done: Position, start: Position) -> bool:
    """Return whether a batch from ``start`` continues an output at ``done`` without a gap or an overlap."""
    return all(start.get(table) == version for table, version in done.items())


def halves(start: Position, end: Position) -> list[tuple[Position, Position]]:
    """Split a batch into two parts, each from a position to a position; empty for a single commit."""
    moving = [table for table, version in end.items() if version > start[table]]
    middle = {table: (start[table] + version) // 2 for table, version in end.items()}
    if middle == start:
        if len(moving) < 2:
            return []
        middle |= {table: end[table] for table in moving[: len(moving) // 2]}
    return [(start, middle), (middle, end)]


def pieces(start: Position, end: Position, count: int) -> list[tuple[Position, Position]]:
    """Split a batch into about ``count`` parts, in order."""
    cut = halves(start, end) if count > 1 else []
    return [piece for a, b in cut for piece in pieces(a, b, count // 2)] or [(start, end)]


@dataclass(frozen=True, slots=True)
class Begin:
    """The position at which a run begins, as its output can record it.

    Attributes:
        at: the position; a txn cannot record "before version 0", so tables at that position are omitted.
        ids: the table ids of all inputs.
        anew: inputs that are read from their beginning although an output records progress in them.
    """

    at: Position
    ids: TableIds
    anew: frozenset[str] = frozenset()


_KEYS: Final = {"run_start": "since", "known_rows": "seen", "requests": "asked"}
"""The keys of ``SourceOffset`` in JSON, where they differ from its attributes."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The offset that the source gives to Spark as JSON.

    Attributes:
        at: the position after the batch.
        run_start: the position at which this run began; the same in all offsets of a run.
        ids: the ids of the tables, as this run opened them.
        rows: the number of messages from the start of this run up to ``at``.
        known_rows: the number of messages from the start of this run that were known when the batch was planned; the
            difference to ``rows`` is the lag.
        requests: the number of S3 requests of source and tasks since the start of this run, by kind (``RequestKind``).
    """

    at: Position
    run_start: Position
    ids: TableIds
    rows: int
    known_rows: int
    requests: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the offset as a dictionary for Spark."""
        return {_KEYS.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def of(cls, values: Mapping[str, object] | str) -> SourceOffset:
        """Parse an offset from Spark's dictionary or JSON text."""
        if isinstance(values, str):
            values = json.loads(values)
        fields = {key: name for name, key in _KEYS.items()}
        return cls(**{fields.get(key, key): value for key, value in values.items()})  # type: ignore[arg-type, union-attr]
