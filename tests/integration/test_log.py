"""The log on real S3 servers: many writers, lost answers, log clean-up, refusals by name."""

from __future__ import annotations

import dataclasses
import multiprocessing
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pyarrow as pa
import pytest

from brokerless import Consumer, DeltaLog, Producer, Schema, Settings, create_topic, delete_topic, open_store
from brokerless.errors import (
    AccessDenied,
    BucketNotFound,
    DeliveryFailed,
    OffsetOutOfRange,
    StoreUnavailable,
    TopicDeleted,
)
from brokerless.log.entries import Add
from brokerless.maintenance.maintainer import Maintainer
from brokerless.offsets import Offset
from brokerless.testing import (
    Conflict,
    Denied,
    Fault,
    FaultProxy,
    Gate,
    Held,
    LostAnswer,
    LostRequest,
    PreconditionFailed,
    Rule,
    ServerError,
    Truncated,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = Schema.parse("n long")
WAIT_S = 30
ENTRY_1 = "_delta_log/00000000000000000001.json"
ENTRY_2 = "_delta_log/00000000000000000002.json"


@pytest.fixture
def topic(settings: Settings) -> str:
    create_topic(open_store(settings), "t", SCHEMA)
    return "t"


@pytest.fixture
def proxy(settings: Settings) -> Iterator[FaultProxy]:
    assert settings.endpoint
    with FaultProxy(settings.endpoint) as proxy:
        yield proxy


def read(settings: Settings, topic: str = "t") -> list[int]:
    found: list[int] = []
    with Consumer(topic, start="beginning", settings=settings) as consumer:
        while batches := consumer.poll(0):
            found += [n for batch in batches for n in pa.table(batch.data)["n"].to_pylist()]
    return found


def append_many(settings: Settings, writer: int, count: int, barrier: object) -> None:
    barrier.wait(WAIT_S)  # type: ignore[attr-defined]
    log = DeltaLog(open_store(settings), "t")
    for n in range(count):
        log.append([Add(f"w{writer}-{n}.parquet", 1, 1, 1)])


def appended(settings: Settings) -> list[str]:
    return [add.path for entry in DeltaLog(open_store(settings), "t").read_from(0) for add in entry.adds]


def test_eight_processes_append_every_commit_exactly_once(settings: Settings, topic: str) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(8)
    writers = [context.Process(target=append_many, args=(settings, w, 10, barrier)) for w in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(WAIT_S * 2)
        assert writer.exitcode == 0
    found = appended(settings)
    assert sorted(found) == sorted(f"w{w}-{n}.parquet" for w in range(8) for n in range(10))
    for w in range(8):
        own = [path for path in found if path.startswith(f"w{w}-")]
        assert own == [f"w{w}-{n}.parquet" for n in range(10)]


def test_eight_threads_with_one_handle_and_eight_with_their_own(settings: Settings, topic: str) -> None:
    shared = DeltaLog(open_store(settings), topic)

    def work(writer: int) -> None:
        log = shared if writer < 8 else DeltaLog(open_store(settings), topic)
        for n in range(3):
            log.append([Add(f"w{writer}-{n}", 1, 1, 1)])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert sorted(appended(settings)) == sorted(f"w{w}-{n}" for w in range(16) for n in range(3))


APPLIED = [
    LostAnswer(),
    ServerError(applied=True),
    ServerError(503, applied=True),
    Conflict(applied=True),
    PreconditionFailed(applied=True),
]
NOT_APPLIED = [LostRequest(), ServerError(), ServerError(503), Conflict(), PreconditionFailed()]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "puts"), [*((fault, 1) for fault in APPLIED), *((fault, 3) for fault in NOT_APPLIED)], ids=repr
)
def test_a_falsified_answer_neither_loses_nor_doubles(
    settings: Settings, topic: str, proxy: FaultProxy, fault: Fault, puts: int
) -> None:
    with Producer(topic, settings=proxy.through(settings)) as producer:
        producer.send({"n": [0]})
        proxy.add(Rule(fault, op="PUT", key=ENTRY_2, times=2))
        (ack,) = producer.send({"n": [1]})
        assert ack.version == 2
        # The store's client never sends a conditional PUT twice by itself: only the log decides that.
        assert proxy.count("PUT", ENTRY_2) == puts
        proxy.clear()
        producer.send({"n": [2]})
    assert read(settings) == [0, 1, 2]


@pytest.mark.faults
def test_a_late_put_cannot_win_after_we_moved_on(settings: Settings, topic: str, proxy: FaultProxy) -> None:
    log = DeltaLog(open_store(proxy.through(settings)), topic)
    log.append([Add("f0", 1, 1, 1)])
    gate = Gate()
    proxy.add(Rule(Held(gate), op="PUT", key=ENTRY_2))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(log.append, [Add("slow", 1, 1, 1)])
        assert gate.wait_reached(WAIT_S)
        DeltaLog(open_store(settings), topic).append([Add("rival", 1, 1, 1)])
        gate.open()
        assert slow.result(WAIT_S).version == 3
    assert appended(settings) == ["f0", "rival", "slow"]


@pytest.mark.faults
@pytest.mark.parametrize("fault", [LostAnswer(), ServerError(applied=True), Truncated()], ids=repr)
def test_a_lost_upload_or_read_is_sent_again(settings: Settings, topic: str, proxy: FaultProxy, fault: Fault) -> None:
    with Producer(topic, settings=proxy.through(settings)) as producer:
        if not isinstance(fault, Truncated):
            proxy.add(Rule(fault, op="PUT", key="*.parquet"))
        producer.send({"n": [0]})
    proxy.add(*(Rule(fault, op="GET", key=key) for key in (ENTRY_1, "*.parquet")))
    assert read(proxy.through(settings)) == [0]
    assert not proxy.pending()


@pytest.mark.faults
def test_a_server_that_is_away_for_longer_than_a_moment_is_waited_for(
    settings: Settings, topic: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from brokerless import store

    monkeypatch.setitem(store._RETRY["backoff"], "max_backoff", timedelta(milliseconds=100))
    with Producer(topic, settings=settings) as producer:
        producer.send({"n": [0]})
    # More refusals than the client takes by default; with its own waits they could last for half a minute.
    proxy.add(Rule(LostRequest(), op="GET", key=ENTRY_1, times=16))
    assert read(proxy.through(settings)) == [0]
    assert not proxy.pending()


@pytest.mark.faults
def test_unknown_outcome_is_reported_and_resolved_by_the_same_sequence(
    settings: Settings, topic: str, proxy: FaultProxy
) -> None:
    with Producer(topic, settings=proxy.through(settings), producer_id="p", delivery_timeout_s=1.0) as producer:
        producer.send({"n": [0]}, sequence=0)
        proxy.add(Rule(LostAnswer(), op="PUT", key="*3.json"), Rule(Denied(), op="GET", key="*3.json"))
        with pytest.raises(DeliveryFailed) as caught:
            producer.send({"n": [1]}, sequence=1)
        assert caught.value.unknown
        proxy.clear()
        (ack,) = producer.send({"n": [1]}, sequence=1)
        assert ack.duplicate
    assert read(settings) == [0, 1]


def unsafe(settings: Settings, **more: int) -> Maintainer:
    return Maintainer(
        ["t"], settings=settings, checkpoint_every=1, log_retention_s=0, grace_s=0, unsafe_no_minimum=True, **more
    )


def test_log_clean_up_behind_a_reader(settings: Settings, topic: str) -> None:
    with Producer(topic, settings=settings) as producer, Consumer(topic, settings=settings) as reader:
        for n in range(5):
            producer.send({"n": [n]})
        (report,) = unsafe(settings).run_once()
        assert (report.checkpoint, report.entries_removed, report.skipped) == (5, 5, ())
        with pytest.raises(OffsetOutOfRange) as caught:
            reader.poll(0)
        assert caught.value.earliest == Offset(5)
        reader.seek(caught.value.earliest)
        assert [batch.version for batch in reader.poll(0)] == [5]
        producer.send({"n": [5]})
        assert [batch.version for batch in reader.poll(1)] == [6]
    assert DeltaLog(open_store(settings), topic).load(with_files=True).version == 6
    assert len(DeltaLog(open_store(settings), topic).load(with_files=True).files) == 6


def test_a_writer_that_outlives_its_topic(settings: Settings, topic: str) -> None:
    store = open_store(settings)
    with Producer(topic, settings=settings) as stale:
        stale.send({"n": [0]})
        delete_topic(store, topic)
        create_topic(store, topic, SCHEMA)
        with pytest.raises(TopicDeleted, match="deleted"):
            stale.send({"n": [1]})
    with Producer(topic, settings=settings) as producer:
        producer.send({"n": [2]})
    assert read(settings) == [2]
    live = DeltaLog(store, topic).load(with_files=True).files
    assert len(live) == 1


def test_maintenance_beside_a_running_producer_and_consumer(settings: Settings, topic: str) -> None:
    sent = 150
    seen: list[int] = []
    stop = threading.Event()
    errors: list[str] = []

    def keep_order() -> None:
        maintainer = Maintainer(["t"], settings=settings, checkpoint_every=20)
        for reports in maintainer.watch(0.05, stop):
            errors.extend(text for report in reports for text in report.skipped)

    def consume() -> None:
        with Consumer(topic, settings=settings, start="beginning") as reader:
            while len(seen) < sent:
                batches = reader.poll(WAIT_S)
                assert batches
                seen.extend(n for batch in batches for n in pa.table(batch.data)["n"].to_pylist())

    with ThreadPoolExecutor(2) as pool, Producer(topic, settings=settings) as producer:
        tasks = [pool.submit(keep_order), pool.submit(consume)]
        try:
            for n in range(sent):
                producer.send({"n": [n]})
            tasks[1].result(WAIT_S)
        finally:
            stop.set()
        tasks[0].result(WAIT_S)
    assert errors == []
    assert seen == list(range(sent))
    assert (DeltaLog(open_store(settings), topic).checkpoint_version() or 0) >= 20


@pytest.mark.minio
def test_wrong_credentials_are_named(minio_settings: Settings) -> None:
    for change, named in [
        ({"secret_key": "wrong-secret"}, "SignatureDoesNotMatch"),
        ({"access_key": "nobody"}, "Invalid"),
    ]:
        wrong = dataclasses.replace(minio_settings, root=f"{minio_settings.root}/x", **change)  # type: ignore[arg-type]
        with pytest.raises(AccessDenied, match=named) as caught:
            create_topic(open_store(wrong), "t", SCHEMA)
        assert "wrong-secret" not in str(caught.value)


def test_a_missing_bucket_is_named(settings: Settings) -> None:
    store = open_store(dataclasses.replace(settings, root="s3://no-such-bucket/x"))
    for call in (lambda: create_topic(store, "t", SCHEMA), lambda: list(store.list("x")), store.folders):
        with pytest.raises(BucketNotFound, match="'no-such-bucket'"):
            call()


def test_an_endpoint_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from brokerless import store
    from brokerless.local.processes import free_port

    monkeypatch.setattr(store, "_RETRY", store._ONCE)
    settings = Settings(
        profile="minio", root="s3://b/x", endpoint=f"http://127.0.0.1:{free_port()}", access_key="a", secret_key="b"
    )
    with pytest.raises(StoreUnavailable, match="s3://b/x"):
        Producer("t", settings=settings)


@pytest.mark.minio
@pytest.mark.parametrize(("minutes", "status"), [(0, 200), (-20, 403), (20, 403)])
def test_the_store_refuses_a_put_that_was_signed_by_a_clock_that_stood_still(
    minio_settings: Settings, monkeypatch: pytest.MonkeyPatch, minutes: int, status: int
) -> None:
    # What keeps a suspended machine out of the past (invariant 4 of the log) is the store's time, not the machine's.
    auth = pytest.importorskip("botocore.auth")
    request_of = pytest.importorskip("botocore.awsrequest").AWSRequest
    credentials = pytest.importorskip("botocore.credentials").Credentials

    now = datetime.now(UTC) + timedelta(minutes=minutes)
    monkeypatch.setattr(auth, "get_current_datetime", lambda *_: now.replace(tzinfo=None))
    url = f"{minio_settings.endpoint}/{minio_settings.root.removeprefix('s3://')}/t/_delta_log/{uuid.uuid4().hex}.json"
    request = request_of("PUT", url, data=b"{}", headers={"If-None-Match": "*"})
    auth.S3SigV4Auth(credentials(minio_settings.access_key, minio_settings.secret_key), "s3", "us-east-1").add_auth(
        request
    )
    prepared = request.prepare()
    sent = Request(url, data=b"{}", headers=dict(prepared.headers), method="PUT")  # noqa: S310  # a server of this test
    try:
        with build_opener(ProxyHandler({})).open(sent, timeout=10) as answer:
            assert answer.status == status
    except HTTPError as error:
        assert (error.code, b"RequestTimeTooSkewed" in error.read()) == (status, True)
