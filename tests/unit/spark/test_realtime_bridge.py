"""Feed, bridge and packer together, between a store in memory and lanes that do what no JVM should."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from brokerless.clock import SYSTEM
from brokerless.columns import records
from brokerless.errors import BrokerlessError, PipelineError, StoreError
from brokerless.log.log import DeltaLog
from brokerless.producer.producer import Producer
from brokerless.schema import Schema, dead_letters, partition_table
from brokerless.spark.inputs import first_position, open_inputs
from brokerless.spark.messages import METADATA, columns_of, skipped_objects
from brokerless.spark.outputs import OutputLog, PipelineOutputs, UploadedFiles
from brokerless.spark.progress import SourceOffset, app_id
from brokerless.spark.realtime import bridge as bridge_module
from brokerless.spark.realtime import feed as feed_module
from brokerless.spark.realtime import packer as packer_module
from brokerless.spark.realtime.bridge import Bridge
from brokerless.spark.realtime.engine import _arrow_schema
from brokerless.spark.realtime.feed import Feed
from brokerless.spark.realtime.packer import Committed, Packer
from brokerless.topics import create_topic
from tests.support.fake_jvm import FakeJvm
from tests.support.fakes import FakeStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SOON_S = 10.0
SCHEMA = Schema.parse("n long")
OUT = pa.schema([("n", pa.int64()), ("_dead_letter", pa.struct([("n", pa.int64())]))])


class Store(FakeStore):
    """In memory; uploads of the output wait while ``open`` is not set."""

    def __init__(self) -> None:
        super().__init__(SYSTEM)  # type: ignore[arg-type]
        self.open = threading.Event()
        self.open.set()

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        if path.startswith("out"):
            self.open.wait(SOON_S)
        super().put(path, data, within_s=within_s)


@pytest.fixture
def store() -> Store:
    """With an input of two partitions, an output and its dead letters."""
    store = Store()
    create_topic(store, "in", SCHEMA, partitions=2)
    create_topic(store, "out", SCHEMA)
    create_topic(store, dead_letters("out"), SCHEMA)
    return store


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few rows, so that a commit goes over all lanes."""
    monkeypatch.setattr(bridge_module, "CHUNK_ROWS", 4)
    monkeypatch.setattr(feed_module, "IDLE_S", 0.2)


def send(store: FakeStore, ids: Sequence[int], *, partition: int = 0) -> None:
    """One commit."""
    with Producer("in", store=store, partition=partition) as producer:
        producer.send({"n": list(ids)})


def send_objects(store: FakeStore, objects: Sequence[Sequence[int]], *, partition: int = 0) -> list[str]:
    """One commit of several objects; their paths."""
    log = DeltaLog(store, partition_table("in", partition))
    output = OutputLog(store, "out", SCHEMA, "nobody")
    adds, paths = [], []
    for ids in objects:
        uploaded = UploadedFiles()
        output.upload(pa.table({"n": pa.array(ids, pa.int64())}), uploaded)
        for add in uploaded.adds:
            adds.append(add)
            paths.append(f"{log.table}/{add.path}")
            store.put(paths[-1], uploaded.data[add.path])
    log.append(adds, {})
    return paths


def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Every message twice; those that 5 divides are dead letters, those that 7 does are left out."""
    made = [one for n in rows.column("n").to_pylist() if n % 7 for one in (n, n)]
    return pa.record_batch([made, [{"n": n} if n % 5 == 0 else None for n in made]], schema=OUT)


def nothing(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A filter that no message passes."""
    return pa.record_batch([[], []], schema=OUT)


class Run:
    """As ``start_realtime``, with lanes of our own in the place of Spark's."""

    def __init__(
        self,
        store: FakeStore,
        *,
        lanes: int = 1,
        until: bool = True,
        skip: str = "",
        transform: Callable[[pa.RecordBatch], pa.RecordBatch] = doubled,
        interval_s: float = 0.0,
        **jvm: object,
    ) -> None:
        self.bridge = Bridge(lanes=lanes, interval_s=interval_s)
        self.jvm = FakeJvm(self.bridge.listener.options, lanes, transform, **jvm).start()  # type: ignore[arg-type]
        assert self.bridge.listener.wait_connected(SOON_S)
        options = {"topics": "in", "pipeline": "pipe", "output": "out", "metadata": "true", "skip": skip}
        if until:
            options["until"] = "now"
        outputs = PipelineOutputs(
            OutputLog(store, "out", SCHEMA, "pipe"), OutputLog(store, dead_letters("out"), SCHEMA, "pipe"), "pipe"
        )
        outputs.claim()
        outputs.record_start(first_position(store, options, outputs.output))
        inputs = open_inputs(store, options)
        columns = columns_of(store, options)
        offset = SourceOffset(inputs.at, inputs.at, inputs.ids, rows=0, known_rows=0)
        self.packer = Packer(outputs, offset, lanes=lanes, ahead=inputs.ahead)
        self.feed = Feed(
            store,
            inputs,
            columns[: -len(METADATA)],
            skipped=skipped_objects(options),
            committed=lambda: self.packer.committed.at,
        )
        self.reports: list[Committed] = []
        self.bridge.begin(self.feed, self.packer, _arrow_schema(columns), self.reports.append)

    def wait(self, timeout_s: float = SOON_S) -> BrokerlessError | None:
        """Until it ends; its error."""
        assert self.bridge.ended.wait(timeout_s), "it did not end"
        return self.bridge.error

    def stop(self) -> None:
        """Ends it, and makes sure that the lanes ended with it."""
        self.bridge.close()
        assert self.jvm.join()
        assert not self.bridge.listener.folder.exists()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def soon(check: Callable[[], bool], what: str) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + SOON_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def entries(store: FakeStore, topic: str = "out") -> Iterator[tuple[dict[str, int], list[int]]]:
    """The position and the rows of each entry."""
    log = DeltaLog(store, topic)
    tables = [partition_table("in", number) for number in range(2)]
    apps = {app_id("pipe", table, DeltaLog(store, table).state.metadata.id): table for table in tables}
    for version in range(log.state.version + 1):
        entry = log.read(version)
        assert entry is not None
        rows = [n for add in entry.messages for n in records.load(store, f"{topic}/{add.path}")["n"].to_pylist()]
        yield {apps[app]: number for app, number in entry.txns.items() if app in apps}, rows


def rows_of(store: FakeStore, topic: str = "out") -> list[int]:
    """All rows of an output."""
    return [row for _, rows in entries(store, topic) for row in rows]


def check_exact(store: FakeStore, *partitions: Sequence[int]) -> None:
    """Each message that was to pass is twice in its output, and each partition's are in order."""
    for topic, bad in (("out", False), (dead_letters("out"), True)):
        rows = rows_of(store, topic)
        expected = [[n for n in ids if n % 7 and (n % 5 == 0) is bad for _ in (0, 1)] for ids in partitions]
        assert sorted(rows) == sorted(row for part in expected for row in part)
        for part in expected:
            here = set(part)
            assert [row for row in rows if row in here] == part


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("frame_rows", [1, 5, 10_000])
def test_all_messages_come_out_once_and_in_order(store: Store, lanes: int, frame_rows: int) -> None:
    first, second = list(range(1, 90)), list(range(1001, 1060))
    for begin in range(0, len(first), 20):
        send(store, first[begin : begin + 20])
        send(store, second[begin : begin + 20], partition=1) if second[begin : begin + 20] else None
    delays = {0: 0.01, 1: 0.0, 2: 0.003}
    with Run(store, lanes=lanes, frame_rows=frame_rows, delay_s=delays) as run:
        assert run.wait() is None
        assert run.bridge.is_done
        assert (run.packer.rows, run.packer.size, run.feed.waiting()) == (0, 0, 0)
        assert all(run.jvm.chunks[lane] for lane in range(lanes))  # one partition went over all of them
        assert sum(report.read for report in run.reports) == len(first) + len(second)
    check_exact(store, first, second)


def test_a_run_without_an_end_goes_on_with_what_comes(store: Store) -> None:
    with Run(store, lanes=2, until=False) as run:
        for number in range(5):
            send(store, range(10 * number + 1, 10 * number + 11))
            soon(lambda last=10 * number + 6: last in rows_of(store), "what came was not committed")
        assert not run.bridge.ended.is_set()
        run.bridge.drain(SOON_S)
    check_exact(store, range(1, 51))


@pytest.mark.parametrize("how", ["within a frame", "nothing", "wrong"])
def test_a_lane_that_dies_ends_the_run_with_nothing_half_committed_and_the_next_goes_on(store: Store, how: str) -> None:
    for begin in (1, 21, 41):
        send(store, range(begin, begin + 20))
    with Run(store, lanes=3, dies_at=(7, how)) as run:
        begun = time.monotonic()
        error = run.wait()
        assert time.monotonic() - begun < SOON_S / 2
        if how == "nothing":
            assert error is None  # Spark says why a task has ended
        else:
            assert isinstance(error, PipelineError)
        assert not run.bridge.is_done
    so_far = list(entries(store))
    assert [rows for at, rows in so_far if rows] in ([], [[n for n in range(1, 21) if n % 7 and n % 5 for _ in (0, 1)]])
    with Run(store, lanes=2) as run:
        assert run.wait() is None
    check_exact(store, range(1, 61))


def test_a_commit_that_waits_for_a_held_lane_holds_back_what_is_behind_it(store: Store) -> None:
    send(store, range(1, 9))  # two chunks
    send(store, range(9, 13))
    # The first lane is slow, so that the second chunk goes to the second one.
    with Run(store, lanes=3, holds=frozenset({1}), delay_s={0: 0.3}) as run:
        soon(lambda: bool(run.jvm.chunks[1]), "the held lane got nothing")
        soon(run.packer.is_ready, "no lane gave anything back")
        time.sleep(0.1)
        assert rows_of(store) == []
        run.jvm.gate.set()
        assert run.wait() is None
    check_exact(store, range(1, 13))


def test_a_slow_store_stops_the_feed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = range(1, 401)
    for begin in range(0, 400, 20):
        send(store, ids[begin : begin + 20])
    monkeypatch.setattr(bridge_module, "IN_FLIGHT_BYTES", 4_000)
    monkeypatch.setattr(packer_module, "PACK_BYTES", 2_000)
    store.open.clear()
    with Run(store, lanes=2) as run:
        soon(lambda: run.packer.size > 4_000, "the feed gave nothing")
        time.sleep(0.3)
        most = run.packer.size
        assert 4_000 < most < 8_000  # soft by one commit
        assert run.feed.waiting() > 200
        store.open.set()
        assert run.wait() is None
        assert run.packer.size == 0
    check_exact(store, ids)


@pytest.mark.parametrize("transform", [doubled, nothing])
def test_a_commit_larger_than_what_may_be_in_flight_comes_to_its_end(
    store: Store, monkeypatch: pytest.MonkeyPatch, transform: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> None:
    monkeypatch.setattr(bridge_module, "IN_FLIGHT_BYTES", 3_000)
    monkeypatch.setattr(packer_module, "PACK_BYTES", 2_000)
    objects = [list(range(begin, begin + 50)) for begin in range(1, 401, 50)]
    send_objects(store, objects)
    with Run(store, lanes=2, transform=transform) as run:
        assert run.wait() is None
        assert run.packer.size == 0
    if transform is doubled:
        assert sum(1 for _, rows in entries(store) if rows) == 1
        check_exact(store, range(1, 401))


def test_the_second_object_of_a_commit_that_cannot_be_read_holds_back_only_its_partition(store: Store) -> None:
    _, damaged = send_objects(store, [range(1, 9), range(9, 13)])
    send(store, range(1001, 1009), partition=1)
    store.objects[damaged] = b"nothing"
    with Run(store, lanes=2) as run:
        assert isinstance(run.wait(), StoreError)
    check_exact(store, [], range(1001, 1009))
    with Run(store, lanes=2, skip=f"in@{DeltaLog(store, 'in').state.version}:8") as run:
        assert run.wait() is None
    check_exact(store, range(1, 9), range(1001, 1009))


def test_what_is_on_its_way_is_committed_before_an_object_that_cannot_be_read_ends_the_run(store: Store) -> None:
    send(store, range(1, 9))
    with Run(store, until=False, interval_s=1.5) as run:
        soon(lambda: bool(run.reports), "nothing was committed")
        send(store, range(9, 17))
        [damaged] = send_objects(store, [[17]])
        store.objects[damaged] = b"nothing"
        assert isinstance(run.wait(), StoreError)
    check_exact(store, range(1, 17))


def test_drain_commits_what_is_on_its_way(store: Store) -> None:
    send(store, range(1, 41))
    with Run(store, lanes=2, until=False, delay_s={0: 0.02, 1: 0.01}) as run:
        soon(lambda: run.packer.size > 0, "nothing came in")
        run.bridge.drain(SOON_S)
        assert run.packer.size == 0
        send(store, range(41, 50))
        time.sleep(0.2)
        assert run.packer.size == 0  # nothing more is let in
    check_exact(store, range(1, 41))


def test_drain_does_not_wait_for_a_commit_of_which_half_was_let_in(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "IN_FLIGHT_BYTES", 1_000)
    monkeypatch.setattr(packer_module, "PACK_BYTES", 500)
    objects = [list(range(begin, begin + 20)) for begin in range(1, 101, 20)]
    send_objects(store, objects)
    with Run(store, until=False, holds=frozenset({0})) as run:
        soon(lambda: run.packer.size > 1_000, "nothing came in")
        opener = threading.Timer(0.2, run.jvm.gate.set)
        opener.start()
        begun = time.monotonic()
        run.bridge.drain(SOON_S)
        assert time.monotonic() - begun < SOON_S / 2
        assert run.bridge.error is None
    assert rows_of(store) in ([], [n for n in range(1, 101) if n % 7 and n % 5 for _ in (0, 1)])
    with Run(store) as run:
        assert run.wait() is None
    check_exact(store, range(1, 101))


def test_who_is_taken_over_stops(store: Store) -> None:
    send(store, range(1, 9))
    with Run(store, until=False) as run:
        soon(lambda: bool(rows_of(store)), "nothing was committed")
        with Run(store) as other:
            assert other.wait() is None
        send(store, range(9, 17))
        assert "took over" in str(run.wait())
    with Run(store) as run:
        assert run.wait() is None
    check_exact(store, range(1, 17))


def test_a_run_of_which_nothing_is_let_in_ends_without_a_trace(store: Store) -> None:
    bridge = Bridge(lanes=2, interval_s=0.0)
    jvm = FakeJvm(bridge.listener.options, 2, doubled).start()
    assert bridge.listener.wait_connected(SOON_S)
    before = dict(store.objects)
    bridge.close()
    assert jvm.join()
    assert jvm.chunks == {0: [], 1: []}
    assert (store.objects, bridge.error) == (before, None)


def test_lanes_that_do_not_come_are_not_waited_for_longer_than_asked() -> None:
    bridge = Bridge(lanes=2, interval_s=0.0)
    jvm = FakeJvm(bridge.listener.options, 1, doubled).start()
    assert not bridge.listener.wait_connected(0.05)
    bridge.close()
    assert jvm.join()
