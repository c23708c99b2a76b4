"""The peer Kafka: native clients for one hop, and Spark Structured Streaming between two.

One broker in KRaft mode, which is its own controller, and librdkafka's producer and consumer. The broker and Spark's
connector are downloaded on first use (``jars.py``).

- A sender's queue contains the messages that are not acknowledged, so messages that left it without an error are
  acknowledged. That count is exact and needs no call into Python for each message.
- Producers are idempotent and wait for all in-sync replicas (``acks=all``), here the one broker: as Kafka does by
  default, it acknowledges messages in the page cache, not on the disk.
- The pipeline's output in Kafka is at-least-once: Spark's Kafka sink has no other mode. In Delta it is exactly-once as
  long as the local checkpoint exists.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import messages
from benchmarks.peers.base import Peer, PeerError, Stats
from benchmarks.peers.checks import SAMPLE, TimestampCheck
from benchmarks.peers.jars import BROKER_JARS, SPARK_JARS, fetch, fetch_delta
from benchmarks.spec import OUTPUT
from brokerless.consumer import Consumer
from brokerless.errors import ConfigError
from brokerless.local.jobs import stop_job
from brokerless.local.processes import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack

    from benchmarks.spec import Spec
    from brokerless.settings import Settings

SEPARATOR: Final = b"\t"
"""The separator of a value's two fields: date and message in the input, timestamp and message in the output."""

_READY_S: Final = 120.0
_REPOSITORY: Final = Path(__file__).parents[2]
_ID_WIDTH: Final = len("00-") + messages.ID_DIGITS

_BROKER_CONF: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKER",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    # Internal topics, which one broker cannot replicate.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
# As in Kafka's start script.
_BROKER_JAVA: Final = (
    "-server",
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)

# Clients repeat on standard error that their broker has ended; ``check`` reports it once, with the reason.
_CLIENT_CONF: Final = {"log_level": 2}
_QUEUED: Final = 1_000_000
_PRODUCER_CONF: Final = {
    **_CLIENT_CONF,
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
    **_CLIENT_CONF,
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


class DeltaReceiver:
    """A reader that follows the log of the table that Spark writes."""

    def __init__(self, settings: Settings, table: str, spec: Spec) -> None:
        self._settings, self._table = settings, table
        self._check = TimestampCheck(spec)

    def open(self) -> None:
        self._consumer = Consumer(self._table, settings=self._settings, start="beginning")

    def poll(self, max_wait_s: float) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for batch in self._consumer.poll(max_wait_s):
            rows = pa.table(batch.data)
            column = rows.column("message").cast(pa.string()).combine_chunks()
            who, which = messages.ids(column if isinstance(column, pa.Array) else column.chunk(0))
            self._check.check(who, which, rows.column("timestamp").to_numpy())
            found.append((who, which))
        return found

    def close(self) -> None:
        self._consumer.close()


class Kafka(Peer):
    """One broker; with two hops, Spark from topic to topic."""

    name: ClassVar[str] = "kafka"
    label: ClassVar[str] = "Kafka"
    hops: ClassVar[tuple[int, ...]] = (1, 2)
    sink: ClassVar[str] = "kafka"
    job_options: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def prepare(cls, cache: Path) -> str | None:
        """Download the jars of the broker and of Spark's connector, 54 MB; create the archive of Spark's classes."""
        from brokerless.spark.classes import ensure_archive
        from brokerless.spark.java import find_java_home

        for module in ("confluent_kafka", "pyspark"):
            if importlib.util.find_spec(module) is None:
                return f"{module} is not installed: pip install 'brokerless[bench]'"
        try:
            find_java_home()
            for jars in (BROKER_JARS, SPARK_JARS):  # separate folders: they need different versions of Kafka's clients
                fetch(jars, _jar_folder(cache))
        except (ConfigError, OSError, ValueError) as error:
            return f"Kafka cannot be downloaded: {error}"
        ensure_archive()
        return None

    @property
    def tick_ms(self) -> float:
        """Return the time between two ticks; brokers accept single messages, so there is no commit interval."""
        return 5.0

    def start(self, stack: ExitStack) -> None:
        self._children: dict[str, _Child] = {}
        self._events: dict[str, dict[str, Any]] = {}
        jars = _jar_folder(self.site.cache)
        self._start_broker(stack, [jars / jar.file for jar in BROKER_JARS])
        self._create_topics()
        if self.spec.hops == 2:
            self._start_job(stack, [jars / jar.file for jar in SPARK_JARS])

    def _start_broker(self, stack: ExitStack, jars: Sequence[Path]) -> None:
        from brokerless.spark.java import find_java_home

        port, controller = free_port(), free_port()
        self._bootstrap = f"{HOST}:{port}"
        self._logs = self.site.data_folder / "kafka"
        conf = {
            **_BROKER_CONF,
            "listeners": f"BROKER://{self._bootstrap},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"BROKER://{self._bootstrap}",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "log.dirs": str(self._logs),
        }
        file = self.site.folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in conf.items()))
        java = [str(find_java_home() / "bin" / "java"), "-cp", os.pathsep.join(map(str, jars))]
        # An id must not begin with a dash, because the tool would parse it as an option.
        cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        made = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_READY_S,
            check=False,
        )
        if made.returncode:
            raise PeerError(f"Kafka's storage could not be formatted: {made.stdout[-3000:]}")
        command = [java[0], *_BROKER_JAVA, *java[1:], "kafka.Kafka", str(file)]
        broker = self._start_child(stack, "broker", command)
        threading.Thread(target=broker.follow, args=({},), daemon=True).start()
        self._wait(lambda: _accepts(port), "broker")

    def _create_topics(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({**_CLIENT_CONF, "bootstrap.servers": self._bootstrap})
        wanted = dict.fromkeys(self.spec.topics, self.spec.partitions)
        if self.spec.hops == 2 and self.sink == "kafka":
            wanted[OUTPUT] = 1

        def create() -> bool:
            """Return whether all are there: a broker that answers may not be known to its controller yet."""
            new = [NewTopic(topic, partitions, replication_factor=1) for topic, partitions in wanted.items()]
            for future in admin.create_topics(new, request_timeout=10).values():
                try:
                    future.result(15)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        return False
            return True

        self._wait(create, "broker")

    def _start_job(self, stack: ExitStack, jars: Sequence[Path]) -> None:
        from brokerless.spark.java import find_java_home

        partitions = {topic: list(range(self.spec.partitions)) for topic in self.spec.topics}
        command = [
            *[sys.executable, "-m", "benchmarks.peers.kafka_job"],
            *["--bootstrap", self._bootstrap, "--inputs", json.dumps(partitions), "--output", OUTPUT],
            *["--sink", self.sink, "--checkpoint", str(self.site.folder / "checkpoint")],
            *self.job_options,
        ]
        environ = {
            **replace(self.site.settings_for("pipeline"), state_dir=self.site.folder).to_environ(),
            "JAVA_HOME": str(find_java_home()),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")])),
            "PYSPARK_SUBMIT_ARGS": f"--jars {shlex.quote(','.join(map(str, jars)))} pyspark-shell",
        }
        job = self._start_child(stack, "pipeline", command, environ)
        threading.Thread(target=job.follow, args=(self._events,), daemon=True).start()
        self._wait(lambda: "started" in self._events, "pipeline")

    def _start_child(
        self, stack: ExitStack, role: str, command: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> _Child:
        child = _Child(role, command, self.site.folder / f"{role}.log", environ or {})
        self._children[role] = child
        stack.callback(child.kill)
        return child

    def _wait(self, ready: Callable[[], bool], role: str) -> None:
        deadline = time.monotonic() + _READY_S
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise PeerError(f"The {role} was not ready after {_READY_S:.0f} s: {self._children[role].tail()}")
            time.sleep(0.05)

    def check(self) -> None:
        for child in self._children.values():
            child.check()

    def processes(self) -> Mapping[str, int]:
        return {role: child.process.pid for role, child in self._children.items()}

    def sender(self, producer: int) -> KafkaSender:
        return KafkaSender(self._bootstrap, self.spec.topic(producer), self.spec.partition(producer))

    def receiver(self) -> KafkaReceiver | DeltaReceiver:
        inputs = {topic: range(self.spec.partitions) for topic in self.spec.topics}
        return KafkaReceiver(self._bootstrap, inputs if self.spec.hops == 1 else {OUTPUT: [0]}, self.spec)

    def finish(self) -> Stats:
        self.check()
        figures: dict[str, Any] = {
            "broker_log_bytes": sum(
                log.stat().st_size
                for topic in (*self.spec.topics, OUTPUT)
                for log in self._logs.glob(f"{topic}-*/*.log")
            )
        }
        for role in reversed(self._children):  # the pipeline first, because it needs the broker to end in order
            self._children[role].end()
        figures |= self._events.get("stopped", {})
        return Stats(figures)


class KafkaDefaults(Kafka):
    """Kafka with two hops and default settings of the pipeline's clients; ``kafka`` is the tuned one."""

    name = "kafka-defaults"
    label = "Kafka, client defaults"
    hops = (2,)
    job_options = ("--defaults",)


class KafkaRealtime(Kafka):
    """Kafka with two hops in Spark's real-time mode: one long task per input partition instead of many batches."""

    name = "kafka-realtime"
    label = "Kafka, Spark real-time mode"
    hops = (2,)
    job_options = ("--realtime",)


class KafkaToDelta(Kafka):
    """Kafka to a Delta table with Spark, as data lakes are filled; the reader follows the table's log."""

    name = "kafka-delta"
    label = "Kafka to Delta"
    hops = (2,)
    sink = "delta"

    @classmethod
    def prepare(cls, cache: Path) -> str | None:
        """Prepare as ``Kafka``, and let Spark download Delta's jars, 25 MB, into Ivy's cache."""
        return super().prepare(cache) or fetch_delta(cache)

    def receiver(self) -> DeltaReceiver:
        return DeltaReceiver(self.site.settings_for("reader"), OUTPUT, self.spec)

    def finish(self) -> Stats:
        return replace(super().finish(), tables=(OUTPUT,))


class _Child:
    """A process in its own group; its standard error, and output other than events, goes to a file."""

    def __init__(self, role: str, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self._role, self._log, self._stopped = role, log, False
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environ},
                stdin=subprocess.PIPE,  # closed when this process ends, even if it is killed: the job watches it
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                process_group=0,
            )

    def follow(self, events: dict[str, dict[str, Any]]) -> None:
        """Store the JSON lines of standard output by their ``event``, until its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                event = json.loads(line)
                events[event.pop("event")] = event
            else:
                with self._log.open("a") as file:
                    file.write(line)

    def tail(self) -> str:
        """Return the end of the log."""
        return self._log.read_text(errors="replace")[-3000:]

    def check(self) -> None:
        """Raise ``PeerError`` if the process has ended."""
        if self.process.poll() is not None:
            raise PeerError(f"The {self._role} ended with {self.process.returncode}: {self.tail()}")

    def end(self) -> None:
        """End the process in order.

        Raises:
            PeerError: the process ended in another way.
        """
        code = self._stop(20.0)
        if code not in (0, 128 + signal.SIGTERM):  # a JVM's exit code includes the signal that ended it
            raise PeerError(f"The {self._role} ended with {code}: {self.tail()}")

    def kill(self) -> None:
        """Kill the process if it is still running."""
        if not self._stopped:  # the system may have reused its pid
            self._stop(1.0)

    def _stop(self, grace_s: float) -> int:
        code = stop_job(self.process, grace_s=grace_s)
        self._stopped = True
        assert self.process.stdin is not None
        self.process.stdin.close()
        return code


def _jar_folder(cache: Path) -> Path:
    return cache / "kafka-jars"


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
