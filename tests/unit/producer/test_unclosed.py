"""Producers that nobody closes: what they hold is committed, or somebody hears of it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from brokerless.consumer import Consumer
from brokerless.errors import AccessDenied
from brokerless.producer import unclosed as module
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_topic
from tests.support.fakes import FakeClock, FakeStore, Put
from tests.unit.test_forks import held, in_child

ROOT = Path(__file__).resolve().parents[3]


class SlowStore(FakeStore):
    """Holds log entries back until it is opened."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.open = threading.Event()
        self.open.set()

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> object:  # type: ignore[override]
        self.open.wait(60)
        return super().put_if_absent(path, data, within_s=within_s)


@pytest.fixture
def store() -> SlowStore:
    store = SlowStore()
    create_topic(store, "t", Schema.parse("n long"))
    return store


def numbers(store: FakeStore) -> list[int]:
    with Consumer("t", start="beginning", store=store) as consumer:
        return [row["n"] for batch in consumer.poll(0) for row in batch.rows()]


def test_a_producer_that_nobody_holds_sends_what_it_has_and_then_goes(store: SlowStore) -> None:
    store.open.clear()
    producer = Producer("t", store=store, linger_s=0)
    future = producer.enqueue({"n": 1})
    thread, gone = producer._sender, weakref.ref(producer)
    assert thread is not None
    del producer
    gc.collect()
    assert gone() is not None  # its messages are not lost with it
    store.open.set()
    assert future.result(10)
    thread.join(10)
    gc.collect()
    assert not thread.is_alive()
    assert gone() is None
    assert numbers(store) == [1]


def test_a_dropped_producer_without_messages_ends_its_thread(store: SlowStore) -> None:
    producer = Producer("t", store=store, linger_s=0)
    producer.enqueue({"n": 1}).result(10)
    producer.flush(10)
    thread = producer._sender
    assert thread is not None
    assert thread.is_alive()
    del producer
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def fail_to_enqueue(store: SlowStore, capsys: pytest.CaptureFixture[str], *, hold: str) -> str:
    with Producer("t", store=store, linger_s=0) as producer:
        store.puts = [Put(AccessDenied("no"), applied=False)]
        store.open.clear()
        future = producer.enqueue([{"n": 1}, {"n": 2}])
        if hold == "callback":
            future.add_done_callback(lambda done: done.exception())
        if hold != "future":
            del future
        store.open.set()
        producer.flush(10)
    return capsys.readouterr().err


def test_lost_messages_of_which_nobody_hears_are_named(store: SlowStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail_to_enqueue(store, capsys, hold="nothing") == (
        "brokerless: 2 messages for topic 't' are not acknowledged: no\n"
    )


@pytest.mark.parametrize("hold", ["future", "callback"])
def test_who_holds_the_future_is_not_told_twice(
    store: SlowStore, capsys: pytest.CaptureFixture[str], hold: str
) -> None:
    assert fail_to_enqueue(store, capsys, hold=hold) == ""


def at_end(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A program that ends with a producer open."""
    before = """
import threading, sys
from brokerless import Producer, Schema, Settings, create_topic, open_store
settings = Settings(profile="aws", root=sys.argv[1])
store = open_store(settings)
create_topic(store, "t", Schema.parse("n long"))
"""
    return subprocess.run(
        [sys.executable, "-c", before + code, f"file://{tmp_path}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_the_end_of_the_program_sends_what_is_buffered(tmp_path: Path) -> None:
    done = at_end(tmp_path, 'producer = Producer("t", store=store, linger_s=3600)\nproducer.enqueue({"n": 7})')
    assert done.stderr == ""
    from brokerless import Settings, open_store

    assert numbers(open_store(Settings(profile="aws", root=f"file://{tmp_path}"))) == [7]  # type: ignore[arg-type]


def test_the_end_of_the_program_waits_for_the_store_only_so_long_and_names_what_is_lost(tmp_path: Path) -> None:
    code = """
from brokerless.producer import unclosed as module
module.END_S = 0.5
store.put = lambda *args, **more: threading.Event().wait(60)
producers = [Producer("t", store=store, linger_s=0) for _ in range(3)]
for producer in producers:
    producer.enqueue([{"n": 1}, {"n": 2}])
"""
    began = time.monotonic()
    done = at_end(tmp_path, code)
    assert time.monotonic() - began < 10
    lost = [line for line in done.stderr.splitlines() if line.startswith("brokerless: 2 messages")]
    assert len(lost) == 3, done.stderr
    assert "topic 't' are not acknowledged: the store did not take them within 0.5 s. The program" in lost[0]


def test_a_forked_copy_ends_without_waiting_or_writing(store: SlowStore) -> None:
    producer = Producer("t", store=store, linger_s=60)
    producer.enqueue({"n": 1})
    with held(producer._buffer._change):
        assert in_child(module.end_all) == "None"
        assert in_child(lambda: module.close_lost(producer._buffer, producer._opened_in)) == "None"
    producer.close()
    assert numbers(store) == [1]
