"""A standalone Spark cluster of processes on this machine: a master and workers, each in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokerless.spark.java import find_java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_START_S: Final = 60.0


@dataclass(slots=True)
class Worker:
    """A worker and the executors that it has started."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def executors(self) -> int:
        """How many it has been given so far."""
        return len(list(self.folder.glob("app-*/*")))

    def kill(self) -> None:
        """End it and its executors at once, as when its machine is lost."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        master: its address, ``spark://127.0.0.1:PORT``.
        environ: what ``spark-submit`` needs in its environment.
    """

    master: str
    workers: tuple[Worker, ...]
    environ: Mapping[str, str]


@contextlib.contextmanager
def start_cluster(folder: Path, environ: Mapping[str, str], *, workers: int = 2) -> Iterator[Cluster]:
    """Run a cluster whose workers have one core each, until the end of the block.

    Args:
        folder: for logs and the files of executors.
        environ: of its processes, and so of the executors: credentials, ``PYTHONPATH``.
        workers: how many.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    environ = {
        **environ,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    port = _free_port()
    master = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []

    def start(role: str, *arguments: str) -> subprocess.Popen[bytes]:
        name = f"org.apache.spark.deploy.{role.lower()}.{role}"
        command = [str(home / "bin" / "spark-class"), name, "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        with (folder / f"{role.lower()}-{len(started)}.log").open("wb") as log:
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        started.append(process)
        return process

    try:
        start("Master", "--port", str(port))
        running = []
        for number in range(workers):
            work = folder / f"work-{number}"
            limits = ["--cores", "1", "--memory", "1g", "--work-dir", str(work)]
            running.append(Worker(start("Worker", *limits, master), work))
        _wait_registered(folder / "master-0.log", workers)
        yield Cluster(master, tuple(running), environ)
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def _wait_registered(log: Path, workers: int) -> None:
    deadline = time.monotonic() + _START_S
    while log.read_text(errors="replace").count("Registering worker") < workers:
        if time.monotonic() > deadline:
            raise TimeoutError(f"Not all of {workers} workers have come to the master:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
