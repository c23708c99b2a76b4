"""Export a topic's messages to a file, or follow them in minibatches."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.consumer import Batch, Consumer
from brokerless.deadlines import patiently
from brokerless.errors import BrokerlessError, ConfigError, TopicChanged, on_the_way
from brokerless.export.files import writer_for
from brokerless.offsets import Offset, SavedPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from brokerless.offsets import Start
    from brokerless.store import Store
    from brokerless.topics import Topic

_POLL_S: Final = 0.25
"""A stop request is noticed after this at the latest."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export did.

    Attributes:
        path: the file.
        rows: how many messages it holds.
        position: where to go on; a start for the next run.
    """

    path: Path
    rows: int
    position: SavedPosition

    @property
    def next(self) -> Mapping[int, Offset]:
        """The offset to go on from, by partition."""
        return self.position.next


def export_topic(
    topic: str | Topic,
    path: Path,
    *,
    store: Store | None = None,
    start: Start | SavedPosition = "beginning",
    until: Start | None = None,
    once: bool = False,
    expect: int | None = None,
    timeout_s: float | None = None,
    stop: threading.Event | None = None,
    on_batches: Callable[[Sequence[Batch]], None] | None = None,
    raw: bool = False,
    accept_rewrites: bool = False,
    clock: Clock = SYSTEM,
) -> Exported:
    """Writes a topic's messages to a file, replacing it; the file is complete however this ends.

    Messages of one partition are in the log's order. Nothing is touched before the topic was found.

    Args:
        topic: an existing topic, by its name or as it was opened.
        path: ends in ``.csv``, ``.jsonl`` or ``.parquet``.
        store: where; the topic's own if it was opened, else that of the environment.
        start: where to begin.
        until: where to end, as ``Consumer``.
        once: stop at the present head; otherwise it follows the topic.
        expect: stop when so many messages have come, and insist on the number; with 0, stop at the present head.
        timeout_s: stop after this time; with ``expect`` that is an error.
        stop: set it, from a signal handler or another thread, to stop.
        on_batches: called with the messages of each minibatch on their arrival.
        raw: leave texts in CSV as they are, also those that a spreadsheet would run.
        accept_rewrites: as ``Consumer``.
        clock: time, randomness and sleeping.

    Raises:
        TopicNotFound, TopicChanged, ConfigError: at once; nothing was written.
        BrokerlessError: reading failed, or fewer or more messages came than were expected, also because it was stopped.
            The file holds those that came.
    """
    writer_of = writer_for(path, raw=raw)
    stop = stop or threading.Event()
    with consumer_at(topic, start, until=until, store=store, accept_rewrites=accept_rewrites, clock=clock) as consumer:
        (about,) = consumer.topics
        # No message can be waited for: it is known at the head that there is none.
        heads = dict(enumerate(about.heads)) if once or expect == 0 else None
        began = consumer.position()
        try:
            if path.is_symlink():
                raise ConfigError(
                    f"{path} is a symbolic link to {path.readlink()}; name that file, or remove the link."
                )
            writer = writer_of(path, about.schema)
        except OSError as error:
            raise ConfigError(f"Cannot write {path} ({error.strerror or error}); choose another file.") from None
        rows = time_ms = 0
        try:
            for batches in minibatches(consumer, heads=heads, timeout_s=timeout_s, stop=stop, clock=clock):
                if on_batches is not None:
                    on_batches(batches)
                time_ms = max(clock.time_us() // 2000 * 2, time_ms + 2)
                for batch in batches:
                    writer.write(batch.data, time_ms)
                    rows += batch.data.num_rows
                writer.flush()
                if expect is not None and rows >= expect:
                    break
        finally:
            writer.close()
        after = {n: offset for (_, n), offset in consumer.position().items()}
        if heads is not None:
            # The consumer may be past commits behind the head, which were left to the next run.
            after = {n: min(after[n], max(offset, Offset(heads[n] + 1))) for (_, n), offset in began.items()}
        table_ids = {n: table_id for (_, n), table_id in consumer.table_ids().items()}
        exported = Exported(path, rows, SavedPosition(about.name, after, table_ids))
    if expect is not None and rows != expect:
        waited = ""
        if stop.is_set():
            waited = " until it was stopped"
        elif rows < expect and timeout_s is not None and not once:
            waited = f" within {timeout_s:g} s"
        raise BrokerlessError(
            f"{expect} messages of topic {about.name!r} were expected, {rows} came{waited}; {path} holds those."
        )
    return exported


def consumer_at(
    topic: str | Topic,
    start: Start | SavedPosition,
    *,
    until: Start | None = None,
    store: Store | None = None,
    partitions: Sequence[int] | None = None,
    accept_rewrites: bool = False,
    clock: Clock = SYSTEM,
) -> Consumer:
    """A consumer at this start, which may be where an earlier run ended.

    Raises:
        TopicChanged: the position is in tables that are not there any more.
        ConfigError, OffsetOutOfRange, TopicNotFound: as ``Consumer``, or a position in another topic.
    """
    if not isinstance(start, SavedPosition):
        return Consumer(
            topic,
            start=start,
            until=until,
            store=store,
            partitions=partitions,
            accept_rewrites=accept_rewrites,
            clock=clock,
        )
    name = topic if isinstance(topic, str) else topic.name
    if start.topic != name:
        raise ConfigError(
            f"The position is one of topic {start.topic!r}, not of {name!r}; give the one of an export of {name!r}."
        )
    consumer = Consumer(
        topic, until=until, store=store, partitions=partitions, accept_rewrites=accept_rewrites, clock=clock
    )
    try:
        for (_, number), table_id in consumer.table_ids().items():
            if start.table_ids.get(number) != table_id or number not in start.next:
                raise TopicChanged(
                    f"Topic {name!r} was deleted and created again, or restored, since the position was saved: "
                    f"partition {number} was table {start.table_ids.get(number)}, and is {table_id}. The position "
                    "means nothing there; start with --from beginning, or where you choose."
                )
        for (_, number), _ in consumer.table_ids().items():
            consumer.seek(start.next[number], partition=number)
    except BaseException:
        consumer.close()
        raise
    return consumer


def minibatches(
    consumer: Consumer,
    *,
    heads: Mapping[int, int] | None = None,
    timeout_s: float | None = None,
    stop: threading.Event | None = None,
    clock: Clock = SYSTEM,
) -> Iterator[Sequence[Batch]]:
    """What a consumer's polls bring, until its end or one of the bounds is met; never empty.

    A partition that cannot go on does not hold back what the others have now: its error comes after that.

    Args:
        consumer: of one topic.
        heads: by partition, the last commit to deliver; without it there is no end.
        timeout_s: an end by time.
        stop: an end from outside.
        clock: time.

    Raises:
        BrokerlessError: as ``Consumer.poll``, marked as ``on_the_way``.
    """
    deadline = math.inf if timeout_s is None else clock.monotonic() + timeout_s
    held: BrokerlessError | None = None
    came = False  # whether the other partitions brought messages since the error
    while not (stop is not None and stop.is_set()):
        if consumer.finished or (heads is not None and _is_past(consumer, heads)):
            return
        left = deadline - clock.monotonic()
        if left <= 0:
            break
        try:
            with on_the_way(), patiently():
                batches = consumer.poll(min(_POLL_S, left))
                if heads is not None and not batches and held is None:
                    consumer.check_ends()  # the heads are there, so what does not come before them is missing
        except BrokerlessError as error:
            # With heads, until the others are there. Without, once more: they may never fall silent.
            if len(consumer.position()) == 1 or (held is not None and not (came and heads is not None)):
                raise
            held, came = error, False
            continue
        if heads is not None:
            # What was committed since belongs to the next run.
            batches = [batch for batch in batches if batch.version <= heads[batch.partition]]
        if batches:
            came = True
            yield batches
        elif held is not None:
            break
    if held is not None:
        raise held


def _is_past(consumer: Consumer, heads: Mapping[int, int]) -> bool:
    return all(offset.version > heads[number] for (_, number), offset in consumer.position().items())


def group_batches(consumer: Consumer, *, heads: Mapping[int, int] | None = None) -> Iterator[Sequence[Batch]]:
    """What the polls of a group's member bring; with ``heads`` until its partitions have nothing before them.

    Args:
        consumer: of one topic, in a group.
        heads: by partition, the last commit to deliver; without it there is no end.

    Raises:
        BrokerlessError: as ``Consumer.poll``.
    """
    while True:
        with on_the_way():
            batches = consumer.poll(_POLL_S)
        # What was committed since belongs to the next run.
        batches = [batch for batch in batches if heads is None or batch.version <= heads[batch.partition]]
        if batches:
            yield batches
        elif heads is not None and consumer.settled and _is_past(consumer, heads):
            return
