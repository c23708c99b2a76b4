"""A forked process: its copies of producers and consumers have no threads, and must not wait for them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.consumer import Consumer
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_topic
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Newer Pythons warn of what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

HANGS_AFTER_S = 5


def in_child(act: Callable[[], object]) -> str:
    """What comes of it in a forked process: its result or the error's text; a process that hangs is killed."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # without the handler of the test's own time limit
        signal.alarm(HANGS_AFTER_S)
        try:
            os.write(into, str(act()).encode())
        except BaseException as error:  # nothing may go on as a second pytest
            os.write(into, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as answers:
        answer = answers.read()
    _, status = os.waitpid(pid, 0)
    return answer if status == 0 else f"killed by signal {os.WTERMSIG(status)}"


@contextlib.contextmanager
def held(*locks: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    """Locks that another thread holds, which a fork does not copy."""
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            begun.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert begun.wait(10)
        yield
    finally:
        done.set()
        holder.join()


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore(FakeClock())
    create_topic(store, "t", Schema.parse("n long"), partitions=2)
    return store


def test_a_copied_producer_refuses_and_leaves_the_rest_to_its_parent(store: FakeStore) -> None:
    producer = Producer("t", store=store, partition=0, producer_id="p", linger_s=60)
    later = producer.enqueue({"n": [1]})
    calls: list[Callable[[], object]] = [
        lambda: producer.send({"n": [2]}),
        lambda: producer.enqueue({"n": [2]}),
        producer.flush,
        producer.claim,
        producer.last_sequence,
    ]
    with held(producer._start_lock, producer._commit_lock, producer._buffer._change):
        for call in calls:
            answer = in_child(call)
            assert answer.startswith(f"UsageError: This producer was opened in process {os.getpid()}, "), answer
            assert answer.endswith("open a new producer in each process, after the fork.")
        before = store.requests.total()
        assert in_child(lambda: (producer.close(), store.requests.total() - before)) == "(None, 0)"
    producer.close()
    assert [ack.rows for ack in later.result(10)] == [1]


def test_a_copied_consumer_refuses(store: FakeStore) -> None:
    with Producer("t", store=store) as producer:
        producer.send({"n": [1]})
    with Consumer("t", start="beginning", store=store) as consumer:
        assert len(consumer.poll(0)) == 1
        with held(consumer._polling, consumer._stopped._cond):
            for call in (lambda: consumer.poll(0), lambda: next(iter(consumer)), lambda: consumer.seek("latest")):
                answer = in_child(call)
                assert answer.startswith(f"UsageError: This consumer was opened in process {os.getpid()}, "), answer
            assert in_child(consumer.close) == "None"
        assert consumer.poll(0) == []
