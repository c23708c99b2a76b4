"""The store's clients: deadlines, bodies on slow links, and what a local folder holds after a power cut."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokerless import store as stores
from brokerless.bucket import create_bucket
from brokerless.errors import StoreError, StoreUnavailable
from brokerless.settings import Settings
from brokerless.store import ObstoreStore, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LATE_S = 0.3
ENTRY = "t/_delta_log/00000000000000000000.json"


@dataclass
class Server:
    """As much of S3 as GET, HEAD and PUT need, over a link of ``rate`` bytes a second.

    Attributes:
        failing: so many requests are answered with 503 before the others are served.
        hanging: no request is answered.
    """

    rate: float = float("inf")
    failing: int = 0
    hanging: bool = False
    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    peers: set[tuple[str, int]] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                body = b"".join(self.slowly(int(self.headers["Content-Length"] or 0), self.rfile.read))
                if self.is_served():
                    server.objects[self.path] = body
                    self.answer(200, b"", ETag='"1"')

            def do_GET(self) -> None:
                if not self.is_served():
                    return
                body = server.objects.get(self.path)
                if body is None:
                    return self.answer(404, b"")
                if given := self.headers["Range"]:
                    first = int(given.removeprefix("bytes=").partition("-")[0])
                    span = f"bytes {first}-{len(body) - 1}/{len(body)}"
                    return self.answer(206, body[first:], ETag='"1"', Content_Range=span)
                self.answer(200, body, ETag='"1"')

            do_HEAD = do_GET

            def is_served(self) -> bool:
                server.peers.add(self.client_address)
                if server.hanging:
                    server.over.wait(60)
                if not server.failing and not server.hanging:
                    return True
                server.failing -= 1
                self.answer(503, b"")
                return False

            def answer(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    view = memoryview(body)
                    done = 0
                    for count in self.slowly(len(body), int):
                        self.wfile.write(view[done : done + count])
                        done += count

            def slowly(self, size: int, move: Callable[[int], Any]) -> Iterator[Any]:
                piece = size if server.rate == float("inf") else max(1, int(server.rate / 50))
                for done in range(0, size, piece or 1):
                    count = min(piece, size - done)
                    yield move(count)
                    if piece < size:
                        time.sleep(count / server.rate)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def store(server: Server) -> Iterator[ObstoreStore]:
    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:  # clients that hang up
            pass

    http = Quiet(("127.0.0.1", 0), server.handler())
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    server.port = http.server_port
    yield open_store(s3(server.port))
    server.over.set()
    http.shutdown()
    http.server_close()


def s3(port: int) -> Settings:
    return Settings("minio", "s3://bucket", endpoint=f"http://127.0.0.1:{port}", access_key="k", secret_key="s")


def elapsed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def calls(store: ObstoreStore, within_s: float) -> list[Callable[[], object]]:
    return [
        lambda: store.get("t/x", within_s=within_s),
        lambda: store.put("t/x", b"x", within_s=within_s),
        lambda: store.exists("t/x", within_s=within_s),
    ]


def fails(call: Callable[[], object]) -> Callable[[], object]:
    def failing() -> None:
        with pytest.raises(StoreUnavailable, match=r"up to 0\.6 s"):
            call()

    return failing


@pytest.mark.parametrize("trouble", ["hangs", "answers 503"])
def test_a_call_with_a_deadline_ends_at_it(store: ObstoreStore, server: Server, trouble: str) -> None:
    server.hanging = trouble == "hangs"
    server.failing = 1_000_000
    for call in calls(store, 0.6):
        assert 0.5 < elapsed(fails(call)) < 0.6 + LATE_S
    outcomes: list[str] = []
    assert elapsed(lambda: outcomes.append(store.put_if_absent(ENTRY, b"x", within_s=0.6))) < 0.6 + LATE_S
    assert outcomes == ["unknown"]


def test_a_call_with_a_deadline_ends_at_it_if_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        for call in calls(open_store(s3(taken.getsockname()[1])), 0.6):
            assert 0.5 < elapsed(fails(call)) < 0.6 + LATE_S


def test_the_settings_endpoint_is_used_whatever_the_environment_names(
    store: ObstoreStore, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    store.put("t/x", b"x", within_s=1)
    assert server.objects == {"/bucket/t/x": b"x"}


def test_a_bucket_is_created_at_the_settings_endpoint_whatever_the_environment_names(
    store: ObstoreStore, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    create_bucket(s3(server.port))
    assert [path.split("?")[0] for path in server.objects] == ["/bucket"]


def test_a_call_with_a_deadline_is_tried_again_until_it_works(store: ObstoreStore, server: Server) -> None:
    server.failing = 3
    store.put("t/x", b"x", within_s=10)
    server.failing = 3
    assert store.get("t/x", within_s=10) == b"x"
    server.failing = 3
    assert store.exists("t/x", within_s=10)
    assert not store.exists("t/y", within_s=10)
    with pytest.raises(FileNotFoundError):
        store.get("t/y", within_s=10)


def test_calls_with_much_time_share_their_connections(store: ObstoreStore, server: Server) -> None:
    for left_s in (30.0, 29.2, 17.0, 10.1):
        store.put("t/x", b"x", within_s=left_s)
        store.get("t/x", within_s=left_s)
        store.put_if_absent(ENTRY, b"x", within_s=left_s)
    assert len(server.peers) <= 2, "a client for each time that is left would have connections of its own"


@pytest.mark.parametrize("within_s", [None, 6.0])
def test_a_body_may_take_longer_than_a_request(
    store: ObstoreStore, server: Server, within_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 20 MB at 2 MB/s with 10 s a request, twenty times smaller.
    monkeypatch.setattr(stores, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(stores, "SLOWEST_LINK", 256 * 2**10)
    monkeypatch.setattr(stores, "_SMALL", 2**16)
    monkeypatch.setattr(stores, "_STREAMED", 2**16)
    store._clients.clear()
    store._retrying = store._client(None, retrying=True)
    server.rate = 2e6
    data = os.urandom(2_000_000)
    store.put("t/x", data, within_s=within_s)
    assert store.get("t/x", within_s=within_s) == data
    assert store.put_if_absent("t/y", data, within_s=within_s) == "created"


# A local folder


@pytest.fixture
def folder(tmp_path: Path) -> ObstoreStore:
    return open_store(Settings("embedded", f"file://{tmp_path}/root"))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced, in order: a file by ``file``, a folder by its name."""
    names: list[str] = []
    honest = os.fsync

    def fsync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        names.append(path.name if path.is_dir() else "file")
        honest(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def test_an_object_and_the_folders_above_it_are_synced_before_it_counts(
    folder: ObstoreStore, synced: list[str]
) -> None:
    assert folder.put_if_absent(ENTRY, b"1") == "created"
    assert synced[-2:] == ["file", "_delta_log"]
    assert {"root", "t"} <= set(synced)
    synced.clear()
    assert folder.put_if_absent(ENTRY, b"2") == "exists"
    folder.put("t/x", b"3")
    assert synced[-2:] == ["file", "t"]
    assert (folder.get(ENTRY), folder.get("t/x")) == (b"1", b"3")


def test_a_full_disk_leaves_no_half_object(
    folder: ObstoreStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.put("t/x", b"old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        folder.put_if_absent("t/y", b"new")
    with pytest.raises(StoreUnavailable, match="No space left"):
        folder.put("t/x", b"new")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["x"]
    assert folder.get("t/x") == b"old"


def test_what_a_killed_writer_left_is_not_seen(
    folder: ObstoreStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # killed before it could

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "hardlink_to", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.put_if_absent(ENTRY, b"x")
    assert len(list((tmp_path / "root/t/_delta_log").iterdir())) == 1
    assert list(folder.list("t")) == []
    assert not folder.exists(ENTRY)


@pytest.mark.parametrize("path", ["../x", "t/../../x", "t//x", "/etc/x", "t/./x"])
def test_no_path_leads_out_of_the_folder(folder: ObstoreStore, tmp_path: Path, path: str) -> None:
    for put in (folder.put, folder.put_if_absent):
        with pytest.raises(StoreError, match="not the path of an object"):
            put(path, b"x")
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == []
