"""An archive of Spark's classes for the JVM, with which a session starts in half the time.

Starting Spark mostly consists of loading and verifying about ten thousand classes. Java's class-data sharing (JEP 350,
dynamic archives) maps them into memory from a file: on two slow cores, a session with its first job took 5.4 s instead
of 9.5 s. The archive fits one Java and one pyspark; it is created once in the user's cache (130 MB), and a JVM that
cannot use it ignores it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokerless.spark.java import find_java_home

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAKE_TIMEOUT_S: Final = 180


def archive_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the archive for this Java and this pyspark, whether it exists or not."""
    java = find_java_home(environ).resolve()
    release = java / "release"
    text = release.read_text() if release.is_file() else ""
    key = hashlib.sha256(f"{java}|{text}|{version('pyspark')}|{sys.prefix}".encode()).hexdigest()[:16]
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "brokerless" / f"spark-classes-{key}.jsa"


def java_options(archive: Path) -> str:
    """Return the JVM options to use an archive, without warnings if it does not fit."""
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def ensure_archive() -> bool:
    """Create the archive if it is missing (15 to 30 s), and return whether it exists; never raises."""
    archive = archive_path()
    if archive.is_file():
        return True
    archive.parent.mkdir(parents=True, exist_ok=True)
    # It has another name until it is complete, because another JVM may start with it at this moment.
    draft = archive.with_suffix(f".{os.getpid()}")
    try:
        subprocess.run(
            [sys.executable, "-m", "brokerless.spark.classes", str(draft)],
            check=True,
            timeout=_MAKE_TIMEOUT_S,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        draft.replace(archive)
    except (OSError, subprocess.SubprocessError):
        draft.unlink(missing_ok=True)
        return False
    return True


def record(archive: Path) -> None:
    """Run a small job with all parts of a pipeline in a JVM that writes its class archive at its end."""
    import tempfile

    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from brokerless.spark.conf import SESSION_CONF, STREAM_CONF

    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master("local[2]").config(
            "spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
        )
        for key, value in {**SESSION_CONF, **STREAM_CONF, "spark.local.dir": folder}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
        parsed = rows.select(F.try_to_timestamp(F.col("timestamp").cast("string"), F.lit("yyyy-MM-dd")), "value")
        query = (
            parsed.writeStream.foreachBatch(lambda batch, _: batch.toArrow() and None)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )
        spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
        while (query.lastProgress or {"batchId": 0})["batchId"] < 2 and query.isActive:
            query.awaitTermination(1)
        query.stop()
        spark.stop()
        # The JVM writes the archive when it ends, which happens when its standard input closes.
        gateway = spark.sparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(_MAKE_TIMEOUT_S)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
