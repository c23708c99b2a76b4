"""Kafka as a peer: native clients for one hop, and Spark Structured Streaming between two.

One broker in KRaft mode, which is its own controller, and librdkafka's producer and consumer. The broker and Spark's
connector are jars from Maven Central, fetched on first use; each is pinned by its SHA-256.

- A sender's queue holds what the broker has not acknowledged, so what left it without an error is acknowledged. That
  count is exact and needs no call into Python for each message.
- Producers are idempotent and wait for all in-sync replicas (``acks=all``), here the one broker: it acknowledges what
  is in the page cache, as Kafka does by default, not what is on disk.
- The pipeline's output in Kafka is at-least-once: Spark's Kafka sink has no other mode. In Delta it is exactly-once as
  long as the local checkpoint lives.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import messages
from benchmarks.peers.base import Peer, PeerError, Stats
from benchmarks.peers.checks import SAMPLE, TimestampCheck
from benchmarks.spec import OUTPUT
from brokerless.consumer import Consumer
from brokerless.errors import ConfigError
from brokerless.local.jobs import stop_job
from brokerless.local.server import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack

    from benchmarks.spec import Spec
    from brokerless.settings import Settings

MAVEN: Final = "https://repo1.maven.org/maven2"
SEPARATOR: Final = b"\t"
"""Between the two fields of a value: date and message on the way in, timestamp and message on the way out."""

_READY_S: Final = 120.0
_FETCH_S: Final = 300.0
_FETCH_DELTA: Final = """
import pathlib, sys
from brokerless.settings import Settings
from brokerless.spark.delta import delta_session
folder = pathlib.Path(sys.argv[1])
delta_session(Settings(profile="embedded", root=folder.as_uri(), state_dir=folder), name="fetch").stop()
"""
_REPOSITORY: Final = Path(__file__).parents[2]
_ID_WIDTH: Final = len("00-") + messages.ID_DIGITS

_BROKER_CONF: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKER",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    # Clients' own topics, which one broker cannot replicate.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
# As Kafka's own start script sets them.
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

# A client says on standard error, again and again, that its broker is gone; ``check`` says it once, and why.
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
    # Measured at 60,000 messages a second: less processor time in producer, broker and reader than without.
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

# What Maven resolves for org.apache.kafka:kafka_2.13 in the scope "runtime", and slf4j-simple. A group, then its
# "artifact:version sha256".
_BROKER_JARS: Final = """
at.yawk.lz4
  lz4-java:1.10.1 a58a84c4271e50df4c96ed916ccb7e48a869f8ed9cdcda1ad5d3d4c33b0214a3
com.dynatrace.hash4j
  hash4j:0.22.0 23028a3fd006e530bf495f551083208187cafd8f80624d048eba56442f16a50e
com.fasterxml.jackson.core
  jackson-annotations:2.19.4 ab26383fa3c10c0df1ffd1bb035d81161c059b1af71927d73c24473c058baa16
  jackson-core:2.19.4 466ae4dc4f7054f51525f4211df411d9a64d65cc169995d32bf49e20e6f586e5
  jackson-databind:2.19.4 b781c431be870deb0bf84421e99e774c256a701f4ba678df80248f55cd16ff74
com.fasterxml.jackson.dataformat
  jackson-dataformat-csv:2.19.4 fc06cf56909e43e0cdc84ad5e23069fcc4d503a8833bda348f47e50e8f1ac92c
  jackson-dataformat-yaml:2.19.4 998e652806c49ca59e2b6432c4edc37580c4702cb6189d10e6053d0b7982c2e7
com.fasterxml.jackson.datatype
  jackson-datatype-jdk8:2.19.4 c0e0dc3039f9a37a099b2602838f833ea8c15c56445a0eb5463d0c7e0c355da2
com.github.ben-manes.caffeine
  caffeine:3.2.0 ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7
com.github.luben
  zstd-jni:1.5.6-10 b6c3237e24b8252a5a9c3a0e1ae30ef8f323412e74bd358548b7a9e527d676df
com.google.re2j
  re2j:1.8 7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7
com.typesafe.scala-logging
  scala-logging_2.13:3.9.5 87a3017d3f43e6ace7566fe4c3d615134c6914ff871c8d64bb32ca1d996d0545
com.yammer.metrics
  metrics-core:2.2.0 6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c
commons-beanutils
  commons-beanutils:1.11.0 9e44ba68ec9a3f21286fa2a8bbb003b735c0f69101bb43144b79f4f8aaa74709
commons-collections
  commons-collections:3.2.2 eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8
commons-digester
  commons-digester:2.1 e0b2b980a84fc6533c5ce291f1917b32c507f62bcad64198fff44368c2196a3d
commons-logging
  commons-logging:1.3.5 6d7a744e4027649fbb50895df9497d109f98c766a637062fe8d2eabbb3140ba4
commons-validator
  commons-validator:1.10.1 ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa
net.sf.jopt-simple
  jopt-simple:5.0.4 df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28
net.sourceforge.argparse4j
  argparse4j:0.7.0 65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56
org.apache.kafka
  kafka-clients:4.1.2 afe861c05067f4018a3148d73c1ed1e5fc90808757c15b043527d7e535a5d431
  kafka-coordinator-common:4.1.2 0e6697b6827fa635b4686ec9754b1c5583f4997e9bc0f33a8518f1dee518a454
  kafka-group-coordinator:4.1.2 1925a002ef7c527b72a0877ed0d9f3a5f88a08d130d1ed2bdfcc40457ded354b
  kafka-group-coordinator-api:4.1.2 781f932fb3e3824420e7554ef745b57e1827dd801cfc71bf8fd31eef56e60638
  kafka-metadata:4.1.2 ccc29f5423cf5fbe63b47871dbce00a16e05a38bd0d531b3bf21e5c71ba54fac
  kafka-raft:4.1.2 01f6717d07472b577a1cfe1cdf4d098b14a1dae4e35574164712801bd2a55cce
  kafka-server:4.1.2 2b849f1c9d3d9a08a5ea4c2f0479c552592cd770d72263d8d1610701a9b3e8d4
  kafka-server-common:4.1.2 0f1d8fb9478ca0e3eea23b81064749738b9bff705704067e2fe8d62047e5fc07
  kafka-share-coordinator:4.1.2 fffacfaa46e7f25696f673035f86669422ae81889dfd28d8fec29500ee888310
  kafka-storage:4.1.2 902a08f775a9957e1546ecec8e22fbda73b84be9dfbdf04cce7a023dd60bf8b9
  kafka-storage-api:4.1.2 79910cc7d0e3d3a9d9ce6f30f6f000cd355321f604a0f6c73c948389d1b41457
  kafka-tools-api:4.1.2 6d4d6a33b0dcd2180e7489c58c0089f8fb502e7a095cdd46f57755df462f00ae
  kafka-transaction-coordinator:4.1.2 20939d46e1e65a34d6a59b447f0a5e63721678abbfdc948a5f9422930d71612c
  kafka_2.13:4.1.2 965af2d9c19be0c169110eb18468a0bee24e24d14071a57c7f8a57bc4d3f990e
org.apache.logging.log4j
  log4j-api:2.25.3 e886682920fa0fb9d6eb6395dcb4de088443f8646c89c5e5846e168e327f406f
  log4j-core:2.25.3 362b7fcb65b73aa46cc4bc53abf4eb216f444a83b5d1a037cb6fdfff0ae9f0f9
org.bitbucket.b_c
  jose4j:0.9.6 7314af50cde9c99e8eaf43eee617a23edcc6bb43036221064355094999d837ef
org.hdrhistogram
  HdrHistogram:2.2.2 22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8
org.jspecify
  jspecify:1.0.0 1fad6e6be7557781e4d33729d49ae1cdc8fdda6fe477bb0cc68ce351eafdfbab
org.pcollections
  pcollections:4.0.2 2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef
org.scala-lang
  scala-library:2.13.16 1ebb2b6f9e4eb4022497c19b1e1e825019c08514f962aaac197145f88ed730f1
  scala-reflect:2.13.16 fb49ccd9cac7464486ab993cda20a3c1569d8ef26f052e897577ad2a4970fb1d
org.slf4j
  slf4j-api:1.7.36 d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0
  slf4j-simple:1.7.36 2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f
org.xerial.snappy
  snappy-java:1.1.10.7 4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36
org.yaml
  snakeyaml:2.4 ef779af5d29a9dde8cc70ce0341f5c6f7735e23edff9685ceaa9d35359b7bb7f
"""
# The connector of pyspark 4.1.1; of its token provider there is no newer version in Maven Central.
_SPARK_JARS: Final = """
org.apache.commons
  commons-pool2:2.12.1 5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef
org.apache.kafka
  kafka-clients:3.9.1 7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9
org.apache.spark
  spark-sql-kafka-0-10_2.13:4.1.1 9c1ce986f548e6b1dcb0e2dfe2f253a0bc58f2232a32a0c9c6c674dd25a8570c
  spark-token-provider-kafka-0-10_2.13:4.0.0 f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767
"""


@dataclass(frozen=True, slots=True)
class Jar:
    """One file in Maven Central."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """The file's place below the repository's root."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file}"


def parse_jars(text: str) -> tuple[Jar, ...]:
    """A list of groups, each followed by its indented ``artifact:version sha256`` lines."""
    jars, group = [], ""
    for line in text.strip().splitlines():
        if not line.startswith(" "):
            group = line
            continue
        name, sha256 = line.split()
        jars.append(Jar(group, *name.split(":"), sha256))
    return tuple(jars)


BROKER_JARS: Final = parse_jars(_BROKER_JARS)
SPARK_JARS: Final = parse_jars(_SPARK_JARS)


def fetch(jars: Sequence[Jar], folder: Path, *, repository: str) -> list[Path]:
    """The jars in a folder, those that are missing or damaged fetched first.

    Args:
        jars: which.
        folder: created if missing.
        repository: URL of a Maven repository's root.

    Returns:
        Their paths, in order.

    Raises:
        OSError: a jar cannot be fetched, or written.
        ValueError: a jar is not the pinned one; it is not kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [jar for jar in jars if _sha256(folder / jar.file) != jar.sha256]
    if missing:
        print(f"kafka: fetching {len(missing)} jars from {repository}, once", file=sys.stderr, flush=True)
        with ThreadPoolExecutor(4) as pool:
            for done, _ in enumerate(pool.map(lambda jar: _download(jar, folder, repository), missing), start=1):
                if done % 10 == 0 or done == len(missing):
                    print(f"kafka: {done} of {len(missing)} jars", file=sys.stderr, flush=True)
    return [folder / jar.file for jar in jars]


def _download(jar: Jar, folder: Path, repository: str) -> None:
    url = f"{repository}/{jar.path}"
    # Under another name until it is known to be right.
    draft = folder / f"{jar.file}.{os.getpid()}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310  # Maven Central, or a test's folder
            draft.write_bytes(answer.read())
        found = _sha256(draft)
        if found != jar.sha256:
            msg = f"{url} has the SHA-256 {found}, not the pinned {jar.sha256}."
            raise ValueError(msg)
        draft.replace(folder / jar.file)
    finally:
        draft.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def values(rows: pa.Table) -> list[bytes]:
    """What is sent for each row: date, separator, message.

    Raises:
        ValueError: the rows have not all the same width, as the benchmark's have.
    """
    if not rows.num_rows:
        return []
    joined = pc.binary_join_element_wise(
        rows.column("date").cast(pa.binary()), rows.column("message").cast(pa.binary()), SEPARATOR
    )
    # At once, by NumPy's fixed-width strings: to_pylist would make an Arrow scalar of each first.
    found: list[bytes] = []
    for chunk in joined.chunks:
        lengths = pc.binary_length(chunk)
        width = pc.max(lengths).as_py()
        if width != pc.min(lengths).as_py():
            msg = f"Messages are {pc.min(lengths)} to {width} bytes long; a benchmark's have one width."
            raise ValueError(msg)
        begin = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset]
        found += np.frombuffer(chunk.buffers()[2], f"S{width}", count=len(chunk), offset=begin).tolist()
    return found


def ids(found: Sequence[bytes], payload_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """The producers and numbers of values, whose messages are their last bytes.

    Raises:
        ValueError: a value is null, or holds something else.
    """
    array = pa.array(found, pa.binary())
    ends = np.frombuffer(array.buffers()[1], np.int32)[1 : len(array) + 1]
    begins = ends - _ID_WIDTH - payload_bytes
    text = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    short = np.diff(ends, prepend=0) <= _ID_WIDTH + payload_bytes
    if short.any() or (text[begins - 1] != SEPARATOR[0]).any():
        wrong = short if short.any() else text[begins - 1] != SEPARATOR[0]
        msg = f"A value is not a field, a tab and a message: {found[int(np.argmax(wrong))]!r}."
        raise ValueError(msg)
    heads = np.ascontiguousarray(text[begins[:, None] + np.arange(_ID_WIDTH)])
    offsets = np.arange(0, heads.size + 1, _ID_WIDTH, dtype=np.int32)
    return messages.ids(pa.StringArray.from_buffers(len(array), pa.py_buffer(offsets), pa.py_buffer(heads)))


class KafkaSender:
    """A producer that hands over what it is given and does not wait for the broker."""

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
                msg = f"Kafka's producer took {queued} of {len(batch)} messages: {batch[queued].get('_error')}"
                raise PeerError(msg)
            self._handed += queued
        self._producer.poll(0)
        return self._count()

    def close(self) -> int:
        unsent = self._producer.flush(60)
        new = self._count()
        if not unsent:
            self._producer.close()  # would wait for them without end
        return new

    def _count(self) -> int:
        acknowledged = self._handed - self._failed - len(self._producer)
        new = max(0, acknowledged - self._acknowledged)  # the queue also holds events of other kinds, for a moment
        self._acknowledged += new
        return new

    def _on_failure(self, error: object, _message: object) -> None:
        if error is not None:
            self._failed += 1


class KafkaReceiver:
    """A consumer of all partitions from their beginning; of an output it checks some of the parsed timestamps."""

    def __init__(self, bootstrap: str, partitions: Mapping[str, Sequence[int]], spec: Spec) -> None:
        self._bootstrap, self._partitions = bootstrap, partitions
        self._payload_bytes = spec.payload_bytes
        self._check = TimestampCheck(spec) if spec.hops > 1 else None

    def open(self) -> None:
        import confluent_kafka as ck

        self._ck = ck
        self._consumer = ck.Consumer({**_CONSUMER_CONF, "bootstrap.servers": self._bootstrap})
        # Without a group: nothing is to be shared out, and its first rebalance would take seconds.
        self._consumer.assign(
            [ck.TopicPartition(t, p, ck.OFFSET_BEGINNING) for t, ps in self._partitions.items() for p in ps]
        )

    def poll(self, max_wait_s: float) -> list[tuple[np.ndarray, np.ndarray]]:
        # Waits for one message and takes what came with it; consume() alone would wait until its list is full.
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
    """Tails the log of the table that Spark writes."""

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

    @classmethod
    def prepare(cls, cache: Path) -> str | None:
        """Fetches the jars of the broker and of Spark's connector, 54 MB; makes the archive of Spark's classes."""
        from brokerless.spark.classes import ensure_archive
        from brokerless.spark.java import find_java_home

        for module in ("confluent_kafka", "pyspark"):
            if importlib.util.find_spec(module) is None:
                return f"{module} is not installed: pip install 'brokerless[bench]'"
        try:
            find_java_home()
            fetch([*BROKER_JARS, *SPARK_JARS], _jar_folder(cache), repository=MAVEN)
        except (ConfigError, OSError, ValueError) as error:
            return f"Kafka cannot be had: {error}"
        ensure_archive()
        return None

    @property
    def tick_ms(self) -> float:
        """Brokers take messages one by one, so that nobody holds them back for a commit; the client batches."""
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
        self._logs = self.site.folder / "kafka"
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
        # An id may not begin with a dash, which the tool would take for an option.
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
            msg = f"Kafka's storage could not be formatted: {made.stdout[-3000:]}"
            raise PeerError(msg)
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
            """Whether all are there: a broker that answers may not be known to its controller yet."""
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
                msg = f"The {role} was not ready after {_READY_S:.0f} s: {self._children[role].tail()}"
                raise PeerError(msg)
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
        for role in reversed(self._children):  # the pipeline first: it needs the broker to end in order
            self._children[role].end()
        figures |= self._events.get("stopped", {})
        return Stats(figures)


class KafkaToDelta(Kafka):
    """Kafka into a Delta table by Spark, as data lakes are fed; the table's log is tailed."""

    name = "kafka-delta"
    label = "Kafka to Delta"
    hops = (2,)
    sink = "delta"

    @classmethod
    def prepare(cls, cache: Path) -> str | None:
        """As ``Kafka``; also has Spark fetch Delta's jars, 25 MB, into Ivy's cache."""
        from brokerless.spark.delta import PACKAGES

        reason = super().prepare(cache)
        stamp = cache / f"kafka-delta-{hashlib.sha256(repr(PACKAGES).encode()).hexdigest()[:12]}"
        if reason or stamp.exists():
            return reason
        print("kafka-delta: fetching Delta's jars, once", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", _FETCH_DELTA, folder]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=_FETCH_S)
            except subprocess.TimeoutExpired:
                return f"Delta's jars were not there after {_FETCH_S:.0f} s"
            except subprocess.CalledProcessError as error:
                return f"Delta's jars cannot be had: {error.stderr[-3000:]}"
        stamp.touch()
        return None

    def receiver(self) -> DeltaReceiver:
        return DeltaReceiver(self.site.settings_for("reader"), OUTPUT, self.spec)

    def finish(self) -> Stats:
        return replace(super().finish(), tables=(OUTPUT,))


class _Child:
    """A process in a group of its own, with what it says on standard error, and other than events, in a file."""

    def __init__(self, role: str, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self._role, self._log, self._stopped = role, log, False
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environ},
                stdin=subprocess.PIPE,  # closed when this process ends, by whatever way: the job watches it
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                process_group=0,
            )

    def follow(self, events: dict[str, dict[str, Any]]) -> None:
        """Keeps the JSON lines of standard output by their ``event``; returns at its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                event = json.loads(line)
                events[event.pop("event")] = event
            else:
                with self._log.open("a") as file:
                    file.write(line)

    def tail(self) -> str:
        """The end of the log."""
        return self._log.read_text(errors="replace")[-3000:]

    def check(self) -> None:
        """Raises ``PeerError`` if it has ended."""
        if self.process.poll() is not None:
            msg = f"The {self._role} ended with {self.process.returncode}: {self.tail()}"
            raise PeerError(msg)

    def end(self) -> None:
        """Ends it in order.

        Raises:
            PeerError: it ended otherwise.
        """
        code = self._stop(20.0)
        if code not in (0, 128 + signal.SIGTERM):  # a JVM tells the signal that ended it
            msg = f"The {self._role} ended with {code}: {self.tail()}"
            raise PeerError(msg)

    def kill(self) -> None:
        """Ends it soon, whatever it does; nothing if it was ended."""
        if not self._stopped:  # its number may be another's by now
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
