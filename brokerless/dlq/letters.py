"""The dead letters of one output: count, show, redrive, purge."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from arro3.core import Table

from brokerless.clock import SYSTEM, Clock
from brokerless.columns.records import values_of
from brokerless.columns.select import rows_where
from brokerless.consumer import Consumer
from brokerless.dlq.ledger import Ledger, LedgerObject, Plan, union
from brokerless.dlq.rows import POSITION, Chunk, EditedRow, Targets, edited_rows
from brokerless.errors import ConfigError, MessageError, TopicNotFound
from brokerless.export.text import json_lines
from brokerless.export.topic import minibatches
from brokerless.log.commit import commit_table
from brokerless.log.log import DEADLINE_S, TxnAdvanced
from brokerless.log.start import resolve_start
from brokerless.maintenance.retention import remove_before
from brokerless.offsets import Offset
from brokerless.schema import dead_letters, partition_table
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from brokerless.consumer import Batch
    from brokerless.dlq.rows import Json
    from brokerless.offsets import Start
    from brokerless.store import Store

_PLAN_ROWS: Final = 50_000
_PLAN_BYTES: Final = 16 * 2**20


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be processed.

    Attributes:
        position: its offset in the dead-letter topic.
        reason: why it could not be processed.
        redriven: whether it was sent again.
        row: all its columns.
        json: the same as JSON text, with ``_position``; edited, it can be redriven.
    """

    position: Offset
    reason: str
    redriven: bool
    row: Mapping[str, Any]
    json: str


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did, or with ``dry_run`` would do.

    Attributes:
        messages: how many messages it sent.
        topics: how many to each topic.
        already: how many of the edited rows had been redriven before, and were left out.
        finished: how many more it sent because an interrupted redrive had left them.
    """

    messages: int
    topics: Mapping[str, int]
    already: int
    finished: int


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge removed, or with ``dry_run`` would remove.

    Attributes:
        messages: how many dead letters.
        not_redriven: how many of them had not been sent again.
        until: the first position that stays; it begins a commit, as commits are removed as a whole.
    """

    messages: int
    not_redriven: int
    until: Offset


class DeadLetters:
    """The dead letters of one output topic.

    Args:
        store: where the topics are.
        output: the pipeline's output, or the topic that messages were to be ingested into.
        clock: time, randomness and sleeping.

    Raises:
        TopicNotFound: it has no dead-letter topic.
        ConfigError: the topic of that name holds something else.
    """

    def __init__(self, store: Store, output: str, *, clock: Clock = SYSTEM) -> None:
        self.output = output
        self._store = store
        self._clock = clock
        name = dead_letters(output)
        try:
            self._topic = describe_topic(store, name, clock=clock)
        except TopicNotFound:
            raise TopicNotFound(
                f"There is no topic {name!r}. The first run of a pipeline with the output {output!r} creates it; give "
                "the pipeline's output, not its input."
            ) from None
        if "_reason" not in self._topic.schema.names:
            raise ConfigError(f"Topic {name!r} holds no dead letters: it has no column _reason.")
        self._log = self._topic.logs[0]
        self._ledger = LedgerObject(store, name, self._topic.table_ids[0])
        self._app_id = f"dlq/{output}/{self._topic.table_ids[0]}"

    @property
    def are_rows(self) -> bool:
        """Whether they are rows of topics, as a pipeline's are, and not bodies that ingestion refused."""
        return "_partition" in self._topic.schema.names

    def reasons(
        self, *, start: Start = "beginning", until: Start | None = None, redriven: bool = False
    ) -> dict[str, int]:
        """Return how many dead letters there are by reason, the most frequent first.

        Args:
            start: the first position: ``beginning``, an offset or a time.
            until: the position to stop before; by default the end.
            redriven: count those that were sent again, too.
        """
        ledger, _ = self._ledger.read()
        found: Counter[str] = Counter()
        for batch in self._batches(start, until):
            found.update(
                reason
                for row, reason in enumerate(_reasons(batch))
                if redriven or not ledger.has(_position(batch, row))
            )
        return dict(found.most_common())

    def messages(
        self,
        *,
        reason: str | None = None,
        start: Start = "beginning",
        until: Start | None = None,
        limit: int | None = None,
        redriven: bool = False,
    ) -> Iterator[DeadLetter]:
        """Yield the dead letters in their order.

        Args:
            reason: text that the reason must contain.
            start: as for ``reasons``.
            until: likewise.
            limit: how many at most.
            redriven: yield those that were sent again, too.
        """
        ledger, _ = self._ledger.read()
        left = limit
        for batch in self._batches(start, until):
            names = batch.data.column_names
            columns = [values_of(batch.data.column(name)) for name in names]
            lines = json_lines(batch.data)
            for row, why in enumerate(_reasons(batch)):
                position = _position(batch, row)
                sent = ledger.has(position)
                if (sent and not redriven) or (reason is not None and reason not in why):
                    continue
                if left == 0:
                    return
                left = None if left is None else left - 1
                text = f'{lines[row][:-1]}, "{POSITION}": "{position}"}}'
                values = {name: column[row] for name, column in zip(names, columns, strict=True)}
                yield DeadLetter(position, why, sent, values, text)

    def redrive(
        self,
        *,
        reason: str | None = None,
        start: Start = "beginning",
        until: Start | None = None,
        limit: int | None = None,
        edited: Iterable[Json] | None = None,
        source: str = "edited",
        dry_run: bool = False,
    ) -> Redriven:
        """Send dead letters back into the topics and partitions that they came from, each exactly once.

        They get their own columns and a new ``_produced_at``. What was redriven before is left out. After any error
        the same call goes on: it first sends what is missing of the interrupted one.

        Args:
            reason: which, as for ``messages``.
            start: likewise.
            until: likewise.
            limit: likewise.
            edited: rows to send instead of the dead letters at their ``_position``, and only these: lines like
                ``DeadLetter.json``, or dictionaries. Other names of a dead letter's own columns are ignored.
            source: the name of ``edited`` in errors.
            dry_run: check everything, and send nothing.

        Raises:
            ConfigError: they are of ingestion, and no rows; the text says what to do with them.
            SchemaError, MessageError: one does not fit its topic. Neither it nor those behind it were sent; of
                ``edited`` none at all.
            TopicNotFound: a topic that they came from is gone.
            BrokerlessError: the store failed; call it again.
        """
        if not self.are_rows:
            raise ConfigError(
                f"The dead letters of {self.output!r} were refused on their way in, so they are no rows of a topic. "
                f"Take _body from 'brokerless dlq show {self.output} --json', correct it, and send it with 'brokerless "
                f"produce {self.output}'; then remove them with 'brokerless dlq purge {self.output}'."
            )
        rows = None if edited is None else edited_rows(edited, source)
        targets = Targets(self._store, self._clock)
        # An interrupted plan is sent before there is another.
        finished = 0 if dry_run else self._finish(targets)
        ledger, tag = self._ledger.read()
        already = 0
        if rows is None:
            chunks = self._chosen(ledger, targets, self._batches(start, until), reason, limit)
        else:
            already = sum(ledger.has(position) for position in rows)
            rows = {position: row for position, row in rows.items() if not ledger.has(position)}
            chunks = iter(self._edited(targets, rows))
        counts: Counter[str] = Counter()
        for chunk in chunks:
            for (topic, _), tables in chunk.tables.items():
                counts[topic] += sum(table.num_rows for table in tables)
            if dry_run:
                continue
            ids = {partition_table(*key): targets.open(key[0]).table_ids[key[1]] for key in chunk.tables}
            plan = Plan(tuple(chunk.ranges), chunk.edited, ids)
            ledger = Ledger(ledger.number + 1, union([*ledger.sent, *chunk.ranges]), plan)
            # The plan is noted before its messages are sent.
            tag = self._ledger.write(ledger, tag)
            self._send(ledger.number, chunk, targets)
        if ledger.plan is not None and not dry_run:
            self._ledger.write(replace(ledger, plan=None), tag)
        return Redriven(counts.total(), dict(counts), already, finished)

    def purge(self, *, until: Start = "latest", dry_run: bool = False) -> Purged:
        """Remove dead letters from the table, from the first one on.

        They leave the table at once; maintenance removes their objects when the topic's retention is over. What an
        interrupted redrive has left is sent first.

        Args:
            until: the position to stop before; the commit that holds it stays as a whole.
            dry_run: only count them.
        """
        end = Offset(resolve_start(self._log, until).version)
        if self.are_rows and not dry_run:
            self._finish(Targets(self._store, self._clock))
        ledger, _ = self._ledger.read()
        messages = waiting = 0
        for batch in self._batches("beginning", end):
            messages += batch.data.num_rows
            waiting += sum(not ledger.has(_position(batch, row)) for row in range(batch.data.num_rows))
        if not dry_run:
            remove_before(self._log, end.version)
        return Purged(messages, waiting, end)

    def _finish(self, targets: Targets) -> int:
        """Send what is missing of the last plan; return how many messages."""
        ledger, tag = self._ledger.read()
        if ledger.plan is None:
            return 0
        plan, chunk = ledger.plan, Chunk()
        planned = Ledger(sent=plan.ranges)
        rows = {Offset.parse(at): EditedRow(f"The edited row {at}", row) for at, row in plan.edited.items()}
        for batch in self._between(plan.ranges[0][0], plan.ranges[-1][1]):
            # A topic that was made again has neither the old messages nor the plan's number.
            self._add(chunk, batch, planned.has, targets, rows, tables=plan.tables)
        sent = self._send(ledger.number, chunk, targets)
        self._ledger.write(replace(ledger, plan=None), tag)
        return sent

    def _send(self, number: int, chunk: Chunk, targets: Targets) -> int:
        """Commit the messages of a plan where they are missing; return how many."""
        sent = 0
        for (name, partition), tables in chunk.tables.items():
            table = Table.from_batches([batch for one in tables for batch in one.to_batches()]).combine_chunks()
            try:
                commit_table(
                    targets.open(name).logs[partition],
                    table,
                    # The plan's number is in the commit of its messages.
                    txns={self._app_id: number},
                    expect={},
                    timeout_s=DEADLINE_S,
                    clock=self._clock,
                )
                sent += table.num_rows
            except TxnAdvanced:
                continue  # an earlier attempt has sent them
        return sent

    def _chosen(
        self,
        ledger: Ledger,
        targets: Targets,
        batches: Iterable[Batch],
        reason: str | None,
        limit: int | None,
    ) -> Iterator[Chunk]:
        chunk, count = Chunk(), 0
        for batch in batches:
            wanted: set[Offset] = set()
            for row, why in enumerate(_reasons(batch)):
                position = _position(batch, row)
                if count != limit and not ledger.has(position) and (reason is None or reason in why):
                    wanted.add(position)
                    count += 1
            if chunk.tables and (chunk.rows + len(wanted) > _PLAN_ROWS or chunk.size + batch.data.nbytes > _PLAN_BYTES):
                yield chunk
                chunk = Chunk()
            if wanted:
                self._add(chunk, batch, wanted.__contains__, targets, {})
            if count == limit:
                break
        if chunk.tables:
            yield chunk

    def _edited(self, targets: Targets, rows: dict[Offset, EditedRow]) -> list[Chunk]:
        if not rows:
            return []
        chunk = Chunk()
        for batch in self._between(min(rows), Offset(max(rows).version, max(rows).index + 1)):
            self._add(chunk, batch, rows.__contains__, targets, rows)
        found = Ledger(sent=union(chunk.ranges))
        for position, row in rows.items():
            if not found.has(position):
                raise MessageError(
                    f"{row.place}: there is no dead letter at {position} (any more). Leave the line out."
                )
        return [chunk]

    def _add(
        self,
        chunk: Chunk,
        batch: Batch,
        wanted: Callable[[Offset], bool],
        targets: Targets,
        rows: Mapping[Offset, EditedRow],
        *,
        tables: Mapping[str, str] | None = None,
    ) -> None:
        """Add dead letters of a batch to a chunk: the edited rows instead of them, if there are such."""
        names, numbers = (values_of(batch.data.column(name)) for name in ("_topic", "_partition"))
        last = batch.data.num_rows - 1
        chosen: dict[tuple[str, int], list[int]] = {}
        for row, (name, number) in enumerate(zip(names, numbers, strict=True)):
            position = _position(batch, row)
            if not wanted(position):
                continue
            if tables is None or targets.has_table(name, number, tables):
                chosen.setdefault((name, targets.partition(name, number)), []).append(row)
            # The last one's range goes up to the next commit, so that whole commits become one range.
            end = batch.next if row == last and batch.whole else Offset(batch.version, position.index + 1)
            chunk.ranges[-1:] = union([*chunk.ranges[-1:], (position, end)])
        for key, found in chosen.items():
            if rows:
                taken = [rows[_position(batch, row)] for row in found]
                chunk.edited |= {str(_position(batch, row)): rows[_position(batch, row)].values for row in found}
                table = targets.table_of_edited(key[0], taken)
            else:
                here = set(found)
                table = targets.table_of(
                    key[0], rows_where(batch.data, [row in here for row in range(batch.data.num_rows)])
                )
            chunk.tables.setdefault(key, []).append(table)

    def _between(self, first: Offset, end: Offset) -> Iterator[Batch]:
        """Yield what is still there between two positions."""
        first = max(first, Offset(self._log.earliest()))
        end = min(end, Offset(self._log.head() + 1))
        return self._batches(first, end) if first < end else iter(())

    def _batches(self, start: Start, until: Start | None) -> Iterator[Batch]:
        end = resolve_start(self._log, "latest" if until is None else until)
        heads = {0: end.version if end.index else end.version - 1}
        with Consumer(self._topic, start=start, store=self._store, clock=self._clock) as consumer:
            for batches in minibatches(consumer, heads=heads, clock=self._clock):
                for batch in batches:
                    rows = batch.data.num_rows
                    if batch.version == end.version:
                        rows = min(max(end.index - batch.first_index, 0), rows)
                    if rows:
                        whole = batch.whole and rows == batch.data.num_rows
                        yield replace(batch, data=batch.data.slice(0, rows), whole=whole)


def _position(batch: Batch, row: int) -> Offset:
    return Offset(batch.version, batch.first_index + row)


def _reasons(batch: Batch) -> list[str]:
    return [reason or "" for reason in values_of(batch.data.column("_reason"))]
