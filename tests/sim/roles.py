"""Who lives in the simulated world: each role is a program that is started again whenever it dies.

A role's own fields are what a real program keeps outside of itself (its input, its notes, a saved offset). Everything
else is lost with the incarnation. Where an incarnation stands still for long, its role may start another one beside it,
as a scheduler would: the old one wakes up as a zombie.
"""

from __future__ import annotations

import json
import random
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from brokerless.alter import alter_topic, limits_of
from brokerless.columns import records
from brokerless.consumer import Consumer
from brokerless.errors import (
    BrokerlessError,
    CommitError,
    CommitUnknown,
    DeliveryFailed,
    Fenced,
    LogIncomplete,
    OffsetOutOfRange,
    PipelineError,
    SchemaError,
    StoreError,
    TopicChanged,
    TopicError,
    TopicExists,
    TopicNotFound,
    UsageError,
)
from brokerless.ingest.batches import BatchIngest, Routes, SourceMessage
from brokerless.ingest.http import HttpIngest, HttpRequest
from brokerless.log.lifecycle import epoch_of
from brokerless.log.log import FRESH_S, DeltaLog
from brokerless.log.rewrite import RewriteConflict
from brokerless.log.tail import RETENTION_CHECK_S
from brokerless.maintenance.erasure import erase_messages
from brokerless.maintenance.maintainer import Maintainer
from brokerless.metrics import Meter
from brokerless.producer.pool import ProducerPool
from brokerless.producer.producer import Producer
from brokerless.schema import Schema, dead_letters, partition_table
from brokerless.spark.arrow import DEAD_LETTER
from brokerless.spark.inputs import first_position, open_inputs
from brokerless.spark.messages import METADATA, columns_of
from brokerless.spark.outputs import OutputLog, PipelineOutputs, UploadedFiles
from brokerless.spark.progress import SourceOffset, owner_id
from brokerless.spark.realtime.feed import Feed
from brokerless.spark.realtime.packer import Packer
from brokerless.spark.source import Reader
from brokerless.testing.history.events import Event
from brokerless.topics import create_topic, delete_topic
from tests.sim.bucket import Connection, before
from tests.sim.world import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from brokerless.clock import Clock
    from brokerless.offsets import Ack, Offset
    from brokerless.spark.progress import Position
    from brokerless.spark.realtime.feed import Piece
    from brokerless.spark.realtime.packer import Committed, Pack
    from tests.sim.bucket import Bucket
    from tests.sim.world import Process, World

TOPIC: Final = "t"
OUTPUT: Final = "o"
PIPELINE: Final = "pipe"
SCHEMA: Final = Schema.parse("n long")
WIDER: Final = Schema.parse("n long, m long")
MOST_PARTITIONS: Final = 3

RETENTION_S: Final = 3600.0
GRACE_S: Final = 3600.0

ROWS: Final = 100  # numbers that one batch of a role's input may use
BATCHES: Final = 1000
_MOST_LIVE: Final = 10  # incarnations of one role, beside which no further one is started

AGAIN_US: Final = int((FRESH_S + RETENTION_CHECK_S + 1) * SECOND)
"""Who met the end of everything looks again after this long: by then a reader has asked whether it was overtaken, and
whether its table is still there."""


@dataclass(slots=True)
class Stage:
    """What the roles of one seed share."""

    world: World
    bucket: Bucket
    partitions: int
    leaps: float
    """How often somebody waits for minutes or hours, so that there is something to maintain."""
    recreated: bool = False
    by_hand: bool = False
    """Whether that is done by removing the folder, so that the log does not know."""
    events: list[Event] = field(default_factory=list)
    rewriting: bool = False
    """Whether maintenance merges and removes old messages, and somebody erases some."""
    erasures: list[tuple[frozenset[int], int, float]] = field(default_factory=list)
    """Which messages were to be erased, when that began, and when it was done (infinity: never known to be)."""
    opened_us: dict[str, int | None] = field(default_factory=dict)
    """When the processes of the history had opened their topic."""
    roles: list[Role] = field(default_factory=list)

    def erased(self) -> frozenset[int]:
        """Messages that may be gone."""
        return frozenset(one for ids, _, _ in self.erasures for one in ids)

    def working(self, *kinds: type[Role]) -> bool:
        """Whether a role of these kinds is not done yet, or has a zombie that may still wake up."""
        return any(isinstance(role, kinds) and (role.live or not role.done) for role in self.roles)

    def creations(self, before_us: int) -> list[bytes]:
        """The entries by which the topic had been created by then."""
        entries = (written for written in self.bucket.entries if written.path.startswith(f"{TOPIC}/"))
        return [w.data for w in entries if w.at_us <= before_us and b'"CREATE TABLE"' in w.data]

    def created(self, before_us: int) -> int:
        """How often the topic had been created by then."""
        return len(self.creations(before_us))

    def record(self, process: Process, op: Any, outcome: Any, **fields: Any) -> None:
        """Adds to the history."""
        self.events.append(Event(self.world.now_us, process.name, op, outcome, **fields))
        self.opened_us[process.name] = process.opened_us


class Role:
    """A program and its incarnations."""

    name = "role"
    failover = False
    """Whether another incarnation is started beside one that stands still."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage = stage
        self.world = stage.world
        self.name = self.app_id = f"{type(self).name}{number}"
        self.done = False
        self.live = 0
        self.starts = 0
        self.missed = 0
        stage.roles.append(self)

    def start(self, after_us: int = 0) -> None:
        """Starts an incarnation."""
        process = self.world.spawn(self.name, self._run, after_us=after_us)
        process.connection = Connection(self.stage.bucket, process)
        process.on_pause = self._paused
        self.live += 1

    def body(self, process: Process) -> None:
        """One incarnation's life; ends with an error, or by being done."""
        raise NotImplementedError

    def think(self, process: Process) -> None:
        """Time between two doings: milliseconds mostly, an hour or two at times."""
        rng = self.world.rng
        if rng.random() < self.stage.leaps:
            process.wait(rng.randrange(60 * SECOND, 6000 * SECOND))
        else:
            process.wait(rng.randrange(SECOND // 10) if rng.random() < 0.9 else rng.randrange(8 * SECOND))

    def _run(self, process: Process) -> None:
        try:
            self.body(process)
        except BrokerlessError as error:
            self.world.trace.add(self.world.now_us, process.name, "ends", "", f"{type(error).__name__}: {error}")
            self.world.counts[f"ended by {type(error).__name__}"] += 1
            self.judge(process, error)
        finally:
            self.live -= 1
            if not self.done and self.live == 0 and not self.world.over:
                # A program that dies again and again is started less and less often.
                self.starts += 1
                self.start(self.world.rng.randrange(1, 2 * SECOND) << min(self.starts // 3, 12))

    def judge(self, process: Process, error: BrokerlessError) -> None:
        """Whether an incarnation may end like this."""
        expected = StoreError | CommitError | DeliveryFailed | Fenced | TopicError | OffsetOutOfRange
        if self.stage.recreated and isinstance(error, UsageError):
            outdated = "has the partitions" in str(error) or "sequences must grow" in str(error)
            if isinstance(error, SchemaError) or outdated:
                return  # it knew the topic as it was before
        if not isinstance(error, expected) or "damaged" in str(error):
            self.world.fail(f"{process.name} ended by {type(error).__name__}: {error}")
        if isinstance(error, Fenced) and not self.superseded(process) and not self.stage.by_hand:
            self.world.fail(f"{process.name} was told that it was fenced, and nobody took over: {error}")
        if "in the log but not in the store" in str(error):
            self.missed += 1
            # For a moment a sleeper's object may be missing. For good: then the verdict says whether that may be.
            self.done = self.missed > 8

    def superseded(self, process: Process) -> bool:
        """Whether another incarnation has taken something over since this one did, by what the bucket knows."""
        claims: dict[str, Process | None] = {}
        needle = f'"{epoch_of(self.app_id)}"'.encode()
        for written in self.stage.bucket.entries:
            if needle in written.data:
                claims[written.path.partition("/")[0]] = written.process
        return any(owner is not process for owner in claims.values())

    def _paused(self, us: int) -> None:
        wanted = self.failover and self.live < _MOST_LIVE and not self.done
        if wanted and us > SECOND and self.world.rng.random() < 0.7:
            self.world.counts["successors beside a sleeper"] += 1
            self.start(self.world.rng.randrange(us))


class Sender(Role):
    """Common to those who write messages: numbered batches of numbered rows, and a history of what became of them."""

    sources = 1

    def __init__(self, stage: Stage, number: int, *, batches: int) -> None:
        super().__init__(stage, number)
        rng = stage.world.rng
        base = (number + 1) * ROWS * BATCHES
        self.batches = [list(range(base + i * ROWS, base + i * ROWS + rng.randrange(1, 4))) for i in range(batches)]
        self.next = 0
        """The first batch that is not known to be in the log."""

    def renewed(self, topic: int) -> int:
        """How often the topic was created by now; if it was once more, all of the input is sent again."""
        if (now := self.stage.created(self.world.now_us)) > topic:
            self.next = 0
        return max(now, topic)

    def body_of(self, one: int) -> dict[str, int]:
        """A message for the topic as it is now."""
        wide = b'\\"m\\"' in self.stage.creations(self.world.now_us)[-1]
        return {"n": one, "m": one} if wide else {"n": one}

    def check_refusal(self, process: Process, topic: int, ids: Sequence[int], why: object) -> None:
        """Whether the topic was another one meanwhile: else they do fit."""
        if topic == self.stage.created(self.world.now_us):
            self.world.fail(f"{process.name} was told that {ids} do not fit a topic that they do fit: {why}")

    def send(
        self, process: Process, producer: Producer, ids: Sequence[int], *, sequence: int | None = None, app: str | None
    ) -> BrokerlessError | None:
        """Sends and records; returns what went wrong, if the program can go on after it."""
        stage, call = self.stage, len(self.stage.events) + 1
        about: dict[str, Any] = {"call": call, "topic": TOPIC, "producer": app}
        stage.record(process, "send", "invoke", ids=ids, **about)
        try:
            acks = producer.send([self.body_of(one) for one in ids], sequence=sequence)
        except DeliveryFailed as error:
            rest = [ids[row] for row in error.unacknowledged]
            if sure := [one for one in ids if one not in rest]:
                stage.record(process, "send", "ok", ids=sure, acks=_spans(error.acknowledged), **about)
            stage.record(process, "send", "unknown" if error.unknown else "fail", ids=rest, **about)
            self.world.counts["sends of unknown outcome" if error.unknown else "sends that failed"] += 1
            if isinstance(error.__cause__, Fenced | TopicError | LogIncomplete):
                raise  # in one of several partitions: to try again would fail for ever, or for long
            return error
        except (Fenced, TopicError, SchemaError):
            # Over several partitions one may have been committed before another was found to be taken over.
            stage.record(process, "send", "fail" if producer.partitions == 1 else "unknown", **about)
            raise
        except BaseException:
            stage.record(process, "send", "unknown", **about)
            raise
        stage.record(process, "send", "ok", acks=_spans(acks), **about)
        if any(ack.duplicate for ack in acks):
            self.world.counts["sends that were there already"] += 1
        return None

    def source_of(self, one: int) -> int:
        """Which of its sources a message is from."""
        return one // ROWS % self.sources

    def advance(self, batch: int) -> None:
        """Notes that a batch is in the log."""
        self.next = max(self.next, batch + 1)


class NamedProducer(Sender):
    """Has an id and numbers its batches. After a crash it goes on by its notes, which may be older than the truth."""

    name = "named"
    failover = True

    def __init__(self, stage: Stage, number: int, *, batches: int) -> None:
        super().__init__(stage, number, batches=batches)
        rng = stage.world.rng
        self.keyed = stage.partitions > 1 and rng.random() < 0.5
        self.asks_log = stage.partitions == 1 and not stage.recreated and rng.random() < 0.5
        self.timeout_s = (1.0, 5.0, 30.0)[rng.randrange(3)]
        self.lives_on = rng.random() < 0.5
        self.topic = 1

    def body(self, process: Process) -> None:
        producer = Producer(
            TOPIC,
            producer_id=self.name,
            key="n" if self.keyed else None,
            store=process.connection,
            clock=process.clock,
            delivery_timeout_s=self.timeout_s,
        )
        process.opened_us = self.world.now_us
        topic = self.stage.created(process.opened_us)
        if topic > self.topic:
            self.next = 0  # a topic that was created again gets everything again, under the same numbers
        self.topic = max(self.topic, topic)
        if self.asks_log:
            known = self.next
            producer.claim()
            last = producer.last_sequence()
            batch = 0 if last is None else last + 1
            if batch < known:
                self.world.fail(f"{process.name}: batch {known - 1} was acknowledged, but the log's last is {last}")
        else:
            batch = max(0, self.next - self.world.rng.randrange(3))
        while batch < len(self.batches):
            self.think(process)
            if self.stage.recreated and self.stage.created(self.world.now_us) > topic and self.lives_on:
                topic = self.topic = self.renewed(topic)
                batch = self.next  # it does not know that its producer is one of the old topic
            if self.send(process, producer, self.batches[batch], sequence=batch, app=self.name) is None:
                if topic == self.topic:
                    self.advance(batch)
                batch += 1
        self.done = True


class CountingProducer(Sender):
    """Has an id, but lets the producer number its commits: what is unknown is given up."""

    name = "counting"
    failover = True

    def body(self, process: Process) -> None:
        producer = Producer(
            TOPIC, producer_id=self.name, store=process.connection, clock=process.clock, delivery_timeout_s=5.0
        )
        process.opened_us = self.world.now_us
        producer.claim()  # before it takes a batch
        while self.next < len(self.batches):
            batch = self.next
            self.advance(batch)
            self.think(process)
            self.send(process, producer, self.batches[batch], app=self.name)
        self.done = True


class AnonymousProducer(Sender):
    """Has no id. What failed is sent again; what is unknown is looked up, as ``CommitUnknown`` says, or given up."""

    name = "anonymous"

    def body(self, process: Process) -> None:
        producer = Producer(
            TOPIC,
            partition=self.world.rng.randrange(self.stage.partitions),
            store=process.connection,
            clock=process.clock,
            delivery_timeout_s=(0.5, 5.0, 30.0)[self.world.rng.randrange(3)],
        )
        process.opened_us = self.world.now_us
        while self.next < len(self.batches):
            batch = self.next
            self.advance(batch)
            self.think(process)
            while (error := self.send(process, producer, self.batches[batch], app=None)) is not None:
                unknown = error.__cause__
                if isinstance(unknown, CommitUnknown) and self._landed(process, unknown) is not False:
                    break
                self.think(process)
        self.done = True

    def _landed(self, process: Process, unknown: CommitUnknown) -> bool | None:
        """Whether the commit is in the log, read where the error says; None if nobody can say yet."""
        assert process.connection is not None
        log = DeltaLog(process.connection, unknown.table.removeprefix(f"{process.connection.uri}/"))
        for attempt in range(8):
            process.clock.backoff(attempt, base_s=0.5, cap_s=60.0)
            if (entry := log.read(unknown.version)) is not None:
                landed = entry.commit_id == unknown.commit_id
                self.world.counts[f"unknown resolved: {'landed' if landed else 'never will'}"] += 1
                return landed
        return None


class Function(Sender):
    """A function behind sources that are read in order: gets batches again, cut otherwise, and sometimes twice.

    It stays warm: it keeps its logs and producers while the topic is deleted and created again, and then its sources
    begin anew.
    """

    name = "function"
    failover = True
    sources = 2
    topic = 1

    def body(self, process: Process) -> None:
        take = self.warm(process)
        failed = 0
        while self.next < len(self.batches):
            self.think(process)
            if self.stage.recreated:
                self.topic = self.renewed(self.topic)
            first, last = self.cut()
            given = [one for batch in self.batches[first:last] for one in batch]
            ids = sorted(given, key=lambda one: (self.source_of(one), one))
            if not ids:
                continue
            topic = self.topic
            call = len(self.stage.events) + 1
            about: dict[str, Any] = {"call": call, "topic": TOPIC}
            self.stage.record(process, "send", "invoke", ids=ids, **about)
            try:
                outcome, acks, misfit = take(first, ids)
            except BaseException:
                self.stage.record(process, "send", "unknown", **about)
                raise
            self.stage.record(process, "send", outcome, acks=acks, **about)
            # A request in flight when the topic was created anew may come before those that are sent again.
            if misfit and not (self.stage.recreated and "sequences must grow" in str(misfit)):
                self.check_refusal(process, topic, ids, misfit)
            if (outcome == "ok" or misfit) and topic == self.topic:
                self.advance(last - 1)
            failed = 0 if outcome == "ok" else failed + 1
            process.wait(failed and self.world.rng.randrange(SECOND) << min(failed, 8))
        self.done = True

    def cut(self) -> tuple[int, int]:
        """Which batches it is given next."""
        first = max(0, self.next - self.world.rng.randrange(2))
        return first, min(len(self.batches), self.next + self.world.rng.randrange(1, 3))

    def warm(self, process: Process) -> Callable[[int, Sequence[int]], tuple[str, list[Any], object]]:
        """What takes batches for as long as this incarnation lives: their outcome, places, and why they do not fit."""
        assert process.connection is not None
        producers = ProducerPool(process.connection, timeout_s=5.0, clock=process.clock)
        routes = Routes((TOPIC,), TOPIC)
        ingest = BatchIngest(
            process.connection, routes=routes, producers=producers, meter=Meter(), timeout_s=5.0, clock=process.clock
        )

        def take(_: int, ids: Sequence[int]) -> tuple[str, list[Any], object]:
            result = ingest.ingest(
                [
                    SourceMessage(
                        json.dumps(self.body_of(one)).encode(),
                        f"kinesis/{self.name}/{self.source_of(one)}",
                        one,
                        position=one << 70,
                    )
                    for one in ids
                ]
            )
            self.world.counts["rows that a function got again"] += result.skipped
            for error in result.errors:
                self.world.trace.add(self.world.now_us, process.name, "met", "", f"{type(error).__name__}: {error}")
                self.judge(process, error)
                if isinstance(error, LogIncomplete) and self.world.rng.random() < 0.1:
                    raise error  # functions do not live for ever
            misfit = f"{result.rejected} dead letters" if result.rejected else None
            return "unknown" if result.failed else "ok", [(0, -1, 0, len(ids))], misfit

        return take


class Poster(Function):
    """A function that takes messages by HTTP, and its client, who repeats a request until it is answered."""

    name = "poster"
    sources = 1  # of a client's requests

    def cut(self) -> tuple[int, int]:
        """A batch is a request: with a number, so not cut otherwise."""
        first = max(0, self.next - self.world.rng.randrange(2))
        return first, first + 1

    def warm(self, process: Process) -> Callable[[int, Sequence[int]], tuple[str, list[Any], object]]:
        """As ``Function.warm``."""
        assert process.connection is not None
        producers = ProducerPool(process.connection, timeout_s=5.0, clock=process.clock)
        http = HttpIngest(
            routes=Routes((TOPIC,), TOPIC),
            producers=producers,
            max_bytes=10_000,
            meter=Meter(),
            clock=process.clock,
        )

        def take(batch: int, ids: Sequence[int]) -> tuple[str, list[Any], object]:
            body = "\n".join(json.dumps(self.body_of(one)) for one in ids)
            kind = {"content-type": "application/x-ndjson"}
            who = {"producer-id": self.name, "producer-sequence": str(batch)}
            answer = http.handle(HttpRequest("POST", f"/topics/{TOPIC}", kind | who, body, base64_encoded=False))
            self.world.trace.add(self.world.now_us, process.name, "answers", str(answer.status), str(answer.content))
            self.world.counts[f"answers {answer.status}"] += 1
            if answer.status == 200:
                told = answer.content["acks"]
                self.world.counts["requests that were there already"] += any(ack["duplicate"] for ack in told)
                places = [(ack["partition"], *_offset(ack["first"]), ack["messages"]) for ack in told]
                return "ok", places, None
            if answer.status not in {400, 404, 429, 503}:
                self.world.fail(f"{process.name} was answered {answer.status}: {answer.content}")
            unknown = answer.content.get("unknown") or answer.status == 503
            return "unknown" if unknown else "fail", [], answer.content if answer.status == 400 else None

        return take


def _offset(text: str | None) -> tuple[int, int]:
    version, _, index = (text or "-1:0").partition(":")
    return int(version), int(index)


class Reading(Role):
    """A consumer that saves its offsets now and then, and goes on there."""

    name = "consumer"

    def __init__(self, stage: Stage, number: int, *, topic: str) -> None:
        super().__init__(stage, number)
        self.topic = topic
        self.saved: dict[int, Offset] = {}
        self.topic_was = 1
        self.runs: list[Run] = []
        self.confused = 0

    def body(self, process: Process) -> None:
        rng = self.world.rng
        consumer = Consumer(
            self.topic,
            start="beginning",
            store=process.connection,
            clock=process.clock,
            batch_bytes=(1, 2000, 2**20)[rng.randrange(3)],
        )
        if self.stage.by_hand and self.stage.created(self.world.now_us) > self.topic_was:
            self.topic_was = self.stage.created(self.world.now_us)
            self.saved.clear()  # offsets do not say of which table they are; who removes folders has to know
        there = {number for _, number in consumer.position()}
        for number, offset in self.saved.items():
            if number not in there:
                continue
            try:
                consumer.seek(offset, topic=self.topic, partition=number)
            except OffsetOutOfRange as error:
                self._out_of_range(process, number, offset, error)
        runs = self._begin(process, consumer)
        idle = 0
        quiet = False
        while True:
            last = not self.stage.working(Sender, Pipeline, Owner, Slip) and not self.stage.bucket.under_way
            try:
                batches = consumer.poll(0)
            except OffsetOutOfRange:
                for (_, number), offset in consumer.position().items():
                    self.saved[number] = offset
                raise
            except StoreError as error:
                if "not in the store" in str(error) or rng.random() < 0.4:
                    raise
                self.world.counts["polls that were tried again"] += 1
                idle += 1
                process.wait(rng.randrange(SECOND) << min(idle, 10))
                continue
            for batch in batches:
                ids: list[int] = list(batch.data.column("n").to_pylist())
                first = (batch.version, batch.first_index)
                runs[batch.partition].take(first, ids)
                self.stage.record(
                    process,
                    "poll",
                    "ok",
                    call=len(self.stage.events) + 1,
                    topic=self.topic,
                    partition=batch.partition,
                    ids=ids,
                    offset=first,
                    next=(batch.version + 1, 0),
                )
            for (_, number), offset in consumer.position().items():
                runs[number].next = (offset.version, offset.index)
                if rng.random() < 0.7:
                    self.saved[number] = offset
            idle = 0 if batches else idle + 1
            if quiet and not batches:
                for run in runs.values():
                    run.finished = True
                self.done = True
                return
            quiet = last and not batches
            if quiet:
                process.wait(AGAIN_US)
            elif idle > 4:
                process.wait(rng.randrange(SECOND) << min(idle, 10))
            else:
                self.think(process)

    def judge(self, process: Process, error: BrokerlessError) -> None:
        super().judge(process, error)
        if isinstance(error, OffsetOutOfRange):
            self.confused += 1
            # Sent back and forth: by an entry under a freed name, or the verdict will say so.
            self.done = self.done or self.confused > 20

    def _begin(self, process: Process, consumer: Consumer) -> dict[int, Run]:
        runs: dict[int, Run] = {}
        for (_, number), offset in consumer.position().items():
            table = partition_table(self.topic, number)
            runs[number] = Run(process.name, table, (offset.version, offset.index), process.entries)
            runs[number].sought = number in self.saved
            where = {"topic": self.topic, "partition": number, "offset": runs[number].start}
            self.stage.record(process, "assign", "ok", **where)
        self.runs += runs.values()
        return runs

    def _out_of_range(self, process: Process, number: int, offset: Offset, error: OffsetOutOfRange) -> None:
        self.world.counts["offsets that clean-up had removed"] += 1
        table = partition_table(self.topic, number)
        # One that stands alone cannot be told from what a sleeper put into a freed name.
        paths = {f"{table}/_delta_log/{offset.version + n:020d}.json" for n in (0, 1)}
        expected = self.stage.recreated or self.stage.rewriting
        if paths <= self.stage.bucket.objects.keys() and not expected:
            self.world.fail(f"{process.name}: {table} {offset} is there, but: {error}")


@dataclass(slots=True)
class Run:
    """What one incarnation read of one partition, from where it began."""

    process: str
    table: str
    start: tuple[int, int]
    entries: dict[str, bytes]
    """What its process was given under each entry's name."""
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    next: tuple[int, int] = (0, 0)
    sought: bool = False
    """Whether it began at a saved offset, and not at the beginning."""
    finished: bool = False

    def take(self, first: tuple[int, int], ids: Sequence[int]) -> None:
        """Adds the messages of one batch."""
        self.rows += [(first[0], first[1] + row, one) for row, one in enumerate(ids)]


class Pipeline(Role):
    """The source's and the sink's own decisions, with Python in the place of Spark between them."""

    name = "pipeline"
    failover = True

    def __init__(self, stage: Stage, number: int) -> None:
        super().__init__(stage, number)
        rng = stage.world.rng
        self.letters = rng.random() < 0.85
        self.max_rows = (1, 4, 15, 1000)[rng.randrange(4)]
        self.app_id = owner_id(PIPELINE)
        self.accepts = rng.random() < 0.5
        """Whether it is told to take an input that was made again by hand for a new one."""
        self.misconfigured: set[str] = set()
        self.began: dict[str, dict[str, int]] = {}
        """Where each incarnation began."""
        self.finished = False

    def body(self, process: Process) -> None:
        store, clock, rng = process.connection, process.clock, self.world.rng
        assert store is not None
        letters = OutputLog(store, dead_letters(OUTPUT), SCHEMA, PIPELINE, clock=clock) if self.letters else None
        outputs = PipelineOutputs(OutputLog(store, OUTPUT, SCHEMA, PIPELINE, clock=clock), letters, PIPELINE)
        outputs.claim()
        options = {"topics": TOPIC, "settings": "-", "maxrows": str(self.max_rows)}
        if rng.random() < 0.1:
            self.misconfigured.add(process.name)  # begins anew; must be stopped if anything was done already
        else:
            options |= {"pipeline": PIPELINE, "output": OUTPUT}
        if self.accepts:
            options["acceptnewinput"] = "true"
        if process.name not in self.misconfigured:
            begin = first_position(store, options, outputs.output)
            self.began[process.name] = begin.at
            outputs.record_start(begin)
        reader = Reader(options, None)  # type: ignore[arg-type]
        start = SourceOffset.of(reader.initialOffset())
        self.began.setdefault(process.name, start.at)
        batch_id = idle = 0
        quiet = False
        while True:
            last = not self.stage.working(Sender, Owner, Slip) and not self.stage.bucket.under_way
            end = SourceOffset.of(reader.latestOffset())
            if end.at == start.at:
                if quiet:
                    self.done = self.finished = True
                    return
                idle, quiet = idle + 1, last
                process.wait(AGAIN_US if last else rng.randrange(SECOND // 4) << min(idle, 12))
                continue
            idle, quiet = 0, False
            self._batch(process, reader, outputs, start, end, batch_id)
            reader.commit(end.to_dict())
            start, batch_id = end, batch_id + 1

    def _batch(
        self,
        process: Process,
        reader: Reader,
        outputs: PipelineOutputs,
        start: SourceOffset,
        end: SourceOffset,
        batch_id: int,
    ) -> None:
        store = process.connection
        assert store is not None
        missing = outputs.missing(start.at, end, batch_id=batch_id)
        if len(missing) == 1 and self.letters:
            self.world.counts["batches cut short between the two commits"] += 1
        if not missing:
            return
        rows: list[int] = []
        for part in reader.partitions(start.to_dict(), end.to_dict()):
            for _, _, _, path in part.objects:  # type: ignore[attr-defined]
                rows += records.load(store, path).column("n").to_pylist()
        bad = [one for one in rows if self.letters and is_bad(one)]
        good = [one for one in rows if not self.letters or not is_bad(one)]
        objects = {True: UploadedFiles(), False: UploadedFiles()}
        for output, ids in ((outputs.dead_letters, bad), (outputs.output, good)):
            if output is not None and output in missing:
                output.upload(pa.table({"n": pa.array(ids, pa.int64())}), objects[output is outputs.output])
        outputs.commit(objects[True], objects[False], end, missing=missing)
        self.world.counts["pipeline batches"] += 1

    def judge(self, process: Process, error: BrokerlessError) -> None:
        if isinstance(error, PipelineError):
            if process.name in self.misconfigured or self.superseded(process):
                return
            if "waited more than" in str(error) and (process.paused_us or process.clock_was_set):
                return
        elif isinstance(error, TopicChanged) and "accept-new-input" in str(error) and self.stage.by_hand:
            self.world.counts["pipelines whose input was made again by hand"] += 1
            self.done = True
        elif isinstance(error, OffsetOutOfRange):
            # Clean-up has overtaken it: it stops and names it. What it did so far is judged.
            self.world.counts["pipelines that clean-up overtook"] += 1
            if process.name not in self.misconfigured:
                self.done = True
        super().judge(process, error)


class RealtimePipeline(Pipeline):
    """The real-time engine's feed and packer, with lanes in the place of Spark that give back what they want when."""

    def body(self, process: Process) -> None:
        store, clock, rng = process.connection, process.clock, self.world.rng
        assert store is not None
        letters = OutputLog(store, dead_letters(OUTPUT), SCHEMA, PIPELINE, clock=clock) if self.letters else None
        outputs = PipelineOutputs(OutputLog(store, OUTPUT, SCHEMA, PIPELINE, clock=clock), letters, PIPELINE)
        options = {"topics": TOPIC, "pipeline": PIPELINE, "output": OUTPUT, "metadata": "true"}
        if self.accepts:
            options["acceptnewinput"] = "true"
        columns = columns_of(store, options)
        outputs.claim()
        begin = first_position(store, options, outputs.output)
        self.began[process.name] = begin.at
        outputs.record_start(begin)
        inputs = open_inputs(store, options)
        offset = SourceOffset(inputs.at, inputs.at, inputs.ids, rows=0, known_rows=0)
        lanes = Lanes(rng, outputs, offset, inputs.ahead, dead_letters=self.letters, clock=clock)
        feed = Feed(
            store,
            inputs,
            columns[: -len(METADATA)],
            skipped=frozenset(),
            committed=lambda: lanes.packer.committed.at,
        )
        if inputs.ahead:
            self.world.counts["real-time runs after a crash between the two commits"] += 1
        idle = 0
        quiet = False
        while True:
            last = not self.stage.working(Sender, Owner, Slip) and not self.stage.bucket.under_way
            if feed.look() > 0 and rng.random() < 0.2:
                process.wait(rng.randrange(SECOND // 4))
            try:
                piece = feed.next(0.0)
            except BrokerlessError:
                while rng.random() < 0.8 and self._step(lanes):
                    pass  # a run that is ended by what it cannot read commits what is on its way
                raise
            if piece is not None:
                lanes.give(piece)
            if self._step(lanes) or piece is not None:
                idle, quiet = 0, False
                if rng.random() < 0.2:
                    process.wait(rng.randrange(SECOND // 100))
            elif quiet and not any(source.error for source in inputs.tables.values()):  # it says so in a moment
                self.done = self.finished = True
                return
            else:
                idle, quiet = idle + 1, last
                process.wait(AGAIN_US if last else rng.randrange(SECOND // 4) << min(idle, 12))

    def _step(self, lanes: Lanes) -> bool:
        """Whether one of the things was done that the engine's threads do."""
        if (committed := lanes.step()) is not None:
            self.world.counts["real-time commits"] += 1
        return committed is not None or not lanes.is_empty()


class Lanes:
    """Tasks that transform chunks and give back frames, cut anywhere, in any order; and the packer behind them."""

    def __init__(
        self,
        rng: random.Random,
        outputs: PipelineOutputs,
        offset: SourceOffset,
        ahead: Position,
        *,
        dead_letters: bool,
        clock: Clock,
    ) -> None:
        self._rng = rng
        self._dead_letters = dead_letters
        self._lanes: list[deque[int | tuple[int]]] = [deque() for _ in range(rng.randrange(1, 4))]
        self._packs: list[Pack] = []
        self._given = dict(offset.at)
        self.packer = Packer(outputs, offset, lanes=len(self._lanes), ahead=ahead, clock=clock)

    def give(self, piece: Piece) -> None:
        """Cuts an object's rows into chunks, and lets each go to a lane."""
        about: dict[str, Any] = {"table": piece.table, "version": piece.version}
        self._given[piece.table] = piece.version
        ids: list[int] = [] if piece.rows is None else piece.rows.column("n").to_pylist()
        if not ids:
            self.packer.expect(0, 0, lane=None, last=piece.last, **about)
        while ids:
            here, ids = ids[: (cut := self._rng.randrange(1, 3))], ids[cut:]
            lane = self._rng.randrange(len(self._lanes))
            last = piece.last and not ids
            number = self.packer.expect(len(here), 8 * len(here), lane=lane, last=last, **about)
            self._lanes[lane] += [*here, (number,)]

    def step(self) -> Committed | None:
        """One frame, pack or commit; what was committed, if something was."""
        step = self._rng.randrange(4)
        busy = [number for number, lane in enumerate(self._lanes) if lane]
        if busy and step < 2:
            self._deliver(busy[self._rng.randrange(len(busy))])
        elif step == 2 and (pack := self.packer.next_pack()) is not None:
            self.packer.upload(pack)
            self._packs.append(pack)
        elif step == 3 and self._packs:
            packs, self._packs = self._packs, []
            return self.packer.commit(packs)
        return None

    def is_empty(self) -> bool:
        """Whether all that was given is committed."""
        return not self._packs and self.packer.committed.at == self._given

    def _deliver(self, lane: int) -> None:
        rows: list[int] = []
        marks: list[tuple[int, int]] = []
        for _ in range(self._rng.randrange(1, 6)):
            if self._lanes[lane]:
                item = self._lanes[lane].popleft()
                if isinstance(item, tuple):
                    marks.append((item[0], len(rows)))
                else:
                    rows.append(item)
        columns: dict[str, pa.Array] = {"n": pa.array(rows, pa.int64())}
        if self._dead_letters:
            bad = [{"n": one} if is_bad(one) else None for one in rows]
            columns[DEAD_LETTER] = pa.array(bad, pa.struct([("n", pa.int64())]))
        self.packer.deliver(lane, pa.record_batch(columns) if rows else None, marks)


def is_bad(one: int) -> bool:
    """Which messages are dead letters."""
    return one % 3 == 0


class Maintenance(Role):
    """Checkpoints, clean-up and sweeps, an hour or so apart."""

    name = "maintainer"

    def __init__(self, stage: Stage, number: int, *, runs: int) -> None:
        super().__init__(stage, number)
        self.left = runs
        self.every = stage.world.rng.randrange(2, 8)
        self.merge_every = random.Random(f"merging of {stage.world.seed}").randrange(2, 6) if stage.rewriting else 1000

    def body(self, process: Process) -> None:
        rng = self.world.rng
        maintainer = Maintainer(
            store=process.connection,
            checkpoint_every=self.every,
            log_retention_s=RETENTION_S,
            grace_s=GRACE_S,
            merge_every=self.merge_every,
            clock=process.clock,
        )
        while self.left > 0:
            self.left -= 1
            process.wait(rng.randrange(10 * SECOND, 4500 * SECOND))
            reports = (
                maintainer.run_once(collect_garbage=rng.random() < 0.6)
                if rng.random() < 0.7
                else list(maintainer.run_round(garbage_every_s=3600.0))
            )
            for report in reports:
                self.world.counts["checkpoints"] += report.checkpoint is not None
                self.world.counts["entries that clean-up removed"] += report.entries_removed
                self.world.counts["objects that sweeps removed"] += report.objects_removed
                if self.stage.rewriting:
                    self.world.counts["objects that were merged"] += report.objects_merged
                    self.world.counts["entries that retention expired"] += report.entries_expired
        self.done = True


class Eraser(Role):
    """Sets limits of the topic, and erases some messages."""

    name = "eraser"

    def __init__(self, stage: Stage, number: int, rng: random.Random) -> None:
        super().__init__(stage, number)
        self.left = rng.randrange(1, 4)
        self.rng = rng
        self.limits: dict[str, Any] = {}
        if rng.random() < 0.5:
            self.limits["retention_s"] = rng.choice((3600, 7200))
        if rng.random() < 0.2:
            self.limits["retention_bytes"] = rng.choice((2000, 10_000))

    def body(self, process: Process) -> None:
        store, clock = process.connection, process.clock
        assert store is not None
        if self.limits:
            process.wait(self.rng.randrange(3000 * SECOND))
            alter_topic(store, TOPIC, limits_of(SCHEMA, **self.limits), clock=clock)
        while self.left > 0:
            process.wait(self.rng.randrange(6000 * SECOND))
            ids = sorted({one for event in self.stage.events if event.op == "send" for one in event.ids or ()})
            chosen = frozenset(one for one in ids if self.rng.random() < 0.2)
            if not chosen:
                self.left -= 1
                continue
            number, begun_us = len(self.stage.erasures), self.world.now_us
            self.stage.erasures.append((chosen, begun_us, float("inf")))
            erase_messages(store, TOPIC, f"n in ({', '.join(map(str, sorted(chosen)))})", clock=clock)
            self.stage.erasures[number] = chosen, begun_us, self.world.now_us
            self.world.counts["erasures"] += 1
            self.left -= 1
        self.done = True

    def judge(self, process: Process, error: BrokerlessError) -> None:
        if not isinstance(error, RewriteConflict):
            super().judge(process, error)


class Owner(Role):
    """Deletes the topic and creates it again, perhaps with other columns or another number of partitions."""

    name = "owner"

    def __init__(self, stage: Stage, number: int, *, times: int) -> None:
        super().__init__(stage, number)
        self.left = times
        self.deleted = False
        self.schema, self.partitions = SCHEMA, stage.partitions

    def body(self, process: Process) -> None:
        assert process.connection is not None
        rng = self.world.rng
        while self.left > 0:
            for _ in range(10):
                self.think(process)
            if not self.deleted:
                self.delete(process.connection, process)
                self.deleted = True
                if rng.random() < 0.7:
                    self.schema, self.partitions = (SCHEMA, WIDER)[rng.randrange(2)], rng.randint(1, MOST_PARTITIONS)
            for _ in range(3):
                self.think(process)
            create_topic(
                process.connection,
                TOPIC,
                self.schema,
                partitions=self.partitions,
                exist_ok=True,
                clock=process.clock,
            )
            self.deleted = False
            self.left -= 1
        self.done = True

    def delete(self, store: Connection, process: Process) -> None:
        """Ends the topic."""
        with suppress(TopicNotFound):  # an incarnation before got this far
            delete_topic(store, TOPIC, clock=process.clock)


class Hand(Owner):
    """Removes the topic's folders instead: nobody is told."""

    name = "hand"

    def judge(self, process: Process, error: BrokerlessError) -> None:
        super().judge(process, error)
        if isinstance(error, TopicExists):
            self.deleted = False  # a creation before the last removal came late; once more

    def delete(self, store: Connection, process: Process) -> None:
        """Removes everything at one moment, when nothing is on its way that would bring some of it back."""
        while self.stage.bucket.under_way:
            process.wait(10 * SECOND)
        for number in range(MOST_PARTITIONS):
            self.stage.bucket.wipe(partition_table(TOPIC, number))


class Slip(Role):
    """Lets an entry that others stand behind vanish, and come back."""

    name = "slip"

    def __init__(self, stage: Stage, number: int, *, times: int) -> None:
        super().__init__(stage, number)
        self.left = times

    def body(self, process: Process) -> None:
        rng, bucket = self.world.rng, self.stage.bucket
        while self.left > 0:
            self.left -= 1
            for _ in range(rng.randrange(1, 12)):
                self.think(process)
            paths = [path for path in map(before, bucket.names) if path is not None and path in bucket.objects]
            if self.stage.leaps:
                # What is missing where clean-up begins cannot be told from what it has removed.
                paths = [path for path in paths if before(path) in bucket.objects]
            if not paths:
                continue
            path = paths[rng.randrange(len(paths))]
            bucket.vanish(path)
            process.wait(rng.randrange((10, 300, 10_000 if self.stage.leaps else 600)[rng.randrange(3)] * SECOND))
            bucket.restore(path)
        self.done = True


def _spans(acks: Sequence[Ack]) -> list[tuple[int, int, int, int]]:
    return [(ack.partition, ack.version, ack.first_index, ack.rows) for ack in acks]
