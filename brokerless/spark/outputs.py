"""A pipeline's outputs: what a batch still has to write there, and in which order. Nothing here knows Spark.

* A batch must continue what each output's log records as done. What an output holds already is not written again (the
  dead letters of a batch after a crash between the two commits); a gap or an overlap stops the pipeline.
* Dead letters are committed before the output: the output's txns say where a restart begins, so the other way round a
  crash in between would lose them.
* Each commit requires that the pipeline's epoch still stands; who meets another one was taken over, and stops.

Apart from ``sink`` so that ``tests/sim`` can crash, pause and double these very decisions thousands of times a minute.
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
from brokerless.log.log import DeltaLog, TxnAdvanced, epoch_of
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
"""An object that waited longer (for the other tasks of a long batch, or on a suspended machine) is not committed:
maintenance may take it for an orphan. Far below the shortest time that it lets them lie."""

OBJECT_BYTES: Final = 256 * 2**20
"""The most that the rows of one object take in memory, far below what readers refuse (``records.MAX_DECODED_BYTES``),
in the topic's types, with ``_produced_at``."""


class ObjectsTooOldError(PipelineError):
    """Executors' objects waited so long for their commit that they may be gone: the batch must be written in parts."""


@dataclass(slots=True)
class Objects:
    """Uploaded objects of one output, in log order."""

    adds: list[Add] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)
    """The bytes of those that this process uploaded itself, by path, until they are committed."""

    @property
    def rows(self) -> int:
        """How many rows they hold."""
        return sum(add.rows or 0 for add in self.adds)


@dataclass(frozen=True, slots=True)
class Target:
    """Where objects of an output go, as sent to executors."""

    topic: str
    schema: Schema

    def upload(self, store: Store, rows: pa.Table, *, clock: Clock = SYSTEM) -> list[tuple[Add, bytes]]:
        """Writes the rows as objects, in their order, and gives the bytes, too; nothing of no rows."""
        now_us = clock.time_us()
        uploaded: list[tuple[Add, bytes]] = []
        for piece in self._conformed(rows, now_us):
            data = records.encode(Table.from_arrow(piece))
            name = records.object_name(data, clock.uuid())
            store.put(f"{self.topic}/{name}", data)
            uploaded.append((Add(name, len(data), piece.num_rows, now_us // 1000), data))
        return uploaded

    def _conformed(self, rows: pa.Table, now_us: int) -> Iterator[pa.Table]:
        """The rows in the topic's types, in parts for one object each."""
        import pyarrow as pa

        # Cut before, so that no more is converted at a time than fits, and after: numbers grow up to eight times.
        for piece in _pieces(rows):
            yield from _pieces(
                pa.table(records.to_table(piece, self.schema, topic=self.topic, produced_at_us=now_us))
            )  # fmt: skip


def _pieces(rows: pa.Table) -> list[pa.Table]:
    """The rows in parts that are small enough for one object each; a row that is not is a part of its own."""
    if not rows.num_rows:
        return []
    if rows.nbytes <= OBJECT_BYTES or rows.num_rows == 1:
        return [rows]
    half = rows.num_rows // 2
    return [*_pieces(rows.slice(0, half)), *_pieces(rows.slice(half))]


class Output:
    """An output topic's log in the hands of this pipeline.

    Args:
        store: where the topic is.
        topic: with one partition.
        schema: of the topic.
        pipeline: the name under which the log keeps the progress.
        clock: time, and the objects' names.

    Raises:
        TopicNotFound, ConfigError: the topic is missing, or has several partitions.
        SchemaError: it has nested columns.
    """

    def __init__(self, store: Store, topic: str, schema: Schema, pipeline: str, *, clock: Clock = SYSTEM) -> None:
        self.topic = topic
        records.arrow_schema(schema)
        self.target = Target(topic, schema)
        self._pipeline = pipeline
        self._clock = clock
        self._log = DeltaLog(store, topic, clock=clock)
        self._epoch = 0
        if describe_topic(store, topic, clock=clock).partitions != 1:
            raise ConfigError(f"The output {topic!r} has several partitions; a pipeline's output has one.")

    def is_of_old_version(self) -> bool:
        """Whether the last owner claimed the pipeline's bare name, and kept progress without table ids."""
        txns = self._log.refresh().txns
        has_progress = any(app.startswith(f"{self._pipeline}:") and number >= 0 for app, number in txns.items())
        return has_progress and epoch_of(owner_id(self._pipeline)) not in txns

    def claim(self, *, old_version: bool = False) -> None:
        """Takes the output over: an older pipeline of this name is fenced from here on.

        Args:
            old_version: fence also one that knows its bare name only.
        """
        if old_version:
            self._log.claim(self._pipeline)
        self._epoch = self._log.claim(owner_id(self._pipeline))

    def position(self, ids: TableIds) -> Position:
        """What this output holds of these very tables already."""
        return position_in(self._log, self._pipeline, ids)

    def recorded(self, source: DeltaLog) -> int | None:
        """Where the pipeline goes on in an input; see ``recorded_in``."""
        return recorded_in(self._log, self._pipeline, source)

    def note(self, at: Position, ids: TableIds) -> None:
        """Notes positions that no batch has led to, and forgets those in tables that the inputs are no longer.

        Raises:
            PipelineFenced: as ``commit``.
        """
        txns: dict[str, int] = {}
        expect: dict[str, int] = {}
        for table, version in at.items():
            known = progress_in(self._log, self._pipeline, table)
            known.pop(None, None)  # counts no longer once something with an id is there
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
        """Names the table in progress that was recorded before pipelines did."""
        at: Position = {}
        for table in begin.ids:
            known = progress_in(self._log, self._pipeline, table)
            if set(known) == {None}:
                at[table] = begin.at.get(table, -1) if table in begin.anew else known[None]
        self.note({table: version for table, version in at.items() if version >= 0}, begin.ids)

    def upload(self, rows: pa.Table, objects: Objects) -> None:
        """Writes the rows as objects of a batch that is to be committed."""
        for add, data in self.target.upload(self._log.store, rows, clock=self._clock):
            objects.adds.append(add)
            objects.kept[add.path] = data

    def commit(self, objects: Objects, end: Position, ids: TableIds) -> None:
        """One entry: the objects, and how far the inputs are with them.

        Raises:
            PipelineFenced: another pipeline of this name took over; nothing was written.
            ObjectsTooOldError: an executor's object has waited so long that it may be gone; nothing was written.
            PipelineError: an object was found to be gone after the commit, in which this process was asleep.
        """
        self._renew(objects)
        known = self.position(ids)
        txns = {app_id(self._pipeline, t, ids[t]): v for t, v in end.items() if v > known.get(t, -1)}
        try:
            self._append(objects.adds, txns)
        except CommitUnknown:
            with contextlib.suppress(BrokerlessError):  # it may land yet, and then needs its objects
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
                # After a long sleep the log writes a commit without files once more, to be sure, and then meets its
                # own txns. Nobody else's: the epoch was compared before them.
                return
            raise PipelineFenced(
                f"Another pipeline {self._pipeline!r} took over {self.topic!r} ({error}); this one wrote nothing more. "
                "Run one pipeline of a name at a time."
            ) from error

    def _renew(self, objects: Objects) -> None:
        """Gives what has waited too long for its commit another name: of that, no maintainer can know yet."""
        old = [number for number, add in enumerate(objects.adds) if self._is_old(add)]
        if any(objects.adds[number].path not in objects.kept for number in old):
            raise ObjectsTooOldError(
                f"An object for {self.topic!r} waited more than {COMMIT_WITHIN_MS // 60_000} minutes for its commit "
                "and may have been removed as an orphan. Nothing was committed."
            )
        for number in old:
            data = objects.kept.pop(objects.adds[number].path)
            name = records.object_name(data, self._clock.uuid())
            self._log.store.put(f"{self.topic}/{name}", data)
            objects.kept[name] = data
            objects.adds[number] = replace(
                objects.adds[number], path=name, modified_ms=self._clock.time_us() // 1000
            )  # fmt: skip

    def _is_old(self, add: Add) -> bool:
        return self._clock.time_us() // 1000 - add.modified_ms > COMMIT_WITHIN_MS

    def _put_again(self, objects: Objects) -> None:
        """Makes good what a sweep did while this process was asleep between its last look at the clock and the commit.

        A laptop that is closed in these milliseconds, say. Executors keep no bytes: for theirs there is only an error.
        """
        if not any(self._is_old(add) for add in objects.adds):
            return
        store = self._log.store
        put_again(store, self.topic, objects.kept, clock=self._clock)
        others = [f"{self.topic}/{add.path}" for add in objects.adds if add.path not in objects.kept]
        if gone := [path for path in others if not store.exists(path)]:
            raise PipelineError(
                f"{', '.join(gone)} waited for the commit while this process was asleep, and maintenance has removed "
                "them as orphans. The commit is in the log, so readers will miss them: delete the output topic, "
                "create it again and run the pipeline anew."
            )


@dataclass(frozen=True, slots=True)
class Outputs:
    """The output of a pipeline, and its dead letters if it has any.

    Attributes:
        output: takes the good rows; its txns say where a restart begins.
        letters: takes the dead letters, always before the output.
        pipeline: the pipeline's name, for errors.
    """

    output: Output
    letters: Output | None
    pipeline: str

    def claim(self) -> None:
        """Takes both over."""
        old_version = self.output.is_of_old_version()
        # guard: a pipeline claims its outputs at start
        for output in self._all():
            output.claim(old_version=old_version)

    def begin(self, begin: Begin) -> None:
        """Notes where inputs begin that the output did not know, before anything is read from there.

        So a crash before the first commit does not move a start: what is there from here on is read, or its loss to
        log clean-up stops the next run.

        Raises:
            PipelineFenced: as ``Output.commit``.
        """
        if self.letters is not None:
            self.letters.name_old(begin)  # first: the output's old progress says that theirs counts
        self.output.note(begin.at, begin.ids)

    def missing(self, start: Position, offset: SourceOffset, *, batch_id: int) -> list[Output]:
        """Those that do not hold the batch from ``start`` to ``offset`` yet.

        Raises:
            PipelineError: the batch does not continue what one of them records.
        """
        end = offset.at
        found: list[Output] = []
        for output in self._all():
            done = output.position(offset.ids)
            # guard: the dead letters' own progress counts, too
            if covers(done, start, end):
                continue
            # guard: a batch continues exactly what the output records
            if not follows(done, start) and not (output is self.letters and _behind(done, start)):
                raise PipelineError(
                    f"Batch {batch_id} of the pipeline {self.pipeline!r} reads {_span(start, end)}, but "
                    f"{output.topic!r} records {done}: rows would be lost or repeated. Read with read_stream(..., "
                    f"name={self.pipeline!r}, output={self.output.topic!r}), and from all topics of earlier runs."
                )
            found.append(output)
        return found

    def commit(self, good: Objects, letters: Objects, offset: SourceOffset, *, missing: Collection[Output]) -> None:
        """Commits a batch where it is missing; no dead letters need no entry.

        Raises:
            PipelineFenced, PipelineError: as ``Output.commit``.
        """
        # guard: dead letters are committed before the output
        if self.letters is not None and letters.rows:
            self.letters.commit(letters, offset.at, offset.ids)
        if self.output in missing:
            self.output.commit(good, offset.at, offset.ids)

    def _all(self) -> list[Output]:
        return [self.output] if self.letters is None else [self.letters, self.output]


def _behind(done: Position, start: Position) -> bool:
    """Dead letters are committed only in batches that have some, so their position may lie behind."""
    return all(done[table] <= start.get(table, -1) for table in done)


def _span(start: Position, end: Position) -> str:
    return ", ".join(f"{table} {start.get(table, -1) + 1}..{version}" for table, version in end.items())
