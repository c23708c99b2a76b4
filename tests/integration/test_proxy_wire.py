"""What the fault proxy passes on, byte for byte, before a server that records."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from brokerless.testing import FaultProxy, Rule, Script, SlowDown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokerless import Settings

pytestmark = pytest.mark.faults

WAIT_S = 30.0


class Recorder:
    """A server for one connection at a time: ``take`` reads what came, ``give`` answers."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(WAIT_S)
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.peer: socket.socket | None = None

    def take(self, size: int) -> bytes:
        if self.peer is None:
            self.peer, _ = self.listener.accept()
            self.peer.settimeout(WAIT_S)
        return read(self.peer, size)

    def give(self, data: bytes) -> None:
        assert self.peer
        self.peer.sendall(data)

    def hang_up(self) -> None:
        assert self.peer
        self.peer.close()
        self.peer = None


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, f"closed after {data!r}"
        data += piece
    return data


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    found = Recorder()
    yield found
    found.listener.close()
    if found.peer:
        found.peer.close()


@pytest.fixture
def client(recorder: Recorder) -> Iterator[socket.socket]:
    with FaultProxy(recorder.endpoint) as proxy:
        host, port = urlsplit(proxy.endpoint).netloc.split(":")
        with socket.create_connection((host, int(port)), WAIT_S) as connection:
            yield connection


REQUEST = b"PUT /b/k%2Fx?x-id=A%20b HTTP/1.1\r\nhost: Signed:1\r\nX-aMz-Meta:  two  \r\nX-aMz-Meta: \xe9\r\n"
GET = b"GET /b/k HTTP/1.1\r\n\r\n"
OK = b"HTTP/1.1 200 Fine\r\nETag: x\r\netag: y\r\nContent-Length: 2\r\n\r\nhi"


def test_heads_and_bodies_pass_byte_for_byte(recorder: Recorder, client: socket.socket) -> None:
    sent = REQUEST + b"Content-Length: 3\r\n\r\nabc"
    for _ in range(2):  # the connections stay
        client.sendall(sent)
        assert recorder.take(len(sent)) == sent
        recorder.give(OK)
        assert read(client, len(OK)) == OK


def test_chunks_pass_byte_for_byte_both_ways(recorder: Recorder, client: socket.socket) -> None:
    chunks = b"3;ext=1\r\nabc\r\n1\r\nd\r\n0\r\nTrailer: t\r\n\r\n"
    sent = REQUEST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    for _ in range(2):
        client.sendall(sent)
        assert recorder.take(len(sent)) == sent
        recorder.give(answer)
        assert read(client, len(answer)) == answer


def test_bodies_are_streamed(recorder: Recorder, client: socket.socket) -> None:
    head = REQUEST + b"Content-Length: 2\r\n\r\n"
    client.sendall(head + b"a")
    assert recorder.take(len(head) + 1) == head + b"a"
    client.sendall(b"b")
    assert recorder.take(1) == b"b"
    recorder.give(OK[:-1])
    assert read(client, len(OK) - 1) == OK[:-1]
    recorder.give(OK[-1:])
    assert read(client, 1) == OK[-1:]


def test_a_client_that_asks_whether_to_go_on(recorder: Recorder, client: socket.socket) -> None:
    head = REQUEST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    go_on = b"HTTP/1.1 100 Continue\r\n\r\n"
    client.sendall(head)
    assert recorder.take(len(head)) == head
    recorder.give(go_on)
    assert read(client, len(go_on)) == go_on
    client.sendall(b"abc")
    assert recorder.take(3) == b"abc"
    recorder.give(OK)
    assert read(client, len(OK)) == OK


def test_a_client_that_is_told_not_to_go_on(recorder: Recorder, client: socket.socket) -> None:
    client.sendall(REQUEST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    recorder.take(len(REQUEST))
    recorder.give(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
    expected = b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    assert read(client, len(expected)) == expected
    assert client.recv(1) == b""


def test_an_answer_that_ends_with_its_connection(recorder: Recorder, client: socket.socket) -> None:
    client.sendall(GET)
    recorder.take(len(GET))
    recorder.give(b"HTTP/1.0 200 OK\r\n\r\nhello")
    recorder.hang_up()
    assert read(client, 24) == b"HTTP/1.0 200 OK\r\n\r\nhello"
    assert client.recv(1) == b""


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", OK[:-1]], ids=["none", "half a head", "half a body"])
def test_a_server_that_hangs_up_breaks_the_clients_connection(
    recorder: Recorder, client: socket.socket, answer: bytes
) -> None:
    client.sendall(GET)
    recorder.take(len(GET))
    recorder.give(answer)
    recorder.hang_up()
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(100):
            received += piece
    assert received == (answer if answer == OK[:-1] else b"")


def test_a_server_that_hangs_up_between_requests_is_called_again(recorder: Recorder, client: socket.socket) -> None:
    for _ in range(2):
        client.sendall(GET)
        assert recorder.take(len(GET))
        recorder.give(OK)
        assert read(client, len(OK)) == OK
        recorder.hang_up()


def test_a_fault_for_a_client_that_asks_whether_to_go_on(embedded_settings: Settings) -> None:
    assert embedded_settings.endpoint
    with FaultProxy(embedded_settings.endpoint, Script([Rule(SlowDown())])) as proxy:
        host, port = urlsplit(proxy.endpoint).netloc.split(":")
        with socket.create_connection((host, int(port)), WAIT_S) as connection:
            connection.sendall(REQUEST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
            go_on = b"HTTP/1.1 100 Continue\r\n\r\n"
            assert read(connection, len(go_on)) == go_on
            connection.sendall(b"abc")
            assert read(connection, 12) == b"HTTP/1.1 503"


@pytest.mark.parametrize(
    "nonsense", [b"nonsense\r\n\r\n", b"PUT / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"x" * 70_000]
)
def test_what_is_not_http_is_hung_up_on(client: socket.socket, nonsense: bytes) -> None:
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        client.sendall(nonsense)
        assert client.recv(1) == b""
