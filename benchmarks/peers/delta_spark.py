"""delta-rs producers, then delta-spark's own streaming source and sink, then a reader that follows the output's log.

One peer has default settings, and one is tuned with all that we know about its settings. Delta's source does not
guarantee the order of rows within a batch: Spark packs files into tasks by size, so that a batch of several commits may
be out of order.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from benchmarks.peers.base import PeerError, Stats
from benchmarks.peers.child import Child
from benchmarks.peers.delta_rs import DeltaRs, LogReceiver
from benchmarks.peers.delta_spark_job import Job
from benchmarks.peers.jars import fetch_delta
from benchmarks.spec import OUTPUT
from brokerless.errors import ConfigError
from brokerless.spark.conf import SESSION_CONF, STREAM_CONF
from brokerless.spark.delta import DELTA_CONF, EXCLUDES, PACKAGES
from brokerless.spark.java import find_java_home

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from brokerless.settings import Settings

START_S: Final = 180.0
STOP_S: Final = 30.0  # a running batch is waited for

PLUMBING: Final[Mapping[str, str]] = {
    "spark.jars.packages": ",".join(PACKAGES),
    "spark.jars.excludes": ",".join(EXCLUDES),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Progress bars would hide an error in the log, of which only the end is shown.
    "spark.ui.showConsoleProgress": "false",
}
"""The settings that Spark needs for Delta."""

TUNING: Final[Mapping[str, str]] = {
    **SESSION_CONF,
    **STREAM_CONF,
    **DELTA_CONF,
    "spark.driver.memory": "2g",
    # The checkpoint is on local disk, which saves about twelve requests per batch, and is lost with the machine.
    "spark.sql.streaming.checkpointFileManagerClass": STREAM_CONF["spark.sql.streaming.checkpointFileManagerClass"],
    # brokerless keeps 10; the job reads them every few seconds.
    "spark.sql.streaming.numRecentProgressUpdates": "100",
}


class StockDeltaSpark(DeltaRs):
    """A default session, with the checkpoint on the object store."""

    name: ClassVar[str] = "delta-spark-stock"
    label: ClassVar[str] = "delta-spark, default settings"
    hops: ClassVar[tuple[int, ...]] = (2,)
    tuning: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def prepare(cls, cache: Path) -> str | None:
        """Download Delta's jars, once."""
        for package in ("deltalake", "pyspark"):
            if not importlib.util.find_spec(package):
                return f"{package} is not installed"
        try:
            find_java_home()
        except ConfigError as error:
            return str(error)
        return fetch_delta(cache)

    @property
    def checkpoint(self) -> str:
        """Return the location of the query's checkpoint."""
        return f"{_spark_root(self.site.settings)}/_checkpoint"

    def start(self, stack: ExitStack) -> None:
        """Create the input tables, start the job and wait until its query runs."""
        super().start(stack)
        settings = self.site.settings_for("pipeline")
        root = _spark_root(settings)
        job = Job(
            conf={**PLUMBING, **_s3a(settings), **self.tuning},
            inputs=tuple(f"{root}/{table}" for table in self.inputs),
            output=f"{root}/{OUTPUT}",
            checkpoint=self.checkpoint,
        )
        self._batches: list[dict[str, Any]] = []
        self._started = threading.Event()
        self._job = _start_job(stack, job, self.site.folder, settings.to_environ())
        self._follower = self._job.follow(self._on_event)
        deadline = time.monotonic() + START_S
        while not self._started.wait(0.2):
            self.check()
            if time.monotonic() > deadline:
                raise PeerError(f"The Spark job was not ready after {START_S:.0f} s: {self._job.tail()}")

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            self._started.set()
        else:
            self._batches.append(event)

    def check(self) -> None:
        """Raise ``PeerError`` if the job has ended."""
        self._job.check()

    def processes(self) -> Mapping[str, int]:
        """Return the job's process; the JVM is its child."""
        return {"pipeline": self._job.process.pid}

    def receiver(self) -> LogReceiver:
        """Return a reader of the output."""
        return LogReceiver(self.site.settings_for("reader"), [OUTPUT], self.spec)

    def finish(self) -> Stats:
        """End the job; the figures are means of the second half of its batches, when the JVM has compiled its code.

        Raises:
            PeerError: the job failed, before or now.
        """
        self.check()
        self._job.end(STOP_S)
        self._follower.join(10)
        return Stats(figures=figures(self._batches), tables=[*self.inputs, OUTPUT])


class TunedDeltaSpark(StockDeltaSpark):
    """A session tuned for small batches, with the checkpoint on local disk."""

    name: ClassVar[str] = "delta-spark-tuned"
    label: ClassVar[str] = "delta-spark, tuned"
    tuning: ClassVar[Mapping[str, str]] = TUNING

    @property
    def checkpoint(self) -> str:
        """Return the location of the query's checkpoint."""
        return (self.site.folder / "checkpoint").absolute().as_uri()


def figures(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over the second half of the batches with rows: ``batch_ms``, its phases, ``batches_per_s``, rows."""
    steady = batches[len(batches) // 2 :]
    if not steady:
        return {}
    phases = sorted({phase for batch in steady for phase in batch["ms"]})
    means = {phase: round(sum(b["ms"].get(phase, 0) for b in steady) / len(steady), 1) for phase in phases}
    last = steady[-1]
    lasted_s = last["at_s"] + last["ms"]["triggerExecution"] / 1000 - steady[0]["at_s"]
    return {
        "batch_ms": means.pop("triggerExecution"),
        "batches": len(batches),
        "batches_per_s": round(len(steady) / lasted_s, 3),
        "rows_per_batch": round(sum(b["rows"] for b in steady) / len(steady)),
        "phases_ms": means,
    }


def _start_job(stack: ExitStack, job: Job, folder: Path, environ: Mapping[str, str]) -> Child:
    """Start the job; Spark's files on disk go to the folder."""
    home = Path(__file__).resolve().parents[2]
    return Child.start(
        stack,
        "Spark job",
        [sys.executable, "-m", "benchmarks.peers.delta_spark_job", job.to_json()],
        folder,
        {
            **environ,
            "JAVA_HOME": str(find_java_home()),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH")])),
            "SPARK_LOCAL_IP": "127.0.0.1",  # also the files of the user interface, which a default session has
            "SPARK_LOCAL_DIRS": str(folder),
        },
        cwd=folder,
    )


def _s3a(settings: Settings) -> dict[str, str]:
    """Return Spark's settings for the store; credentials come from the environment: process lists show settings."""
    conf = {"spark.hadoop.fs.s3a.endpoint.region": settings.region}
    if settings.access_key:
        provider = "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
        conf["spark.hadoop.fs.s3a.aws.credentials.provider"] = provider
    if settings.endpoint:
        conf |= {
            "spark.hadoop.fs.s3a.endpoint": settings.endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": str(settings.endpoint.startswith("https")).lower(),
        }
    return conf


def _spark_root(settings: Settings) -> str:
    return settings.root.replace("s3://", "s3a://", 1)
