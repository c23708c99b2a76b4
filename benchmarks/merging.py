"""Measure what merging changes: scans by other engines, requests to open a topic, and readers beside it.

    python -m benchmarks.merging scans --commits 20000
    python -m benchmarks.merging growth --commits 20000
    python -m benchmarks.merging readers --seconds 60 --pairs 3

``scans`` and ``growth`` use a local folder. ``readers`` has a producer with ten commits a second and a consumer, beside
a maintainer that merges all the time and beside none, in turns. Each prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from brokerless import Consumer, DeltaLog, Producer, Schema, Settings, create_topic, open_store
from brokerless.columns import records
from brokerless.log.entries import Add
from brokerless.maintenance.maintainer import Maintainer

if TYPE_CHECKING:
    from brokerless.store import Store

SCHEMA = Schema.parse("n long, text string")
MERGE_EVERY = 1000
RATE = 10


def main() -> int:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merging", description=__doc__)
    parser.add_argument("what", choices=["scans", "growth", "readers"])
    parser.add_argument("--commits", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.load(root=f"file://{folder}")
        if args.what == "scans":
            scans(settings, args.commits)
        elif args.what == "growth":
            growth(settings, args.commits)
        else:
            ratios = [readers(settings, f"t{pair}", args.seconds) for pair in range(args.pairs)]
            say({"ratio of the p99": [round(one, 2) for one in ratios], "median": round(median(ratios), 2)})
    return 0


def scans(settings: Settings, commits: int) -> None:
    """Scan a topic before and after merging."""
    store = open_store(settings)
    create_topic(store, "t", SCHEMA)
    write(store, commits)
    maintain(store, merge_every=10**9)
    say({"state": "before", **scan(settings)})
    begun = time.monotonic()
    maintain(store)
    say({"merging_s": round(time.monotonic() - begun, 1)})
    maintain(store, merge_every=10**9)  # a checkpoint behind the merges
    say({"state": "after", **scan(settings)})


def growth(settings: Settings, commits: int) -> None:
    """Count what a topic consists of, while it grows and is maintained."""
    store = open_store(settings)
    create_topic(store, "t", SCHEMA)
    for done in range(0, commits, 2000):
        write(store, 2000, first=done)
        maintain(store)
        maintain(store)  # removes what the first run has made superfluous
        names = [info.path for info in store.list("t")]
        begun = time.monotonic()
        before = sum(store.requests.values())
        DeltaLog(store, "t").open()
        say(
            {
                "commits": done + 2000,
                "live_files": len(DeltaLog(store, "t").load(with_files=True).files),
                "objects": sum("_delta_log" not in name for name in names),
                "entries": sum(name.endswith(".json") for name in names),
                "opening_ms": round((time.monotonic() - begun) * 1000, 1),
                "opening_requests": sum(store.requests.values()) - before,
            }
        )


def write(store: Store, commits: int, *, first: int = 0) -> None:
    """Commit one message each."""
    log = DeltaLog(store, "t")
    for n in range(first, first + commits):
        rows = [{"n": n, "text": f"message {n}"}]
        data = records.encode(records.to_table(rows, SCHEMA, topic="t", produced_at_us=time.time_ns() // 1000))
        name = records.object_name(data, f"{n:09d}")
        store.put(f"t/{name}", data)
        log.append([Add(name, len(data), 1, time.time_ns() // 1_000_000)])


def maintain(store: Store, *, merge_every: int = MERGE_EVERY, topic: str = "t") -> None:
    """Run all of maintenance, without waiting for anything to become old."""
    maintainer = Maintainer(
        [topic], store=store, log_retention_s=0, grace_s=0, merge_every=merge_every, unsafe_no_minimum=True
    )
    for report in maintainer.run_once():
        if report.skipped:
            sys.stderr.write(f"{report.skipped}\n")


def scan(settings: Settings) -> dict[str, Any]:
    """Return the files of a topic, and how long engines need to count and sum its messages."""
    import duckdb
    from deltalake import DeltaTable

    path = settings.root.removeprefix("file://") + "/t"
    begun = time.monotonic()
    table = DeltaTable(path)
    opened = time.monotonic()
    files = table.file_uris()
    rows = table.to_pyarrow_table().num_rows
    read = time.monotonic()
    with duckdb.connect() as connection:
        found = connection.execute("select count(*), sum(n) from read_parquet(?)", [files]).fetchone()
    done = time.monotonic()
    return {
        "files": len(files),
        "rows": rows,
        "duckdb_rows": found and found[0],
        "delta_rs_open_s": round(opened - begun, 2),
        "delta_rs_read_s": round(read - opened, 2),
        "duckdb_s": round(done - read, 2),
    }


def readers(settings: Settings, topic: str, seconds: float) -> float:
    """Return the p99 of readers beside merging, divided by that without."""
    without = _latency(settings, f"{topic}-without", seconds, merging=False)
    beside = _latency(settings, f"{topic}-merging", seconds, merging=True)
    say({"p99_ms_without": round(without * 1000, 1), "p99_ms_beside_merging": round(beside * 1000, 1)})
    return beside / without


def _latency(settings: Settings, topic: str, seconds: float, *, merging: bool) -> float:
    store = open_store(settings)
    create_topic(store, topic, SCHEMA)
    stop = threading.Event()
    took: list[float] = []

    def consume() -> None:
        with Consumer(topic, start="latest", settings=settings) as consumer:
            while not stop.is_set():
                for batch in consumer.poll(0.2):
                    now = time.time()
                    took.extend(now - float(text) for text in batch.data.column("text").to_pylist())

    reading = threading.Thread(target=consume)
    reading.start()
    maintainer = multiprocessing.get_context("spawn").Process(target=merge, args=(settings.root, topic))
    if merging:
        maintainer.start()
    with Producer(topic, settings=settings) as producer:
        begun = time.monotonic()
        for n in range(int(seconds * RATE)):
            producer.send([{"n": n, "text": repr(time.time())}])
            time.sleep(max(0.0, begun + (n + 1) / RATE - time.monotonic()))
    time.sleep(0.5)
    stop.set()
    reading.join()
    if merging:
        maintainer.terminate()
        maintainer.join()
    say({"topic": topic, "messages": len(took), "median_ms": round(median(took) * 1000, 1)})
    return quantiles(took, n=100)[98]


def merge(root: str, topic: str) -> None:
    """Merge every two seconds, for ever."""
    maintainer = Maintainer([topic], settings=Settings.load(root=root), merge_every=20, unsafe_no_minimum=True)
    while True:
        time.sleep(2.0)
        maintainer.run_once(collect_garbage=False)


def say(found: dict[str, Any]) -> None:
    """Print one result."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
