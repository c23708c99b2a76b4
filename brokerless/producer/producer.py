"""Producers: messages in, acknowledgements with offsets out; one file, because its calls share a buffer and a schema.

An acknowledgement means: committed. What is not acknowledged is named row by row in ``DeliveryFailed``. One commit is
one Parquet object and one log entry, in this order: a crash between the two leaves an object that maintenance removes.

Identity. Without ``producer_id`` a producer never repeats a commit by itself (a lost answer is resolved by commit id),
but a caller that sends the same rows again after a crash writes them again. With a ``producer_id`` each commit carries
``txn(producer_id, sequence)``; a new producer with the same id advances the id's epoch when it first touches a
partition, so that the old one is fenced; and ``send(rows, sequence=n)`` writes nothing where sequence n is in the log.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.columns import records
from brokerless.deadlines import carried, requests_within
from brokerless.errors import (
    BrokerlessError,
    ConfigError,
    MessageError,
    NotCommitted,
    ProducerFenced,
    SchemaError,
    TopicChanged,
    UsageError,
)
from brokerless.forks import is_copy, refuse_copy
from brokerless.log.log import DEADLINE_S, shared
from brokerless.offsets import Ack
from brokerless.producer import unclosed
from brokerless.producer.buffer import Buffer, Call
from brokerless.producer.split import split
from brokerless.producer.writer import PartitionWriter, checked_id
from brokerless.schema import Schema
from brokerless.topics import open_topic, store_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from arro3.core import Table

    from brokerless.columns.records import Messages
    from brokerless.settings import Settings
    from brokerless.store import Store
    from brokerless.topics import Topic

MAX_COMMIT_ROWS: Final = 1_000_000
"""A commit is never split by a reader, so its size bounds the smallest batch that every reader must hold."""

MAX_COMMIT_BYTES: Final = records.MAX_DECODED_BYTES // 4
"""Of Arrow memory: an object that unpacks to more than ``MAX_DECODED_BYTES`` is refused by every reader."""

_Outcome = tuple[int, int, bool] | BrokerlessError


class Producer:
    """Writes messages to one topic. For threads of one process: after a fork, the child needs a producer of its own.

    Args:
        topic: an existing topic, by its name or as it was opened (``describe_topic``).
        settings: where; read from the environment by default.
        producer_id: a name that outlives this process; enables exact restarts and fencing (see the module). Not of the
            form ``name:topic:partition`` (and a table id), which is for pipelines.
        namespace: for gateways that pass on ids from outside: the id is ``<namespace>/<producer_id>`` then, and no
            producer without that namespace can have it.
        key: the column whose value decides the partition. Without it whole commits go to the partitions in turn, or
        partition: all to this one, which keeps their order.
        linger_s: how long ``enqueue`` waits for company before a commit.
        batch_rows, batch_bytes: ``enqueue`` commits when this much waits, whatever the time.
        buffer_bytes: how much may wait, in bytes of Arrow memory; beyond it ``enqueue`` blocks.
        delivery_timeout_s: how long one commit is tried, from the call of ``send`` or the end of the linger on; and how
            long opening may take. A call ends at most one second later.
        store: instead of the one that the settings name.
        clock: time, randomness and sleeping.

    Raises:
        TopicNotFound, TopicChanged, ConfigError, SchemaError: at once, before anything is written.
    """

    def __init__(
        self,
        topic: str | Topic,
        *,
        settings: Settings | None = None,
        producer_id: str | None = None,
        namespace: str | None = None,
        key: str | None = None,
        partition: int | None = None,
        linger_s: float = 0.1,
        batch_rows: int = 100_000,
        batch_bytes: int = 16 * 2**20,
        buffer_bytes: int = 64 * 2**20,
        delivery_timeout_s: float = DEADLINE_S,
        store: Store | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if min(batch_rows, batch_bytes, buffer_bytes) < 1 or linger_s < 0 or delivery_timeout_s <= 0:
            raise ConfigError("batch_rows, batch_bytes, buffer_bytes and delivery_timeout_s must be positive.")
        producer_id = checked_id(producer_id, namespace)
        self._opened_in = os.getpid()
        self._clock = clock
        with requests_within(delivery_timeout_s):
            about = open_topic(store_of(topic, settings, store), topic, clock=clock)
        self.topic = about.name
        self.schema = about.schema
        self.partitions = about.partitions
        if partition is not None and (key is not None or not 0 <= partition < about.partitions):
            raise ConfigError(
                f"Topic {about.name!r} has the partitions 0 to {about.partitions - 1}; name one of them, or a key, not "
                "both."
            )
        if key is not None and key not in about.schema.names:
            raise SchemaError(
                f"Topic {about.name!r} has no column {key!r} to use as a key; it has: {', '.join(about.schema.names)}."
            )
        self._key = key
        self._partition = partition
        self._timeout_s = delivery_timeout_s
        self._writers = [PartitionWriter(shared(log), producer_id, clock) for log in about.logs]
        self._next = clock.rng.randrange(self.partitions)
        batch_rows, batch_bytes = min(batch_rows, MAX_COMMIT_ROWS), min(batch_bytes, MAX_COMMIT_BYTES)
        self._buffer = Buffer(linger_s, batch_rows, batch_bytes, buffer_bytes)
        self._start_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._fenced: ProducerFenced | None = None
        self._sender: threading.Thread | None = None
        self._pool = ThreadPoolExecutor(min(self.partitions, 16))
        unclosed.watch(self, self._buffer, self._opened_in)

    def send(self, messages: Messages, *, sequence: int | None = None) -> tuple[Ack, ...]:
        """Commits the messages now and returns when they are in the log: one acknowledgement a partition.

        Args:
            messages: one message as a dictionary (``{"user": "ada"}``), a list of them, a dictionary of columns
                (``{"user": ["ada", "bob"]}``), or an Arrow table or batch of any library.
            sequence: for a producer with an id: this call's number, growing from call to call. Sending the same
                messages with the same sequence again (after a crash, after an unknown outcome) writes only what is
                missing; acknowledgements of the rest have ``duplicate`` set. Calls without a sequence take the next.

        Raises:
            SchemaError, MessageError: nothing was written.
            UsageError: this process was forked from the one that opened the producer; too many messages for one call;
                or a sequence that was passed over: the log can no longer take it in, nor tell whether it has it.
            ProducerFenced, TopicDeleted: this producer can write nothing more.
            DeliveryFailed: some messages are not acknowledged; it says which, and whether they may still appear.
        """
        refuse_copy(self._opened_in, "producer")
        if sequence is not None and (self._writers[0].producer_id is None or sequence < 0):
            raise ConfigError("A sequence needs a producer with a producer_id, and is 0 or more.")
        if self._buffer.closed:
            raise BrokerlessError("The producer is closed.")
        call = self._prepare(messages, sequence)
        if call.table.num_rows == 0:
            return ()
        self._commit([call], sequence)
        call.settle(self.topic)
        return call.future.result()

    def enqueue(self, messages: Messages, *, max_block_s: float | None = None) -> Future[tuple[Ack, ...]]:
        """Buffers the messages; they are committed with others after ``linger_s`` at the latest.

        Calls are committed in their order; a ``send`` in between goes past them (``flush`` first). The future's result
        and errors are those of ``send``. A call whose outcome is unknown does not stop the ones behind it: whether it
        lands or not, it stands before them.

        Args:
            messages: as for ``send``.
            max_block_s: how long to wait while the buffer is full; the delivery timeout by default.

        Raises:
            SchemaError, MessageError: at once; nothing was buffered.
            BufferFull: the buffer stayed full; nothing was buffered.
        """
        refuse_copy(self._opened_in, "producer")
        call = self._prepare(messages)
        if call.table.num_rows == 0:
            call.future.set_result(())
            return call.future
        # Before the call is in: who closes the producer waits for the thread, and must find it.
        with self._start_lock:
            if self._sender is None:
                sender = threading.Thread(
                    target=unclosed.run, args=(self._buffer, self._clock), name=f"producer-{self.topic}", daemon=True
                )
                sender.start()
                self._sender = sender
        self._buffer.put(call, self._timeout_s if max_block_s is None else max_block_s)
        return call.future

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when everything that was enqueued before has been settled, one way or the other.

        Raises:
            TimeoutError: it was not, in this time.
            UsageError: called by a future's callback, which what it waits for must wait for.
        """
        refuse_copy(self._opened_in, "producer")
        self._refuse_callback("flush")
        if not self._buffer.flush(timeout_s):
            raise TimeoutError(f"Messages for {self.topic!r} are still waiting after {timeout_s} s.")

    def claim(self) -> None:
        """Take over the producer id now, in every partition that this producer may write to.

        An older producer that has the id is stopped. Without it, a producer takes over a partition when it first writes
        to it. Whoever decides by ``last_sequence`` what to send claims first: until then the older one may still write.

        Raises:
            ConfigError: this producer has no ``producer_id``.
            ProducerFenced: a younger producer has taken the id over from this one.
            TopicDeleted, NotCommitted, CommitUnknown, StoreError: it could not be taken over everywhere.
        """
        refuse_copy(self._opened_in, "producer")
        if self._writers[0].producer_id is None:
            raise ConfigError("Only a producer with a producer_id can claim it.")
        if self._fenced is not None:
            raise self._fenced
        for writer in self._writers if self._partition is None else [self._writers[self._partition]]:
            with requests_within(self._timeout_s):
                writer.own(self._timeout_s)

    def last_sequence(self, partition: int = 0) -> int | None:
        """Return the last sequence of this producer id in the log, or None if there is none. Nothing is written.

        A restarted producer goes on behind it. Call ``claim`` first where an older one may still be running.

        Raises:
            TopicChanged, TopicDeleted: the topic is not the one that was opened.
            StoreError: the log could not be read.
        """
        refuse_copy(self._opened_in, "producer")
        with requests_within(self._timeout_s):
            return self._writers[partition].last_sequence()

    def confirm(self) -> None:
        """Proves from the log that the topic is still the one that was opened, with the same columns: two GETs.

        To be called before a message is refused for its columns: another topic of this name may take it.

        Raises:
            TopicChanged: it is not. Open the producer again, or take over the columns (``refresh_schema``).
            StoreError: the log could not be read.
        """
        if self._schema_now() != self.schema:
            raise TopicChanged(f"Topic {self.topic!r} has more columns since this producer was opened.")

    def refresh_schema(self) -> Schema:
        """Take over columns that were added to the topic since this producer was opened, and return them all.

        A producer does so by itself when it meets a message that does not fit.

        Raises:
            TopicChanged, TopicDeleted: the topic is not the one that was opened.
            StoreError: the log could not be read.
        """
        self.schema = self._schema_now()
        return self.schema

    def _schema_now(self) -> Schema:
        # Partition 0 is deleted last and created last, and gets new columns last.
        with requests_within(self._timeout_s):
            return Schema.from_delta(self._writers[0].log.confirm().metadata.schema_string)

    @property
    def conflicts(self) -> int:
        """How many conditional PUTs were sent in vain since this producer was opened: mostly, others came first."""
        return sum(writer.conflicts for writer in self._writers)

    def close(self) -> None:
        """Commits what is buffered and stops. Later calls fail.

        In a forked process it does nothing: what is buffered is the parent's to commit.

        Raises:
            UsageError: called by a future's callback, which what it waits for must wait for.
        """
        if is_copy(self._opened_in):
            return
        self._refuse_callback("close")
        self._buffer.close()
        if self._sender is not None:
            self._sender.join()
        self._pool.shutdown()
        unclosed.forget(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _prepare(self, messages: Messages, sequence: int | None = None) -> Call:
        known = self.schema
        try:
            table = self._table(messages)
        except (SchemaError, MessageError):
            # Perhaps they do fit, and it is the columns that this producer remembers which are not the topic's.
            # guard: a misfit is compared with the columns of now
            if self.refresh_schema() == known:
                raise
            table = self._table(messages)
        if table.num_rows > MAX_COMMIT_ROWS or table.nbytes > MAX_COMMIT_BYTES:
            raise UsageError(
                f"{table.num_rows} messages with {table.nbytes} bytes in one call; send at most {MAX_COMMIT_ROWS} "
                f"messages and {MAX_COMMIT_BYTES} bytes at a time."
            )
        parts: dict[int | None, tuple[Table, Sequence[int]]] = {None: (table, range(table.num_rows))}
        if self._key is not None and self.partitions > 1:
            # Rows without a key: an exact resend must cut them as the first time, or it loses or repeats them.
            spare = self._turn() if sequence is None else sequence % self.partitions
            parts = split(table, self._key, self.partitions, spare)
        return Call(table, parts, self, at=self._clock.monotonic())

    def _table(self, messages: Messages) -> Table:
        return records.to_table(messages, self.schema, topic=self.topic, produced_at_us=self._clock.time_us())

    def _turn(self) -> int:
        self._next = (self._next + 1) % self.partitions
        return self._next

    def _settle(self, calls: Sequence[Call]) -> None:
        defect: BaseException | None = None
        try:
            self._commit(calls, None)
        except BaseException as error:  # the callers must hear of it, and the thread must live on
            defect = error
        for call in calls:
            with contextlib.suppress(BaseException):  # a callback that exits does not end this thread
                call.settle(self.topic) if defect is None else call.future.set_exception(defect)
        self._buffer.done(calls)
        if unheard := [call for call in calls if call.errors or defect]:
            unclosed.warn_unheard(self.topic, unheard, defect)

    def _refuse_callback(self, what: str) -> None:
        if threading.current_thread() is self._sender:
            raise UsageError(
                f"A callback cannot {what} its producer: that waits for the callback. Do it in another thread."
            )

    def _commit(self, calls: Sequence[Call], sequence: int | None) -> None:
        """Commits the calls together, one entry a partition, and notes in each what became of it."""
        deadline = self._clock.monotonic() + self._timeout_s
        if not self._commit_lock.acquire(timeout=min(self._timeout_s, threading.TIMEOUT_MAX)):
            error = NotCommitted(
                f"Other calls of this producer for {self.topic!r} took the {self._timeout_s:g} s of this one; nothing "
                "of it was written. Send less at a time, or raise delivery_timeout_s."
            )
            for call in calls:
                call.fail(error, range(call.table.num_rows))
            return
        try:
            with requests_within(deadline - self._clock.monotonic()):
                self._commit_in_turn(calls, sequence, deadline)
        finally:
            self._commit_lock.release()

    def _commit_in_turn(self, calls: Sequence[Call], sequence: int | None, deadline: float) -> None:
        # An exact resend must meet its earlier self, so a sequence without a key has a fixed partition.
        turn = self._partition
        if turn is None:
            # guard: an exact repetition goes to the same partition
            turn = self._turn() if sequence is None else sequence % self.partitions
        shares: dict[int, list[tuple[Call, Table, Sequence[int]]]] = {}
        for call in calls:
            for partition, (table, rows) in call.parts.items():
                shares.setdefault(turn if partition is None else partition, []).append((call, table, rows))

        def write(partition: int) -> _Outcome:
            # Fenced in one partition, fenced in all: the successor may be yet to come to the others.
            if self._fenced is not None:
                return self._fenced
            try:
                return self._writers[partition].write([table for _, table, _ in shares[partition]], sequence, deadline)
            except ProducerFenced as error:
                self._fenced = error
                return error
            except BrokerlessError as error:
                return error

        futures: dict[int, Future[_Outcome]] = {}
        try:
            for partition in shares if len(shares) > 1 else ():
                # No thread takes anything more while the interpreter ends.
                with contextlib.suppress(RuntimeError):
                    futures[partition] = self._pool.submit(carried(write), partition)
            wait(futures.values())
        finally:
            wait(futures.values())  # after an interrupt, too: a later call must not overtake what is on its way
        outcomes = {p: futures[p].result() if p in futures else write(p) for p in shares}
        for partition, share in shares.items():
            outcome = outcomes[partition]
            if isinstance(outcome, BrokerlessError):
                for call, _, rows in share:
                    call.fail(outcome, rows)
                continue
            version, index, duplicate = outcome
            for call, table, _ in share:
                call.acks.append(Ack(self.topic, partition, version, index, table.num_rows, duplicate))
                index += table.num_rows
