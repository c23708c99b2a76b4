"""Compute what a workload does in a month: commits, requests, bytes and polls, from messages and settings.

``docs/cost.md`` explains the model. Its constants are those of the library, or were measured by ``benchmarks``. Where
the model is wrong it is wrong against brokerless: nothing is compressed, no poll takes time, every producer commits as
often as it may. Excluded: commits lost to another writer of the same partition, a GET and a PUT each. Standard library
only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from brokerless.cost.bill import GLUE_WORKER_SIZE, SECONDS_PER_MONTH, StorageClass
from brokerless.errors import ConfigError

Engine = Literal["glue", "emr-serverless", "own", "none"]
"""The service that runs the pipeline, as the option ``--engine`` names it. Glue and EMR Serverless run micro-batches.
``own`` is your own machine, which is not in the bill and can run real-time mode; ``none`` is no pipeline."""

Source = Literal["library", "url", "sqs", "kinesis"]
"""The source of messages, as the option ``--source`` names it: producers with the library, which only pay for requests,
or a service in front of the ingest function."""

LINGER_S: Final = 0.1
BATCH_ROWS: Final = 100_000
BATCH_BYTES: Final = 16 * 2**20
"""The producer's defaults."""

POLL_S: Final = 0.01
FLOWING_S: Final = 1.0
EARLY: Final = 0.8
RETENTION_CHECK_S: Final = 5.0
IDLE_POLL_S: Final = 0.25
PIPELINE_IDLE_POLL_S: Final = 0.25
"""How readers and pipelines poll for the next entry: the constants of the consumer and the Spark source."""

SHORTEST_GAP: Final = 0.9
"""The shortest of a reader's last eight gaps, as a share of their mean, where one writer keeps a table's rhythm.
Measured at 10 commits a second: 2.3 polls a commit; this gives 3. With several writers no rhythm is counted on."""

BATCHES_PER_S: Final = 6.5
"""The rate of micro-batches. Measured at 10,000 messages a second with an input of 20 commits a second; fewer at higher
rates."""

REALTIME_COMMIT_S: Final = 0.1
"""The default interval of real-time mode. The model assumes that it reaches any interval that is asked for."""

COMMIT_OVERHEAD_BYTES: Final = 1_350
"""The log's entry and the object's own header and footer. Measured: 450,000 messages took 8.18 MB in 900
commits and 12.41 MB in some 4,050."""

EXECUTOR_MESSAGES_PER_S: Final = 75_000
"""The assumed rate of executors with 2 vCPU: half of the 150,000 small messages a second that two cores reached in the
benchmark, beside the load and the reader."""

CANARY_EVERY_S: Final = 60.0
CLEAN_UP_EVERY_H: Final = 24.0
"""The default interval of maintenance's garbage collection."""

_SAME_S: Final = 1e-9  # ten times 0.01 is not quite 0.1


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload: messages, producers, readers and services. The fields have the names of the command's options.

    Attributes:
        messages_per_s: the rate of all producers and topics together, while messages come.
        message_bytes: the size of one message.
        hours_per_day: how long messages come each day. Everything that runs or polls does so all day.
        topics: the number of topics that producers write. A pipeline makes one topic of them.
        partitions: the partitions of each topic that producers write; the pipeline's output has one.
        producers: the number of programs (or instances of the ingest function) that commit.
        commits_per_s: the highest rate of commits of each producer.
        source: the source of messages.
        readers: the number of readers of the output, or of all topics without a pipeline.
        idle_poll_s: the longest time between two polls of a reader.
        retention_days: how long messages are retained, in input and output.
        engine: the service that runs the pipeline.
        commit_interval_s: the least time between two of the pipeline's commits; None: the default.
        workers: the number of workers with the driver; None: two up to 75,000 messages a second, and one more for each
            further 75,000 per 2 vCPU.
        worker_type: their size, in Glue's terms; on EMR Serverless it stands for as many vCPU and GB.
        storage_class: the storage class of the bucket.
        kms: whether the bucket has its own key.
        monitoring: whether metrics go to CloudWatch, with alarms and a dashboard.
        canary: whether a message is sent through the pipeline each minute.
        clean_up_every_h: how often maintenance looks for orphaned objects, which lists all objects.
        packed: whether producers of Kinesis put the messages of one commit into one record, or each message into its
            own. It does not matter to the others, whose clients send batches.

    Raises:
        ConfigError: a value is invalid.
    """

    messages_per_s: float = 1000.0
    message_bytes: int = 200
    hours_per_day: float = 24.0
    topics: int = 1
    partitions: int = 1
    producers: int = 1
    commits_per_s: float = 1 / LINGER_S
    source: Source = "library"
    readers: int = 1
    idle_poll_s: float = IDLE_POLL_S
    retention_days: float = 7.0
    engine: Engine = "glue"
    commit_interval_s: float | None = None
    workers: int | None = None
    worker_type: str = "G.025X"
    storage_class: StorageClass = "standard"
    kms: bool = True
    monitoring: bool = True
    canary: bool = True
    clean_up_every_h: float = CLEAN_UP_EVERY_H
    packed: bool = True

    def __post_init__(self) -> None:
        self._check("messages_per_s", least=0, most=1e9)
        self._check("message_bytes", least=1, most=2**30)
        self._check("hours_per_day", least=0, most=24)
        for name in ("topics", "partitions", "producers"):
            self._check(name, least=1, most=1e6)
        self._check("readers", least=0, most=1e6)
        self._check("commits_per_s", least=1e-6, most=1e6)
        self._check("idle_poll_s", least=POLL_S, most=86_400)
        self._check("retention_days", least=0, most=36_500)
        self._check("clean_up_every_h", least=0.25, most=24 * 365)
        for name, choices in (
            ("source", get_args(Source)),
            ("engine", get_args(Engine)),
            ("storage_class", get_args(StorageClass)),
            ("worker_type", tuple(GLUE_WORKER_SIZE)),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}.")
        if self.commit_interval_s is not None:
            self._check("commit_interval_s", least=0.001, most=86_400)
        if self.workers is not None:
            self._check("workers", least=2, most=10_000)

    def _check(self, name: str, *, least: float, most: float) -> None:
        value = getattr(self, name)
        if not (math.isfinite(value) and least <= value <= most):
            raise ConfigError(f"{name} must be {least:g} to {most:,.0f}, got {value:g}.")

    @property
    def hops(self) -> int:
        """The number of hops from producers to readers: 1, or 2 with a pipeline."""
        return 1 if self.engine == "none" else 2

    @property
    def active(self) -> float:
        """The share of the month in which messages come."""
        return self.hours_per_day / 24 if self.messages_per_s else 0.0

    @property
    def messages_per_month(self) -> float:
        """The number of messages a month."""
        return self.messages_per_s * self.active * SECONDS_PER_MONTH

    @property
    def bytes_per_s(self) -> float:
        """The bytes of messages a second, while messages come."""
        return self.messages_per_s * self.message_bytes

    @property
    def mean_bytes_per_s(self) -> float:
        """The bytes of messages a second, as a mean over the month."""
        return self.bytes_per_s * self.active

    @property
    def has_canary(self) -> bool:
        """Whether there is a canary; it needs a pipeline."""
        return self.canary and self.hops > 1

    @property
    def commits_in_per_s(self) -> float:
        """The commits of all producers a second, while messages come."""
        full = max(self.bytes_per_s / BATCH_BYTES, self.messages_per_s / BATCH_ROWS)
        return min(max(self.producers * self.commits_per_s, full), self.messages_per_s)

    @property
    def messages_per_commit(self) -> float:
        """The mean number of messages in a producer's commit; 0 if there are no messages."""
        return self.messages_per_s / self.commits_in_per_s if self.messages_per_s else 0.0

    @property
    def commits_out_per_s(self) -> float:
        """The commits of the pipeline a second, while messages come; 0 without a pipeline."""
        if self.hops == 1:
            return 0.0
        realtime = self.engine == "own"
        interval_s = self.commit_interval_s or (REALTIME_COMMIT_S if realtime else 1 / BATCHES_PER_S)
        return min(self.commits_in_per_s, 1 / interval_s, math.inf if realtime else BATCHES_PER_S)

    @property
    def commits_per_month(self) -> tuple[float, float]:
        """The commits of producers and of the pipeline a month, with those of the canary."""
        canary = SECONDS_PER_MONTH / CANARY_EVERY_S if self.has_canary else 0.0
        active_s = self.active * SECONDS_PER_MONTH
        return self.commits_in_per_s * active_s + canary, self.commits_out_per_s * active_s + canary

    @property
    def worker_count(self) -> int:
        """The number of the pipeline's workers with its driver; 0 if it does not run on Glue or EMR Serverless."""
        if self.engine in {"own", "none"}:
            return 0
        if self.workers is not None:
            return self.workers
        each = EXECUTOR_MESSAGES_PER_S * GLUE_WORKER_SIZE[self.worker_type][0] / 2
        return 1 + max(1, math.ceil(self.messages_per_s / each))

    @property
    def input_tables(self) -> int:
        """The number of tables that producers write."""
        return self.topics * self.partitions

    @property
    def output_tables(self) -> int:
        """The number of tables that the pipeline writes, without dead letters."""
        return self.hops - 1

    @property
    def gets_per_month(self) -> tuple[float, float]:
        """The GETs of entries and objects a month: of the pipeline, and of the readers."""
        commits_in, commits_out = self.commits_per_month
        read = commits_out if self.hops > 1 else commits_in
        return 2 * commits_in if self.hops > 1 else 0.0, 2 * read * self.readers

    @property
    def polls_per_month(self) -> tuple[float, float]:
        """The GETs of entries that do not exist yet: of the pipeline, and of the readers."""
        several = self.producers > self.input_tables
        share = 0.0 if several else SHORTEST_GAP
        if self.hops == 1:
            return 0.0, self._polls(self.commits_in_per_s, self.input_tables, self.idle_poll_s, share) * self.readers
        return (
            self._polls(self.commits_in_per_s, self.input_tables, PIPELINE_IDLE_POLL_S, share),
            self._polls(self.commits_out_per_s, self.output_tables, self.idle_poll_s, SHORTEST_GAP) * self.readers,
        )

    def _polls(self, commits_per_s: float, tables: int, idle_max_s: float, share: float) -> float:
        """Return the polls of one reader of all tables; commits are spread evenly, and the canary's go to one table."""
        canary = 1 / CANARY_EVERY_S if self.has_canary else 0.0
        flowing = polls_per_s(commits_per_s / tables, idle_max_s, shortest_gap=share) * tables
        idle = polls_per_s(canary, idle_max_s) + polls_per_s(0, idle_max_s) * (tables - 1)
        return (flowing * self.active + idle * (1 - self.active)) * SECONDS_PER_MONTH

    @property
    def stored_bytes(self) -> float:
        """The bytes in the bucket after the retention: uncompressed rows, and each commit's overhead."""
        days_per_month = SECONDS_PER_MONTH / 86_400
        overhead = sum(self.commits_per_month) / days_per_month * COMMIT_OVERHEAD_BYTES
        return (self.mean_bytes_per_s * 86_400 * self.hops + overhead) * self.retention_days

    @property
    def stored_objects(self) -> float:
        """The number of objects that hold messages."""
        return sum(self.commits_per_month) / (SECONDS_PER_MONTH / 86_400) * self.retention_days


def polls_per_s(commits_per_s: float, idle_max_s: float, *, shortest_gap: float = SHORTEST_GAP) -> float:
    """Return how often a reader of one table asks for an entry that does not exist yet.

    After an entry it waits for four fifths of the shortest of the last gaps, ``idle_max_s`` at most; then it asks every
    10 ms, and after a second in intervals that double up to ``idle_max_s``. At 10 commits a second that is 3 polls a
    commit; without commits it is 1 / ``idle_max_s``, and a read of the checkpoint every 5 s.

    Args:
        commits_per_s: the mean rate of commits to the table.
        idle_max_s: the reader's longest interval.
        shortest_gap: the shortest of the last gaps as a share of their mean; 0 if commits have no rhythm.
    """
    ceiling = max(idle_max_s, POLL_S)
    if commits_per_s <= 0:
        return 1 / ceiling + 1 / RETENTION_CHECK_S
    gap = 1 / commits_per_s
    at, wait, polls = min(EARLY * shortest_gap * gap, ceiling), POLL_S, 0
    while gap - at > _SAME_S and wait < ceiling:
        polls += 1
        if at > FLOWING_S:
            wait = min(wait * 2, ceiling)
        at += wait
    polls += max(0, math.ceil((gap - at - _SAME_S) / ceiling)) + int(gap // RETENTION_CHECK_S)
    return polls * commits_per_s
