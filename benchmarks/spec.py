"""The parameters of one run: a peer, a rate, a pacing, and the intended send time of each message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from benchmarks import messages

if TYPE_CHECKING:
    import pyarrow as pa

Pacing = Literal["smooth", "bursty"]
Backend = Literal["embedded", "minio", "s3"]

ZONES: Final = {"timezone1": "America/New_York", "timezone2": "Europe/Paris"}
"""The input topics with the time zones of their messages."""

OUTPUT: Final = "timezone_unified"
"""The output of the second hop: ``timestamp double`` (epoch milliseconds) and ``message string``."""

BURST: Final = 10_000
"""The published producer sends this many messages at once, then waits until it is on schedule again."""

MAX_PRODUCERS: Final = 100  # two digits in a message's id


@dataclass(frozen=True, slots=True)
class Spec:
    """The parameters of one run.

    Attributes:
        peer: a name in ``benchmarks.peers.PEERS``.
        rate: messages per second, over all producers.
        hops: 1: producer to reader; 2: with a pipeline in between, which parses the dates.
        pacing: ``smooth``, each message at its own time, or ``bursty``, as published.
        seconds: duration of sending, including the warm-up.
        warm_up_s: the first seconds, whose messages are not measured.
        commit_ms: the time between a producer's commits, and between those of a pipeline in real-time mode; brokers
            have their own (``Peer.tick_ms``), and micro-batches commit as fast as they can.
        payload_bytes: bytes added to each message.
        partitions: the number of partitions of each input topic.
        producers: sending processes; producer ``p`` sends to one partition only, so that its order can be checked.
        backend: the object store.
    """

    peer: str
    rate: int
    hops: Literal[1, 2] = 2
    pacing: Pacing = "smooth"
    seconds: float = 60.0
    warm_up_s: float = 30.0
    commit_ms: int = 100
    payload_bytes: int = 0
    partitions: int = 1
    producers: int = 2
    backend: Backend = "minio"

    @property
    def topics(self) -> list[str]:
        """Return the input topics that producers send to."""
        return list(ZONES)[: self.producers]

    def topic(self, producer: int) -> str:
        """Return the topic of a producer: the topics take turns."""
        return list(ZONES)[producer % len(ZONES)]

    def partition(self, producer: int) -> int:
        """Return the partition of its topic that a producer sends to."""
        return producer // len(ZONES) % self.partitions

    def count(self, producer: int) -> int:
        """Return the number of a producer's messages: rate times seconds, divided evenly, remainders to the first."""
        whole, rest = divmod(round(self.rate * self.seconds), self.producers)
        return whole + (producer < rest)

    def intended(self, first: int, end: int) -> np.ndarray:
        """Return the intended send times of a producer's messages ``first`` to ``end - 1``, in seconds after the start.

        Producers take turns, so a producer's message ``n`` is number ``n * producers`` of all. Bursty: the published
        producer sleeps after each message whose number is a multiple of ``BURST``.
        """
        number = np.arange(first, end, dtype=np.int64) * self.producers
        if self.pacing == "bursty":
            number = np.maximum(number - 1, 0) // BURST * BURST
        return number / self.rate

    def due(self, elapsed_s: float, producer: int) -> int:
        """Return how many of a producer's messages are due by then: the length of the prefix of ``intended``."""
        if elapsed_s < 0:
            return 0
        number = int(elapsed_s * self.rate + 1e-6)
        if self.pacing == "bursty":
            number = (number // BURST + 1) * BURST
        return min(self.count(producer), number // self.producers + 1)

    def build(self, producer: int, begin: float, first: int, end: int) -> pa.Table:
        """Return a producer's messages ``first`` to ``end - 1``: ``date``, ``message`` and ``_produced_at``."""
        intended_us = np.rint((begin + self.intended(first, end)) * 1e6).astype(np.int64)
        return messages.build(producer, first, intended_us, ZONES[self.topic(producer)], self.payload_bytes)
