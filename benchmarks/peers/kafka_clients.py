"""Native clients of Kafka: librdkafka's producer and consumer, and the values of messages.

A sender's queue contains the messages that are not acknowledged, so messages that left it without an error are
acknowledged. That count is exact and needs no call into Python for each message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import messages
from benchmarks.peers.base import PeerError
from benchmarks.peers.checks import SAMPLE, TimestampCheck

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.spec import Spec

SEPARATOR: Final = b"\t"
"""The separator of a value's two fields: date and message in the input, timestamp and message in the output."""

_ID_WIDTH: Final = len("00-") + messages.ID_DIGITS

# Clients repeat on standard error that their broker has ended; ``check`` reports it once, with the reason.
CLIENT_CONF: Final = {"log_level": 2}
_QUEUED: Final = 1_000_000
_PRODUCER_CONF: Final = {
    **CLIENT_CONF,
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "batch.size": 2**20,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": _QUEUED,
    "queue.buffering.max.kbytes": 2**20,
    # Measured at 60,000 messages per second: it needs less processor time in producer, broker and reader.
    "compression.type": "lz4",
    "delivery.report.only.error": True,
}
_CONSUMER_CONF: Final = {
    **CLIENT_CONF,
    "group.id": "reader",
    "enable.auto.commit": False,
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 100,
    "fetch.message.max.bytes": 16 * 2**20,
    # Prefetched messages beyond a limit pause a partition for a whole second by default.
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 512 * 2**10,
}


def values(rows: pa.Table) -> list[bytes]:
    """Return the value of each row: date, separator, message.

    Raises:
        ValueError: the rows do not have the same width, as the benchmark's messages have.
    """
    if not rows.num_rows:
        return []
    joined = pc.binary_join_element_wise(
        rows.column("date").cast(pa.binary()), rows.column("message").cast(pa.binary()), SEPARATOR
    )
    # In bulk, by NumPy's fixed-width strings: to_pylist would first make an Arrow scalar of each.
    found: list[bytes] = []
    for chunk in joined.chunks:
        lengths = pc.binary_length(chunk)
        width = pc.max(lengths).as_py()
        if width != pc.min(lengths).as_py():
            raise ValueError(f"All messages must have one width, got {pc.min(lengths)} to {width} bytes.")
        begin = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset]
        found += np.frombuffer(chunk.buffers()[2], f"S{width}", count=len(chunk), offset=begin).tolist()
    return found


def ids(found: Sequence[bytes], payload_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the producers and numbers of values, whose messages are their last bytes.

    Raises:
        ValueError: a value is null, or has another format.
    """
    array = pa.array(found, pa.binary())
    ends = np.frombuffer(array.buffers()[1], np.int32)[1 : len(array) + 1]
    begins = ends - _ID_WIDTH - payload_bytes
    text = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    short = np.diff(ends, prepend=0) <= _ID_WIDTH + payload_bytes
    if short.any() or (text[begins - 1] != SEPARATOR[0]).any():
        wrong = short if short.any() else text[begins - 1] != SEPARATOR[0]
        raise ValueError(f"A value must be a field, a tab and a message, got {found[int(np.argmax(wrong))]!r}.")
    heads = np.ascontiguousarray(text[begins[:, None] + np.arange(_ID_WIDTH)])
    offsets = np.arange(0, heads.size + 1, _ID_WIDTH, dtype=np.int32)
    return messages.ids(pa.StringArray.from_buffers(len(array), pa.py_buffer(offsets), pa.py_buffer(heads)))


class KafkaSender:
    """A producer that queues its messages and does not wait for the broker."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._bootstrap, self._topic, self._partition = bootstrap, topic, partition

    def open(self) -> None:
        from confluent_kafka import Producer

        self._handed = self._failed = self._acknowledged = 0
        self._producer = Producer(
            {**_PRODUCER_CONF, "bootstrap.servers": self._bootstrap, "on_delivery": self._on_failure}
        )
        self._producer.list_topics(self._topic, timeout=30)  # connects

    def send(self, rows: pa.Table) -> int:
        all_values = values(rows)
        for begin in range(0, len(all_values), _QUEUED // 10):
            batch: list[dict[str, Any]] = [{"value": value} for value in all_values[begin : begin + _QUEUED // 10]]
            while len(self._producer) + len(batch) > _QUEUED:
                self._producer.poll(0.01)
            queued = self._producer.produce_batch(self._topic, batch, partition=self._partition)
            if queued != len(batch):
                raise PeerError(
                    f"Kafka's producer accepted {queued} of {len(batch)} messages: {batch[queued].get('_error')}"
                )
            self._handed += queued
        self._producer.poll(0)
        return self._count()

    def close(self) -> int:
        unsent = self._producer.flush(60)
        new = self._count()
        if not unsent:
            self._producer.close()  # it would wait for them forever
        return new

    def _count(self) -> int:
        acknowledged = self._handed - self._failed - len(self._producer)
        new = max(0, acknowledged - self._acknowledged)  # the queue also contains other events for a moment
        self._acknowledged += new
        return new

    def _on_failure(self, error: object, _message: object) -> None:
        if error is not None:
            self._failed += 1


class KafkaReceiver:
    """A consumer of all partitions from their beginning; for a pipeline's output, it checks some of the timestamps."""

    def __init__(self, bootstrap: str, partitions: Mapping[str, Sequence[int]], spec: Spec) -> None:
        self._bootstrap, self._partitions = bootstrap, partitions
        self._payload_bytes = spec.payload_bytes
        self._check = TimestampCheck(spec) if spec.hops > 1 else None

    def open(self) -> None:
        import confluent_kafka as ck

        self._ck = ck
        self._consumer = ck.Consumer({**_CONSUMER_CONF, "bootstrap.servers": self._bootstrap})
        # Without a group: there is only one consumer, and a group's first rebalance would take seconds.
        self._consumer.assign(
            [ck.TopicPartition(t, p, ck.OFFSET_BEGINNING) for t, ps in self._partitions.items() for p in ps]
        )

    def poll(self, max_wait_s: float) -> list[tuple[np.ndarray, np.ndarray]]:
        # Wait for one message and take those that arrived with it; consume() alone would wait until its list is full.
        first = self._consumer.poll(max_wait_s)
        if first is None:
            return []
        found = [first, *self._consumer.consume(50_000, timeout=0)]
        for error in filter(None, map(self._ck.Message.error, found)):
            raise self._ck.KafkaException(error)
        texts = list(map(self._ck.Message.value, found))
        who, which = ids(texts, self._payload_bytes)
        if self._check:
            rows = np.unique(np.linspace(0, len(texts) - 1, SAMPLE).astype(np.int64))
            stamps = np.array([float(texts[row].split(SEPARATOR, 1)[0]) for row in rows])
            self._check.check(who[rows], which[rows], stamps)
        return [(who, which)]

    def close(self) -> None:
        self._consumer.close()
