"""Measure many producers on one partition: commits per producer, duration of a send, and requests per commit.

``python -m benchmarks.contention --producers 100 --processes 4`` starts its own MinIO, lets each producer send again
after each acknowledgement, and prints one line of JSON. Threads of one process share entries, processes compete.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from brokerless.bucket import create_bucket
from brokerless.errors import BrokerlessError
from brokerless.local.minio import start_minio
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import create_topic

DEADLINE_S = 30.0
KEY = "contention"  # the server exists only during the measurement


@dataclass
class Sent:
    """The sends of one process's producers."""

    commits: list[int] = field(default_factory=list)
    sends_s: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)


def _produce(settings: Settings, producers: int, begin_at: float, seconds: float, deadline_s: float) -> Sent:
    sent = Sent(commits=[0] * producers)
    store = open_store(settings)
    opened = [Producer("contended", settings=settings, delivery_timeout_s=deadline_s) for _ in range(producers)]
    time.sleep(max(0.0, begin_at - time.time()))
    before = Counter(store.requests)
    end = time.monotonic() + seconds

    def run(number: int) -> None:
        while (begun := time.monotonic()) < end:
            try:
                opened[number].send([{"producer": number}])
                sent.commits[number] += 1
            except BrokerlessError as error:
                sent.failed[type(error.__cause__ or error).__name__] += 1
            sent.sends_s.append(time.monotonic() - begun)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent.requests = Counter(store.requests) - before
    return sent


def measure(
    settings: Settings, *, producers: int, processes: int, seconds: float, deadline_s: float
) -> dict[str, object]:
    """Run the producers and return the figures of their sends."""
    create_topic(open_store(settings), "contended", Schema.parse("producer long"))
    share = [producers // processes + (n < producers % processes) for n in range(processes)]
    begin_at = time.time() + 1.0 + 0.2 * processes
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        jobs = [(settings, n, begin_at, seconds, deadline_s) for n in share]
        results = pool.starmap(_produce, jobs, chunksize=1)
    commits = [n for sent in results for n in sent.commits]
    sends = sorted(s for sent in results for s in sent.sends_s)
    requests = sum((sent.requests for sent in results), Counter())
    entries = _entries(settings)
    return {
        "producers": producers,
        "processes": processes,
        "sends_per_s": round(sum(commits) / seconds, 1),
        "entries_per_s": round(entries / seconds, 1),
        "least": min(commits),
        "mean": round(statistics.mean(commits), 1),
        "most": max(commits),
        "without_any": commits.count(0),
        "send_p50_s": round(sends[len(sends) // 2], 3),
        "send_max_s": round(sends[-1], 1),
        "failed": dict(sum((sent.failed for sent in results), Counter())),
        "requests_per_send": {kind: round(n / max(1, sum(commits)), 1) for kind, n in sorted(requests.items())},
    }


def _entries(settings: Settings) -> int:
    from brokerless.log.log import DeltaLog

    return DeltaLog(open_store(settings), "contended").head()


def main() -> int:
    """Measure with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--producers", type=int, default=100)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help="deadline of one send in seconds")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        start_minio(Path(folder), access_key=KEY, secret_key=KEY) as server,
    ):
        settings = Settings(
            profile="minio",
            root="s3://contention",
            endpoint=server.endpoint,
            access_key=server.access_key,
            secret_key=server.secret_key,
        )
        create_bucket(settings)
        result = measure(
            settings,
            producers=args.producers,
            processes=args.processes,
            seconds=args.seconds,
            deadline_s=args.deadline,
        )
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
