"""One run: a peer, a store, producers and a reader in their own processes, then the verdict and the figures."""

from __future__ import annotations

import math
import multiprocessing as mp
import os
import tempfile
import time
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import measure
from benchmarks.counting import CountingProxy
from benchmarks.load import LATE_S, produce, read
from benchmarks.peers import load
from benchmarks.peers.base import ROLES, PeerError, Site
from benchmarks.result import Result
from benchmarks.watch import Watch, table_figures
from brokerless.bucket import create_bucket
from brokerless.cost import bill as cost
from brokerless.local.minio import minio_server
from brokerless.local.server import start_embedded
from brokerless.settings import Settings
from brokerless.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection

    from benchmarks.peers.base import Peer
    from benchmarks.spec import Spec

    Say = Callable[[str, float], None]

DRAIN_S: Final = 60.0
"""Seconds that the reader has after the last message was sent; messages that arrive later count as lost."""

ECHO_S: Final = 2.0
"""Seconds of reading after all messages arrived, to find duplicates."""

LATE_SHARE: Final = 0.01
"""The largest share of late messages in a valid run; with more, it would measure its producers."""

OPEN_S: Final = 60.0

VCPUS: Final = 2
"""Processors of a Glue worker G.025X. A pipeline's price is a driver, and the workers for its processor time."""

_SPAWN: Final = mp.get_context("spawn")


@dataclass(slots=True)
class Outcome:
    """A run's result and, if it took place, the reader's record, for other figures."""

    result: Result
    arrivals: measure.Arrivals | None = None
    begin: float = 0.0
    opened: float = 0.0
    requests: dict[str, dict[str, int]] = field(default_factory=dict)
    """The S3 requests by role and kind while messages were sent, if they were counted."""

    def add_requests(self, counted: Outcome) -> None:
        """Copy the requests from a run of the same kind in which they were counted."""
        result, sent = self.result, counted.result.sent
        if not sent:
            result.problems += [f"while requests were counted: {problem}" for problem in counted.result.problems]
            return
        kinds: Counter[str] = Counter()
        for counts in counted.requests.values():
            kinds.update(counts)
        result.requests = dict(kinds)
        result.requests_per_million = round(sum(kinds.values()) / sent * 1e6, 1)
        result.figures["requests_by_role"] = counted.requests
        result.figures["requests_counted_s"] = counted.result.seconds

    def add_bill(self, spec: Spec) -> None:
        """Compute the monthly cost on AWS from the run's requests, bytes and processor time."""
        result = self.result
        if result.p50_s is None or (result.requests is None and result.stored_bytes is not None):
            return
        pipeline = None
        if "pipeline" in result.cpu_s:
            busy = result.cpu_s["pipeline"] / spec.seconds
            pipeline = cost.glue("G.025X", max(2, 1 + math.ceil(busy / VCPUS)))
        counted_s = result.figures.get("requests_counted_s", spec.seconds)
        requests = {kind: count / counted_s for kind, count in (result.requests or {}).items()}
        in_store = (result.stored_bytes or 0) / spec.seconds
        broker_bytes = result.figures.get("broker_log_bytes")
        if broker_bytes is None:
            bill = cost.streaming_bill(requests_per_s=requests, stored_bytes_per_s=in_store, compute=pipeline)
        else:
            bill = cost.kafka_bill(
                stored_bytes_per_s=broker_bytes / spec.seconds,
                compute=pipeline,
                requests_per_s=requests,
                s3_bytes_per_s=in_store,
            )
        result.bill = {name: round(usd, 2) for name, usd in bill.to_dict().items() if usd}
        result.usd_per_month = round(bill.usd_per_month, 2)
        result.usd_per_million = round(bill.usd_per_million(spec.rate), 5)


def run(spec: Spec, cache: Path, say: Say, *, count: bool = False, data_dir: Path | None = None) -> Outcome:
    """Run ``spec`` in an empty root of a new store, and remove both.

    Args:
        spec: the run.
        cache: the folder for files that peers download on first use.
        say: receives each step and its expected seconds.
        count: count S3 requests, through slower proxies: the latencies of such a run must not be used.
        data_dir: the folder for the servers' data during the run; in the run's folder if None.
    """
    kind = load(spec.peer)
    outcome = Outcome(
        Result(
            peer=spec.peer,
            label=kind.label,
            rate=spec.rate,
            hops=spec.hops,
            pacing=spec.pacing,
            backend=spec.backend,
            commit_ms=spec.commit_ms,
            payload_bytes=spec.payload_bytes,
            partitions=spec.partitions,
            producers=spec.producers,
            seconds=spec.seconds,
            warm_up_s=spec.warm_up_s,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    )
    if reason := kind.prepare(cache):
        outcome.result.skipped = reason
        return outcome
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brokerless-bench-")))
            data = folder
            if data_dir is not None:
                data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brokerless-bench-", dir=data_dir)))
            settings, roles = stack.enter_context(object_store(spec, folder, data))
            proxy = stack.enter_context(CountingProxy(str(settings.endpoint), ROLES)) if count else None
            proxies = {role: proxy.endpoint(role) for role in ROLES} if proxy else {}
            peer = kind(spec, Site(settings, folder, cache, proxies, data))
            _run(peer, outcome, stack, say, roles=roles, proxy=proxy)
    except PeerError as error:
        outcome.result.problems.append(str(error))
    return outcome


def _run(
    peer: Peer, outcome: Outcome, stack: ExitStack, say: Say, *, roles: Mapping[str, int], proxy: CountingProxy | None
) -> None:
    spec, result, file = peer.spec, outcome.result, peer.site.folder / "arrivals.npz"
    say("starting", 30.0)
    peer.start(stack)
    stop = _SPAWN.Event()
    reader = _Child(stack, peer, lambda out: partial(read, peer.receiver(), stop, out, file))
    senders = [_sender(stack, peer, number) for number in range(spec.producers)]
    for child in (reader, *(child for child, _ in senders)):
        child.wait_for("open", OPEN_S)
    loads = {f"load-{number}": child.pid for number, (child, _) in enumerate(senders)}
    watch = Watch({**roles, **peer.processes(), "reader": reader.pid, **loads})
    outcome.begin = time.time() + 1.0
    for _, begin in senders:
        begin.send(outcome.begin)
    watch.start()
    watch.mark()
    if proxy:
        proxy.reset()
    end = outcome.begin + spec.seconds
    done: list[dict[str, Any]] = []
    for child, _ in senders:
        while (got := child.next_message(1.0)) is None:
            say("sending", max(end - time.time(), 0.0))
            if time.time() > end + DRAIN_S:
                raise PeerError(
                    f"A producer has not finished {DRAIN_S:.0f} s after its end; the machine or the peer is too slow."
                )
        done.append(got)
    usage = watch.stop()
    if proxy:
        outcome.requests = proxy.counts()
    sent = [one["sent"] for one in done]
    say(f"sent {sum(sent):,}, reading the rest", DRAIN_S)
    _drain(reader, sum(sent))
    stop.set()
    outcome.opened = reader.wait_for(dict, DRAIN_S)["opened"]
    stats = peer.finish()
    outcome.arrivals = measure.Arrivals.load(file)
    result.cpu_s = _by_role(usage.cpu_s)
    result.cpu_s_per_million = round(sum(result.cpu_s.values()) / max(sum(sent), 1) * 1e6, 3)
    result.rss_mb = _by_role(usage.rss_mb)
    result.figures = dict(stats.figures)
    if jvm_s := usage.jvm_s.get("pipeline"):
        # Not in cpu_s, whose values are added up: "pipeline" includes it.
        result.figures["pipeline_jvm_cpu_s"] = round(jvm_s, 2)
    _judge(outcome, spec, done)
    if stats.tables:
        result.commits, result.objects, result.stored_bytes = table_figures(peer.site.settings, stats.tables)


def _sender(stack: ExitStack, peer: Peer, number: int) -> tuple[_Child, Any]:
    theirs, mine = _SPAWN.Pipe(duplex=False)
    sender = peer.sender(number)
    child = _Child(
        stack,
        peer,
        lambda out: partial(produce, peer.spec, number, sender, tick_ms=peer.tick_ms, begin=theirs, out=out),
    )
    return child, mine


def _judge(outcome: Outcome, spec: Spec, done: list[dict[str, Any]]) -> None:
    """Set the verdict and the latencies."""
    result, arrivals = outcome.result, outcome.arrivals
    assert arrivals is not None
    sent, acknowledged = [one["sent"] for one in done], [one["acknowledged"] for one in done]
    verdict = measure.verdict(spec, arrivals, sent, acknowledged)
    result.sent, result.acknowledged, result.seen = sum(sent), sum(acknowledged), verdict.seen
    result.lost, result.duplicated, result.out_of_order = verdict.lost, verdict.duplicated, verdict.out_of_order
    result.max_late_s = round(max(one["late_s"] for one in done), 3)
    result.figures["send_ms"] = round(1000 * sum(o["send_s"] for o in done) / max(sum(o["sends"] for o in done), 1), 2)
    result.problems += verdict.problems
    late = sum(one["late"] for one in done)
    if late > LATE_SHARE * sum(sent):
        result.problems.append(
            f"the producers fell behind: {late:,} of {sum(sent):,} messages were sent more than {LATE_S} s late, "
            f"the latest {result.max_late_s:.1f} s"
        )
    latencies = measure.latencies(spec, arrivals, outcome.begin)
    measured = latencies.measured_s
    result.measured = len(measured)
    if latencies.negative:
        result.problems.append(f"{latencies.negative:,} messages came before they were sent: the clock was set back")
    values = measure.percentiles(measured)
    result.p50_s, result.p75_s, result.p85_s, result.p95_s, result.p99_s, result.p999_s, result.max_s = values.values()
    result.cdf = measure.cdf(measured)
    result.windows = measure.windows(latencies, spec.seconds)
    if spec.seconds - spec.warm_up_s >= 2 * measure.ENDS_S:
        first, last = measure.ends(latencies, spec)
        result.figures |= {"p99_first_5_min_s": first, "p99_last_5_min_s": last}


def _drain(reader: _Child, expected: int) -> None:
    deadline = time.monotonic() + DRAIN_S
    rows = 0
    while rows < expected and time.monotonic() < deadline:
        rows = reader.next_message(1.0) or rows
    echo = time.monotonic() + ECHO_S
    while (left := echo - time.monotonic()) > 0:
        reader.next_message(left)


def _by_role(values: Mapping[str, float]) -> dict[str, float]:
    """Sum the values by role, with all producers as one role."""
    found: Counter[str] = Counter()
    for role, value in values.items():
        found["load" if role.startswith("load-") else role] += value  # type: ignore[assignment]
    return {role: round(value, 2) for role, value in found.items()}


class _Child:
    """A process and its pipe, which end with the stack."""

    def __init__(self, stack: ExitStack, peer: Peer, task: Callable[[Connection], partial[None]]) -> None:
        self._peer = peer
        self._from, out = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(target=task(out), daemon=True)
        self._process.start()
        out.close()
        stack.callback(self._end)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def next_message(self, wait_s: float) -> Any:
        """Return the process's next message, or None.

        Raises:
            PeerError: the process ended without another message, or a process of the peer ended.
        """
        self._peer.check()
        if not self._from.poll(wait_s):
            return None
        try:
            return self._from.recv()
        except EOFError:
            self._process.join(5)
            raise PeerError(
                f"The load process {self._process.name} ended with exit code {self._process.exitcode}; see above."
            ) from None

    def wait_for(self, what: str | type, within_s: float) -> Any:
        """Wait for this message and ignore others."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            got = self.next_message(1.0)
            if got == what or (isinstance(what, type) and isinstance(got, what)):
                return got
        raise PeerError(f"A load process did not answer within {within_s:.0f} s.")

    def _end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


@contextmanager
def object_store(spec: Spec, folder: Path, data: Path | None = None) -> Iterator[tuple[Settings, dict[str, int]]]:
    """Provide an object store with an empty root, and the processes to measure.

    Args:
        spec: the run.
        folder: the run's scratch folder.
        data: the folder for a local store's data; ``folder`` if None.
    """
    root = f"bench-{uuid.uuid4().hex[:12]}"
    if spec.backend == "s3":
        base = Settings.load(profile="aws")
        settings = replace(base, root=f"{base.root}/{root}", state_dir=folder)
        try:
            yield settings, {}
        finally:
            store = open_store(settings)
            store.delete([found.path for found in store.list("")])
        return
    location = (data or folder) / "store"
    starting = minio_server(os.environ, location) if spec.backend == "minio" else start_embedded(location)
    with starting as server:
        settings = Settings(
            profile=spec.backend,
            root=f"s3://brokerless/{root}",
            endpoint=server.endpoint,
            access_key=server.access_key,
            secret_key=server.secret_key,
            state_dir=folder,
        )
        create_bucket(settings)
        yield settings, {"store": server.pid} if server.pid else {}
