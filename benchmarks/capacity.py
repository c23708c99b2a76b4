"""Measure the speed of draining a backlog, and the cost of an idle pipeline.

    python -m benchmarks.capacity --messages 20000000 --partitions 1,2,4 --cores 1,2 --idle-seconds 60

The figures are two tables in a separate session in ``benchmarks/results``. A drain counts only if each message is in
the output once and in its producer's order; otherwise the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import measure
from benchmarks.__main__ import default_cache, numbers
from benchmarks.counting import CountingProxy
from benchmarks.peers.base import ROLES, Site
from benchmarks.peers.brokerless import Brokerless, BrokerlessReceiver, BrokerlessSender
from benchmarks.run import object_store
from benchmarks.session import RESULTS, Session, Table
from benchmarks.spec import OUTPUT, ZONES, Spec
from benchmarks.watch import Watch
from brokerless.cost import bill as cost
from brokerless.local.jobs import start_job
from brokerless.local.processes import end_group
from brokerless.log.log import DeltaLog
from brokerless.schema import Schema
from brokerless.store import open_store
from brokerless.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from brokerless.settings import Settings

COMMIT: Final = 100_000
"""Messages per commit of the backlog."""

ENGINE: Final = "realtime"
"""The engine that drains; a pipeline that cannot use it ends with an error."""

SETTLE_S: Final = 20.0
"""Seconds until pipeline and reader have reached their longest polling interval and the JVM has compiled its code."""

_RATE: Final = 1_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the arguments select, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capacity", description=(__doc__ or "").split("\n", 1)[0]
    )
    add = parser.add_argument
    add("--messages", type=int, default=20_000_000, help="number of messages of the backlog; 0 omits the drains")
    add("--partitions", type=numbers, default=[1], metavar="N,N", help="partitions of each of the two input topics")
    add(
        "--cores",
        type=numbers,
        default=[os.cpu_count()],
        metavar="N,N",
        help="numbers of cores that Spark may use (on Linux)",
    )
    add("--idle-seconds", type=float, default=60.0, help="seconds to observe a pipeline without messages; 0 omits it")
    add("--backend", choices=["minio", "embedded"], default="minio", help="the object store")
    add("--name", default="capacity", help="name of the results file")
    add("--out", type=Path, default=RESULTS, help="folder of the results file")
    args = parser.parse_args(argv)
    command = "python -m benchmarks.capacity " + shlex.join(sys.argv[1:] if argv is None else argv)
    session = Session.begin(args.name, "Backlog and idle", command)
    Brokerless.prepare(default_cache())
    clean = True
    if args.messages:
        rows = []
        for partitions in args.partitions:
            for row in drains(args.messages, partitions, args.cores, args.backend):
                _say(json.dumps(row))
                clean = clean and row["verdict"] == "clean"
                rows.append(row)
        session.tables.append(Table("A backlog drained: from the first output commit to the last", rows))
    if args.idle_seconds:
        row = idle(args.idle_seconds, args.backend)
        _say(json.dumps(row))
        session.tables.append(Table("A pipeline with two input partitions and a reader, and no messages", [row]))
    _say(f"Results: {session.save(args.out)}")
    return 0 if clean else 1


def drains(count: int, partitions: int, cores: Sequence[int], backend: str) -> Iterator[dict[str, Any]]:
    """Write a backlog, then drain it from the beginning with each number of cores.

    Yields:
        ``engine``, ``partitions``, ``cores``, ``messages``, ``messages/s`` from the first output commit to the last,
        ``s in all`` from the job's start to its end, ``CPU s / million`` of the job, ``verdict``.
    """
    spec = Spec(
        peer="brokerless",
        rate=_RATE,
        seconds=count / _RATE,
        partitions=partitions,
        producers=len(ZONES) * partitions,
        backend=backend,  # type: ignore[arg-type]
    )
    with (
        tempfile.TemporaryDirectory(prefix="brokerless-bench-") as name,
        object_store(spec, Path(name)) as (settings, _),
    ):
        _say(f"writing {count:,} messages to {partitions} partition(s) of each topic")
        _fill(spec, settings)
        for number in cores:
            _say(f"draining with {number} core(s)")
            yield {
                "engine": ENGINE,
                "partitions": partitions,
                "cores": number,
                "messages": count,
                **_drain(spec, settings, number),
            }


def _fill(spec: Spec, settings: Settings) -> None:
    store = open_store(settings)
    for topic in spec.topics:
        create_topic(store, topic, Schema.parse("date string, message string"), partitions=spec.partitions)
    begin = time.time()
    for producer in range(spec.producers):
        sender = BrokerlessSender(settings, f"fill-{producer}", spec.topic(producer), spec.partition(producer))
        sender.open()
        total = spec.count(producer)
        for first in range(0, total, COMMIT):
            sender.send(spec.build(producer, begin, first, min(first + COMMIT, total)))
        sender.close()


def _drain(spec: Spec, settings: Settings, cores: int) -> dict[str, Any]:
    store, output = open_store(settings), f"{OUTPUT}-{cores}"
    create_topic(store, output, Schema.parse("timestamp double, message string"))
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        with _cores(cores):
            arguments = ["--engine", ENGINE, "--once", "--json", "--output", output, "--name", f"drain-{cores}"]
            job = start_job("timezone-etl", settings, arguments, stdout=subprocess.DEVNULL, stderr=log)
        watch = Watch({"pipeline": job.pid}).start()
        try:
            code = job.wait()
        finally:
            end_group(job)
        log.seek(0)
        said = log.read()[-2000:]
    seconds = time.monotonic() - begun
    used_s = watch.stop().cpu_s["pipeline"]
    commits = [
        (e.timestamp_ms, sum(a.rows or 0 for a in e.adds)) for e in DeltaLog(store, output).read_from(0) if e.adds
    ]
    problems = _problems(spec, settings, output) if code == 0 else [f"the job ended with {code}: {said}"]
    took_s = (commits[-1][0] - commits[0][0]) / 1000 if commits else 0.0
    # The first commit's rows were computed before the measured time.
    rate = sum(rows for _, rows in commits[1:]) / took_s if took_s else 0.0
    return {
        "messages/s": round(rate),
        "s in all": round(seconds, 1),
        "CPU s / million": round(used_s / sum(spec.count(p) for p in range(spec.producers)) * 1e6, 2),
        "verdict": "; ".join(problems) or "clean",
    }


def _problems(spec: Spec, settings: Settings, output: str) -> list[str]:
    receiver = BrokerlessReceiver(settings, [output], spec)
    receiver.open()
    arrivals = measure.Arrivals()
    while found := receiver.poll(1.0):
        for who, which in found:
            arrivals.add(time.time(), who, which)
    receiver.close()
    sent = [spec.count(producer) for producer in range(spec.producers)]
    return measure.verdict(spec, arrivals, sent, sent).problems


def idle(seconds: float, backend: str) -> dict[str, Any]:
    """Observe the example pipeline and a reader of its output while no messages are sent.

    Returns:
        ``seconds``, ``pipeline cores`` and ``reader cores`` in use on average, ``requests / hour``,
        ``$ / hour`` for those requests, and for the smallest Glue job.
    """
    spec = Spec(peer="brokerless", rate=1, seconds=seconds, backend=backend)  # type: ignore[arg-type]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brokerless-bench-")))
        settings, _ = stack.enter_context(object_store(spec, folder))
        proxy = stack.enter_context(CountingProxy(str(settings.endpoint), ROLES))
        site = Site(settings, folder, default_cache(), {role: proxy.endpoint(role) for role in ROLES})
        peer = Brokerless(spec, site)
        peer.start(stack)
        receiver = peer.receiver()
        receiver.open()
        over = threading.Event()
        reader = threading.Thread(target=lambda: [receiver.poll(0.5) for _ in iter(over.is_set, True)])
        reader.start()
        stack.callback(receiver.close)
        _say(f"idle for {SETTLE_S + seconds:.0f} s")
        time.sleep(SETTLE_S)
        proxy.reset()
        watch = Watch({role: pid for role, pid in peer.processes().items() if role == "pipeline"}).start()
        used_s = time.process_time()
        time.sleep(seconds)
        used_s = time.process_time() - used_s
        pipeline_s = watch.stop().cpu_s["pipeline"]
        counts = proxy.counts()
        over.set()
        reader.join()
        peer.finish()
    total = {kind: sum(by.get(kind, 0) for by in counts.values()) * 3600 / seconds for kind in cost.WRITES + cost.READS}
    return {
        "seconds": seconds,
        "pipeline cores": round(pipeline_s / seconds, 3),
        "reader cores": round(used_s / seconds, 3),
        "requests / hour": round(sum(total.values())),
        "$ / hour, requests": round(cost.requests_usd(total), 4),
        "$ / hour, two Glue workers G.025X": round(cost.PIPELINE.usd_per_hour, 3),
    }


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Limit the cores of processes that are started in the block: they inherit the affinity, and the JVM uses it."""
    if count == os.cpu_count():
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
