"""Who may be a lane: whoever shows the run's secret, once for each lane and side."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from brokerless.spark.realtime import listener as module
from brokerless.spark.realtime.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON_S = 5.0
LOOPBACK = ("127.0.0.1", "127.0.0.1")


class Lanes:
    """A listener and the lanes that it let in."""

    def __init__(self, network: tuple[str, str] | None) -> None:
        self.listener = Listener(2, network)
        self.came: list[tuple[str, int]] = []
        self.listener.start({side: self._handler(side) for side in ("in", "out")})

    def _handler(self, side: str):  # type: ignore[no-untyped-def]
        return lambda connection, lane: self.came.append((side, lane))

    def connect(self, side: str, hello: bytes) -> socket.socket:
        address = self.listener.addresses[side]
        if address.startswith("/"):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(address)
        else:
            host, _, port = address.rpartition(":")
            connection = socket.create_connection((host, int(port)), timeout=SOON_S)
        with contextlib.suppress(ConnectionError):  # it may be closed already
            connection.sendall(hello)
        return connection

    def hello(self, lane: int) -> bytes:
        return bytes.fromhex(self.listener.options["token"]) + lane.to_bytes(4, "little")


@pytest.fixture(params=[None, LOOPBACK], ids=["unix", "tcp"])
def lanes(request: pytest.FixtureRequest) -> Iterator[Lanes]:
    lanes = Lanes(request.param)
    yield lanes
    lanes.listener.close()


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(SOON_S)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_all_lanes_are_let_in_and_then_nobody(lanes: Lanes) -> None:
    for side in ("in", "out"):
        for lane in (1, 0):
            assert not lanes.listener.wait_connected(0)
            lanes.connect(side, lanes.hello(lane))
    assert lanes.listener.wait_connected(SOON_S)
    assert sorted(lanes.came) == [("in", 0), ("in", 1), ("out", 0), ("out", 1)]
    with pytest.raises(OSError):
        is_closed(lanes.connect("in", lanes.hello(0))) and pytest.fail("it was still listening")


@pytest.mark.parametrize("lane", [0, 2, 2**31])
def test_a_wrong_secret_an_unknown_lane_and_a_second_one_are_closed(lanes: Lanes, lane: int) -> None:
    lanes.connect("in", lanes.hello(0))
    deadline = time.monotonic() + SOON_S
    while lanes.came != [("in", 0)] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_closed(lanes.connect("in", lanes.hello(lane)))
    assert is_closed(lanes.connect("in", bytes(32) + (1).to_bytes(4, "little")))
    assert lanes.came == [("in", 0)]


def test_who_says_nothing_or_too_little_keeps_nobody_out(lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_S", 0.3)
    silent, short = lanes.connect("in", b""), lanes.connect("out", lanes.hello(0)[:-1])
    for side in ("in", "out"):
        for lane in (0, 1):
            lanes.connect(side, lanes.hello(lane))
    assert lanes.listener.wait_connected(SOON_S)
    assert is_closed(silent)
    assert is_closed(short)


def test_no_more_than_so_many_strangers_wait(lanes: Lanes) -> None:
    lanes.listener._unknown = threading.BoundedSemaphore(1)
    silent = lanes.connect("in", b"")
    time.sleep(0.1)
    assert is_closed(lanes.connect("in", lanes.hello(0)))
    silent.close()
    time.sleep(0.1)
    lanes.connect("in", lanes.hello(0))
    deadline = time.monotonic() + SOON_S
    while not lanes.came and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lanes.came == [("in", 0)]


def test_the_end_closes_lanes_and_strangers() -> None:
    lanes = Lanes(LOOPBACK)
    connection = lanes.connect("in", lanes.hello(0))
    deadline = time.monotonic() + SOON_S
    while not lanes.came and time.monotonic() < deadline:
        time.sleep(0.01)
    lanes.listener.close()
    assert is_closed(connection)
    assert not lanes.listener.folder.exists()
    assert not lanes.listener.wait_connected(0)


def test_each_run_has_a_secret_of_its_own() -> None:
    one, other = Listener(1), Listener(1)
    assert one.options["token"] != other.options["token"]
    assert len(bytes.fromhex(one.options["token"])) == 32
    one.close()
    other.close()
