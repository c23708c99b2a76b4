"""What a caller gives as a time is observed, whatever the store does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from brokerless import BrokerlessError, Consumer, Producer, Schema, StoreUnavailable, create_topic, open_store
from brokerless.deadlines import carried, left_s, patiently, requests_within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokerless import Settings

GIVEN_S = 1.5
LATE_S = 1.0


@contextlib.contextmanager
def in_time(given_s: float = GIVEN_S) -> Iterator[None]:
    began = time.monotonic()
    yield
    took_s = time.monotonic() - began
    assert took_s <= given_s + LATE_S, f"{took_s:.1f} s"


class Gateway:
    """Passes connections on to a server, until it is silenced: then it accepts, and never answers."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._silent = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        self._silent.set()

    def close(self) -> None:
        for one in [self._server, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._silent.is_set():
                    sink.sendall(data)


@pytest.fixture
def gateway(embedded_settings: Settings) -> Iterator[Gateway]:
    gateway = Gateway(urlsplit(str(embedded_settings.endpoint)).port or 0)
    yield gateway
    gateway.close()


@pytest.fixture
def settings(embedded_settings: Settings, gateway: Gateway) -> Settings:
    root = f"s3://brokerless-tests/{uuid.uuid4().hex}"
    settings = replace(embedded_settings, endpoint=f"http://127.0.0.1:{gateway.port}", root=root)
    create_topic(open_store(settings), "t", Schema.parse("n long"), partitions=2)
    return settings


@pytest.fixture(params=["silent", "refusing"])
def fail(request: pytest.FixtureRequest, gateway: Gateway) -> object:
    """Let the store fail: it accepts and never answers, or refuses connections."""
    return gateway.silence if request.param == "silent" else gateway.close


def test_opening_a_producer_ends_in_time(settings: Settings, fail) -> None:  # type: ignore[no-untyped-def]
    fail()
    with in_time(), pytest.raises(StoreUnavailable):
        Producer("t", settings=settings, delivery_timeout_s=GIVEN_S)


def test_sending_and_flushing_end_in_time(settings: Settings, fail) -> None:  # type: ignore[no-untyped-def]
    with Producer("t", settings=settings, delivery_timeout_s=GIVEN_S, linger_s=0, producer_id="p") as producer:
        producer.send({"n": 1})
        time.sleep(1.1)  # the next commit looks at the log before it writes
        fail()
        with in_time(), pytest.raises(BrokerlessError):
            producer.send({"n": 2})
        later = producer.enqueue({"n": 3})
        with in_time(0.5), pytest.raises(TimeoutError):
            producer.flush(0.5)
        with in_time():
            assert later.exception(10) is not None


def test_a_poll_ends_in_time_and_the_position_stays(settings: Settings, fail) -> None:  # type: ignore[no-untyped-def]
    with Consumer("t", settings=settings, start="beginning") as consumer:
        before = consumer.position()
        fail()
        with in_time(), pytest.raises(StoreUnavailable):
            consumer.poll(GIVEN_S)
        assert consumer.position() == before


def test_the_shortest_time_counts_and_is_carried_into_threads() -> None:
    assert left_s(None) is None
    assert left_s(3) == 3
    found: list[float | None] = []
    with requests_within(60):
        assert left_s(5) == 5
        assert 50 < (left_s(None) or 0) < 61
        for act in (lambda: found.append(left_s(None)), carried(lambda: found.append(left_s(None)))):
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()
        with requests_within(None):
            assert left_s(None) is None
    assert found[0] is None
    assert found[1] is not None
    with patiently(), requests_within(1):
        assert left_s(None) is None
