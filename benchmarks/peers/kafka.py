"""The peer Kafka: native clients for one hop, and Spark Structured Streaming between two.

One broker in KRaft mode, which is its own controller, and librdkafka's producer and consumer. The broker and Spark's
connector are downloaded on first use (``jars.py``).

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
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from benchmarks.peers.base import Peer, PeerError, Stats
from benchmarks.peers.brokerless import BrokerlessReceiver
from benchmarks.peers.child import Child
from benchmarks.peers.jars import BROKER_JARS, SPARK_JARS, fetch, fetch_delta
from benchmarks.peers.kafka_clients import CLIENT_CONF, KafkaReceiver, KafkaSender
from benchmarks.spec import OUTPUT
from brokerless.errors import ConfigError
from brokerless.local.processes import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack


_READY_S: Final = 120.0
_REPOSITORY: Final = Path(__file__).parents[2]

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
        self._children: dict[str, Child] = {}
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
        broker.follow(lambda event: None)
        self._wait(lambda: _accepts(port), "broker")

    def _create_topics(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({**CLIENT_CONF, "bootstrap.servers": self._bootstrap})
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
        job.follow(lambda event: self._events.update({event.pop("event"): event}))
        self._wait(lambda: "started" in self._events, "pipeline")

    def _start_child(
        self, stack: ExitStack, role: str, command: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> Child:
        self._children[role] = child = Child.start(stack, role, command, self.site.folder, environ or {})
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

    def receiver(self) -> KafkaReceiver | BrokerlessReceiver:
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

    def receiver(self) -> BrokerlessReceiver:
        return BrokerlessReceiver(self.site.settings_for("reader"), [OUTPUT], self.spec)

    def finish(self) -> Stats:
        return replace(super().finish(), tables=(OUTPUT,))


def _jar_folder(cache: Path) -> Path:
    return cache / "kafka-jars"


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
