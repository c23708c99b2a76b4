"""A pipeline's outputs: which parts of a batch must be written, and in which order. Nothing here depends on Spark.

* A batch must continue the position in each output's log. What an output already contains is not written again (the
  dead letters of a batch after a crash between the two commits); a gap or an overlap stops the pipeline.
* Dead letters are committed before the output. A restart begins at the output's txns, so in the other order a crash
  between the two commits would lose dead letters.
* Each commit requires that the pipeline's epoch is unchanged; a pipeline that finds another epoch was replaced, and
  stops.

This module is separate from ``sink`` so that ``tests/sim`` can test these decisions with simulated crashes and pauses.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from arro3.core import Table

from brokerless.clock import SYSTEM, Clock
from brokerless.columns import records
from brokerless.errors import BrokerlessError, CommitUnknown, ConfigError, PipelineError, PipelineFenced
from brokerless.log.commit import put_again
from brokerless.log.entries import Add
from brokerless.log.lifecycle import epoch_of
from brokerless.log.log import DeltaLog, TxnAdvanced
from brokerless.spark.progress import (
    Begin,
    Position,
    SourceOffset,
    TableIds,
    app_id,
    covers,
    follows,
    owner_id,
    position_in,
    progress_in,
    recorded_in,
)
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from brokerless.schema import Schema
    from brokerless.store import Store

COMMIT_WITHIN_MS: Final = 600_000
"""The longest time between upload and commit of an object. After a longer time (because of other tasks of a long batch,
or a suspended machine) maintenance may remove it as an orphan; its shortest waiting time is much longer."""

OBJECT_BYTES: Final = 256 * 2**20
"""The largest size in memory of the rows of one object, in the topic's types and with ``_produced_at``; much less than
the limit of readers (``records.MAX_DECODED_BYTES``)."""


class ObjectsTooOldError(PipelineError):
    """Error raised when executors' objects may be gone before their commit: the batch must be written in parts."""


@dataclass(slots=True)
class UploadedFiles:
    """The uploaded objects of one output, in log order."""

    adds: list[Add] = field(default_factory=list)
    data: dict[str, bytes] = field(default_factory=dict)
    """The bytes of the objects that this process uploaded itself, by path, until they are committed."""

    @property
    def rows(self) -> int:
        """Return the number of rows in the objects."""
        return sum(add.rows or 0 for add in self.adds)


@dataclass(frozen=True, slots=True)
class TableWriter:
    """The destination of an output's objects, in the form that is sent to executors."""

    topic: str
    schema: Schema

    def upload(self, store: Store, rows: pa.Table, *, clock: Clock = SYSTEM) -> list[tuple[Add, bytes]]:
        """Upload the rows as objects, in their order, and return them with their bytes; empty if there are no rows."""
        now_us = clock.time_us()
        uploaded: list[tuple[Add, bytes]] = []
        for piece in self._conformed(rows, now_us):
            data = records.encode(Table.from_arrow(piece))
            name = records.object_name(data, clock.uuid())
            store.put(f"{self.topic}/{name}", data)
            uploaded.append((Add(name, len(data), piece.num_rows, now_us // 1000), data))
        return uploaded

    def _conformed(self, rows: pa.Table, now_us: int) -> Iterator[pa.Table]:
        """Yield the rows in the topic's types, in parts for one object each."""
        import pyarrow as pa

        # Split before the conversion to limit its memory, and after it: numbers can become eight times as large.
        for piece in _pieces(rows):
            yield from _pieces(
                pa.table(records.to_table(piece, self.schema, topic=self.topic, produced_at_us=now_us))
            )  # fmt: skip


def _pieces(rows: pa.Table) -> list[pa.Table]:
    """Split rows into parts that are small enough for one object; a row that is larger is a part of its own."""
    if not rows.num_rows:
        return []
    if rows.nbytes <= OBJECT_BYTES or rows.num_rows == 1:
        return [rows]
    half = rows.num_rows // 2
    return [*_pieces(rows.slice(0, half)), *_pieces(rows.slice(half))]


class OutputLog:
    """An output topic's log, as this pipeline uses it.

    Args:
        store: the store with the topic.
        topic: a topic with one partition.
        schema: the topic's schema.
        pipeline: the name under which the log records the progress.
        clock: time, and randomness for the objects' names.

    Raises:
        TopicNotFound, ConfigError: the topic is missing, or has several partitions.
        SchemaError: it has nested columns.
    """

    def __init__(self, store: Store, topic: str, schema: Schema, pipeline: str, *, clock: Clock = SYSTEM) -> None:
        self.topic = topic
        records.arrow_schema(schema)
        self.writer = TableWriter(topic, schema)
        self._pipeline = pipeline
        self._clock = clock
        self._log = DeltaLog(store, topic, clock=clock)
        self._epoch = 0
        if describe_topic(store, topic, clock=clock).partitions != 1:
            raise ConfigError(f"The output {topic!r} must have one partition.")

    def is_of_old_version(self) -> bool:
        """Return whether the last owner was an old version, which recorded progress without table ids."""
        txns = self._log.refresh().txns
        has_progress = any(app.startswith(f"{self._pipeline}:") and number >= 0 for app, number in txns.items())
        return has_progress and epoch_of(owner_id(self._pipeline)) not in txns

    def claim(self, *, old_version: bool = False) -> None:
        """Claim the output: from now on, an older pipeline of this name is fenced.

        Args:
            old_version: fence an old version of brokerless, too.
        """
        if old_version:
            self._log.claim(self._pipeline)
        self._epoch = self._log.claim(owner_id(self._pipeline))

    def position(self, ids: TableIds) -> Position:
        """Return this output's recorded position in the tables with these ids."""
        return position_in(self._log, self._pipeline, ids)

    def recorded(self, source: DeltaLog) -> int | None:
        """Return the position from which the pipeline continues in an input; see ``recorded_in``."""
        return recorded_in(self._log, self._pipeline, source)

    def note(self, at: Position, ids: TableIds) -> None:
        """Record positions without a batch, and remove those in tables that are not inputs any more.

        Raises:
            PipelineFenced: as ``commit``.
        """
        txns: dict[str, int] = {}
        expect: dict[str, int] = {}
        for table, version in at.items():
            known = progress_in(self._log, self._pipeline, table)
            known.pop(None, None)  # has no effect once there is progress with a table id
            wanted = {ids[table]: version, **dict.fromkeys(known.keys() - {ids[table]}, -1)}
            for table_id, number in wanted.items():
                if known.get(table_id) != number:
                    name = app_id(self._pipeline, table, table_id)
                    txns[name] = number
                    if table_id in known:
                        expect[name] = known[table_id]
        if txns:
            self._append([], txns, expect)

    def name_old(self, begin: Begin) -> None:
        """Add the table id to progress that an old version recorded without one."""
        at: Position = {}
        for table in begin.ids:
            known = progress_in(self._log, self._pipeline, table)
            if set(known) == {None}:
                at[table] = begin.at.get(table, -1) if table in begin.anew else known[None]
        self.note({table: version for table, version in at.items() if version >= 0}, begin.ids)

    def upload(self, rows: pa.Table, objects: UploadedFiles) -> None:
        """Upload the rows as objects of a batch that will be committed."""
        for add, data in self.writer.upload(self._log.store, rows, clock=self._clock):
            objects.adds.append(add)
            objects.data[add.path] = data

    def commit(self, objects: UploadedFiles, end: Position, ids: TableIds) -> None:
        """Commit one log entry with the objects and the resulting positions in the inputs.

        Raises:
            PipelineFenced: another pipeline of this name took over; nothing was written.
            ObjectsTooOldError: an executor's object waited so long that it may be gone; nothing was written.
            PipelineError: an object was gone after a commit during which this process was suspended.
        """
        self._renew(objects)
        known = self.position(ids)
        txns = {app_id(self._pipeline, t, ids[t]): v for t, v in end.items() if v > known.get(t, -1)}
        try:
            self._append(objects.adds, txns)
        except CommitUnknown:
            with contextlib.suppress(BrokerlessError):  # the commit may still appear, and then it needs its objects
                self._put_again(objects)
            raise
        self._put_again(objects)

    def _append(self, adds: Sequence[Add], txns: Mapping[str, int], expect: Mapping[str, int] | None = None) -> None:
        owned = {epoch_of(owner_id(self._pipeline)): self._epoch}
        try:
            # guard: progress is in the commit of the rows
            # guard: the epoch is compared with the commit of a pipeline
            self._log.append(adds, txns, expect={**owned, **(expect or {})})
        except TxnAdvanced as error:
            if error.ours:
                # After a long suspension the log repeats a commit without files and then finds its own txns. They
                # cannot be another pipeline's, because the epoch was compared before.
                return
            raise PipelineFenced(
                f"Another pipeline {self._pipeline!r} took over {self.topic!r} ({error}); this one wrote nothing more. "
                "Run only one pipeline of a name at a time."
            ) from error

    def _renew(self, objects: UploadedFiles) -> None:
        """Upload objects that waited too long for their commit again under new names, which no maintainer can know."""
        old = [number for number, add in enumerate(objects.adds) if self._is_old(add)]
        if any(objects.adds[number].path not in objects.data for number in old):
            raise ObjectsTooOldError(
                f"An object for {self.topic!r} waited more than {COMMIT_WITHIN_MS // 60_000} minutes for its commit "
                "and may have been removed as an orphan. Nothing was committed."
            )
        for number in old:
            data = objects.data.pop(objects.adds[number].path)
            name = records.object_name(data, self._clock.uuid())
            self._log.store.put(f"{self.topic}/{name}", data)
            objects.data[name] = data
            objects.adds[number] = replace(
                objects.adds[number], path=name, modified_ms=self._clock.time_us() // 1000
            )  # fmt: skip

    def _is_old(self, add: Add) -> bool:
        return self._clock.time_us() // 1000 - add.modified_ms > COMMIT_WITHIN_MS

    def _put_again(self, objects: UploadedFiles) -> None:
        """Restore objects that maintenance removed if this process was suspended between time check and commit.

        For example, a laptop that was closed at that moment. Executors do not keep their objects' bytes: if one of
        those is gone, this raises PipelineError.
        """
        if not any(self._is_old(add) for add in objects.adds):
            return
        store = self._log.store
        put_again(store, self.topic, objects.data, clock=self._clock)
        others = [f"{self.topic}/{add.path}" for add in objects.adds if add.path not in objects.data]
        if gone := [path for path in others if not store.exists(path)]:
            raise PipelineError(
                f"{', '.join(gone)} waited for the commit while this process was suspended, and maintenance removed "
                "them as orphans. The commit is in the log, so readers will fail: delete the output topic, create it "
                "again and run the pipeline from the beginning."
            )


@dataclass(frozen=True, slots=True)
class PipelineOutputs:
    """The output of a pipeline, and its dead-letter topic if it has one.

    Attributes:
        output: the topic for good rows; a restart begins at its txns.
        dead_letters: the topic for dead letters, which is always committed before the output.
        pipeline: the pipeline's name, for errors.
    """

    output: OutputLog
    dead_letters: OutputLog | None
    pipeline: str

    def claim(self) -> None:
        """Claim both topics."""
        old_version = self.output.is_of_old_version()
        # guard: a pipeline claims its outputs at start
        for output in self._all():
            output.claim(old_version=old_version)

    def record_start(self, begin: Begin) -> None:
        """Record the start positions of new inputs before anything is read from them.

        So a crash before the first commit does not change them: the next run reads all messages from there, or stops if
        log clean-up has removed some.

        Raises:
            PipelineFenced: as ``OutputLog.commit``.
        """
        if self.dead_letters is not None:
            self.dead_letters.name_old(begin)  # first: the output's old progress shows that theirs is still used
        self.output.note(begin.at, begin.ids)

    def missing(self, start: Position, offset: SourceOffset, *, batch_id: int) -> list[OutputLog]:
        """Return the outputs that do not contain the batch from ``start`` to ``offset`` yet.

        Raises:
            PipelineError: the batch does not continue what one of them records.
        """
        end = offset.at
        found: list[OutputLog] = []
        for output in self._all():
            done = output.position(offset.ids)
            # guard: the dead letters' own progress counts, too
            if covers(done, start, end):
                continue
            # guard: a batch continues exactly what the output records
            if not follows(done, start) and not (output is self.dead_letters and _behind(done, start)):
                raise PipelineError(
                    f"Batch {batch_id} of the pipeline {self.pipeline!r} reads {_span(start, end)}, but "
                    f"{output.topic!r} records {done}: rows would be lost or repeated. Read with read_stream(..., "
                    f"name={self.pipeline!r}, output={self.output.topic!r}), and from all topics of earlier runs."
                )
            found.append(output)
        return found

    def commit(
        self, good: UploadedFiles, rejected: UploadedFiles, offset: SourceOffset, *, missing: Collection[OutputLog]
    ) -> None:
        """Commit a batch to the outputs where it is missing; without dead letters, their topic gets no entry.

        Raises:
            PipelineFenced, PipelineError: as ``OutputLog.commit``.
        """
        # guard: dead letters are committed before the output
        if self.dead_letters is not None and rejected.rows:
            self.dead_letters.commit(rejected, offset.at, offset.ids)
        if self.output in missing:
            self.output.commit(good, offset.at, offset.ids)

    def _all(self) -> list[OutputLog]:
        return [self.output] if self.dead_letters is None else [self.dead_letters, self.output]


def _behind(done: Position, start: Position) -> bool:
    """Return whether dead letters are behind ``start``: only batches with dead letters are committed there."""
    return all(done[table] <= start.get(table, -1) for table in done)


def _span(start: Position, end: Position) -> str:
    return ", ".join(f"{table} {start.get(table, -1) + 1}..{version}" for table, version in end.items())
