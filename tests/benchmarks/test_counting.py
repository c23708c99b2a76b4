"""The counting proxy before real servers, with two clients that sign; and byte by byte before a scripted one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from benchmarks.counting import CountingProxy
from brokerless.errors import AccessDenied
from brokerless.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokerless.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("producer", "reader", "maintenance")


@pytest.fixture
def proxy(settings: Settings) -> Iterator[CountingProxy]:
    assert settings.endpoint is not None
    with CountingProxy(settings.endpoint, ROLES) as proxy:
        yield proxy


def through(proxy: CountingProxy, role: str, settings: Settings) -> Settings:
    return dataclasses.replace(settings, endpoint=proxy.endpoint(role))


def boto(settings: Settings) -> Any:
    session = pytest.importorskip("botocore.session").get_session()
    return session.create_client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=settings.secret_key,
        config=pytest.importorskip("botocore.config").Config(s3={"addressing_style": "path"}),
    )


def test_the_kits_store_is_counted_by_role_and_kind(proxy: CountingProxy, settings: Settings) -> None:
    producer = open_store(through(proxy, "producer", settings))
    reader = open_store(through(proxy, "reader", settings))
    producer.put("t/a", b"0123456789")
    assert producer.put_if_absent("t/b", b"first") == "created"
    assert producer.put_if_absent("t/b", b"second") == "exists"  # 412, paid for
    with pytest.raises(FileNotFoundError):
        reader.get("t/c")
    assert not reader.exists("t/c")
    assert reader.exists("t/b")
    assert reader.get("t/a") == b"0123456789"
    assert reader.get("t/b") == b"first"
    assert [info.path for info in reader.list("t")] == ["t/a", "t/b"]
    assert proxy.counts() == {
        "producer": {"PUT": 3},
        "reader": {"GET": 3, "GET 404": 2, "LIST": 1},
        "maintenance": {},
    }
    traffic = proxy.traffic()
    assert traffic["producer"].uploaded_bytes == 10 + 5 + 6
    assert traffic["reader"].uploaded_bytes == 0
    assert traffic["reader"].retrieved_bytes > 15  # with the listing and the errors

    proxy.reset()
    open_store(through(proxy, "maintenance", settings)).delete(["t/a"])
    assert not reader.exists("t/a")
    counts = proxy.counts()
    assert sum(counts["maintenance"].values()) == 1
    assert set(counts["maintenance"]) <= {"DELETE", "PUT"}  # alone, or in bulk by POST
    assert counts["reader"] == {"GET 404": 1}
    assert counts["producer"] == {}


def test_another_client_is_served_and_counted_alike(proxy: CountingProxy, settings: Settings) -> None:
    client = boto(through(proxy, "reader", settings))
    where = {"Bucket": settings.bucket, "Key": f"{settings.root.rpartition('/')[2]}/k"}
    errors = pytest.importorskip("botocore.exceptions")
    client.put_object(**where, Body=b"x" * 100)  # asks for "100 Continue" before it sends the body
    with pytest.raises(errors.ClientError, match="PreconditionFailed"):
        client.put_object(**where, Body=b"y", IfNoneMatch="*")
    assert client.head_object(**where)["ContentLength"] == 100
    with pytest.raises(errors.ClientError, match="NoSuchKey"):
        client.get_object(Bucket=where["Bucket"], Key=where["Key"] + "-missing")
    assert client.get_object(**where)["Body"].read() == b"x" * 100
    assert client.get_object(**where, Range="bytes=10-19")["Body"].read() == b"x" * 10
    assert client.list_objects_v2(Bucket=where["Bucket"], Prefix=where["Key"])["KeyCount"] == 1
    client.delete_object(**where)
    assert proxy.counts()["reader"] == {"PUT": 2, "GET": 3, "GET 404": 1, "LIST": 1, "DELETE": 1}


def test_large_bodies_come_through_whole_in_both_directions(proxy: CountingProxy, settings: Settings) -> None:
    body = os.urandom(7 * 2**20 + 1)
    store = open_store(through(proxy, "producer", settings))
    store.put("large", body)
    assert store.get("large") == body
    client = boto(through(proxy, "reader", settings))
    where = {"Bucket": settings.bucket, "Key": f"{settings.root.rpartition('/')[2]}/larger"}
    client.put_object(**where, Body=body + body)
    assert client.get_object(**where)["Body"].read() == body + body
    traffic = proxy.traffic()
    assert traffic["producer"].uploaded_bytes == traffic["producer"].retrieved_bytes == len(body)
    assert traffic["reader"].uploaded_bytes >= traffic["reader"].retrieved_bytes == 2 * len(body)


def test_clients_at_once_do_not_mix(proxy: CountingProxy, settings: Settings) -> None:
    stores = {role: open_store(through(proxy, role, settings)) for role in ROLES}

    def work(number: int) -> None:
        store = stores[ROLES[number % len(ROLES)]]
        for step in range(20):
            path, body = f"at-once/{number}-{step}", f"{number} {step} ".encode() * (1 + number * 50)
            store.put(path, body)
            assert store.get(path) == body

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    assert proxy.counts() == {role: {"PUT": 80, "GET": 80} for role in ROLES}


@pytest.mark.minio
def test_the_server_still_checks_signatures(minio_settings: Settings) -> None:
    assert minio_settings.endpoint is not None
    with CountingProxy(minio_settings.endpoint, ["a"]) as proxy:
        good = through(proxy, "a", minio_settings)
        open_store(good).put("signed", b"1")
        with pytest.raises(AccessDenied, match="SignatureDoesNotMatch"):
            open_store(dataclasses.replace(good, secret_key="not-the-secret")).put("signed", b"2")
        assert open_store(good).get("signed") == b"1"
        assert proxy.counts() == {"a": {"PUT": 2, "GET": 1}}


@contextlib.contextmanager
def scripted(*exchanges: tuple[bytes, bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that takes exactly these bytes and gives those, in turn, on one connection, and closes it."""
    received: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10)
            for expected, answer in exchanges:
                got = b""
                while len(got) < len(expected) and (more := connection.recv(len(expected) - len(got))):
                    got += more
                received.append(got)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
        thread.join(10)


HOST = b"Host: h:1\r\n"
CASES = {
    "nothing comes after the head of these": [
        (b"HEAD /b/k HTTP/1.1\r\n%b\r\n" % HOST, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        (b"DELETE /b/k HTTP/1.1\r\n%b\r\n" % HOST, b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET /b/k HTTP/1.1\r\n%b\r\n" % HOST, b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n"),
        (b"GET /b/k HTTP/1.1\r\n%b\r\n" % HOST, b"HTTP/1.1 404 Not Found\r\nCONTENT-LENGTH:2\r\n\r\nno"),
    ],
    "chunks with extensions and trailers": [
        (
            b"PUT /b/k HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" % HOST
            + b"3;x=y\r\nabc\r\nA\r\n\r\n23456\r\n9\r\n0\r\nx-sum: 1\r\nx-b: 2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        (b"GET /b/k HTTP/1.1\r\n%b\r\n" % HOST, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
    "the body waits for 100 Continue": [
        (
            b"PUT /b/k HTTP/1.1\r\n%bExpect: 100-continue\r\nContent-Length: 4\r\n\r\n" % HOST,
            b"HTTP/1.1 100 Continue\r\n\r\n",
        ),
        (b"body", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
    "an answer without a length ends with the connection": [
        (b"GET /b?list-type=2 HTTP/1.1\r\n%b\r\n" % HOST, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of this"),
    ],
}
COUNTED = [
    ({"GET": 2, "DELETE": 1, "GET 404": 1}, 0, 2),
    ({"PUT": 1, "GET": 1}, 13, 5),
    ({"PUT": 1}, 4, 0),
    ({"LIST": 1}, 0, 11),
]


@pytest.mark.parametrize(("case", "counted"), list(zip(CASES, COUNTED, strict=True)))
def test_every_byte_is_passed_on(case: str, counted: tuple[dict[str, int], int, int]) -> None:
    with scripted(*CASES[case]) as (endpoint, received), CountingProxy(endpoint, ["a"]) as proxy:
        port = int(proxy.endpoint("a").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client, client.makefile("rb") as answers:
            for request, answer in CASES[case]:
                client.sendall(request)
                assert answers.read(len(answer)) == answer
            assert answers.read() == b""  # the server closed its connection
        assert received == [request for request, _ in CASES[case]]
        one = proxy.traffic()["a"]
        assert (dict(one.requests), one.uploaded_bytes, one.retrieved_bytes) == counted


def test_an_unreachable_server_is_a_closed_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with CountingProxy(endpoint, ["a"]) as proxy:
        port = int(proxy.endpoint("a").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            assert client.recv(1) == b""
        assert proxy.counts() == {"a": {}}


def test_it_leaves_quietly_with_connections_open(
    embedded_settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    assert embedded_settings.endpoint is not None
    with CountingProxy(embedded_settings.endpoint, ["a"]) as proxy:
        store = open_store(through(proxy, "a", embedded_settings))
        store.put("quiet", b"1")  # the client keeps its connection
        pid = proxy.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert capfd.readouterr().err == ""


def test_what_cannot_be_read_along_is_refused() -> None:
    with pytest.raises(ValueError, match="plain http"):
        CountingProxy("https://s3.amazonaws.com", ["a"])


def test_a_proxy_that_died_is_reported_and_left() -> None:
    with CountingProxy("http://127.0.0.1:9", ["a"]) as proxy:
        assert proxy.pid is not None
        os.kill(proxy.pid, signal.SIGKILL)
        with pytest.raises((RuntimeError, OSError)):
            proxy.counts()


def test_it_ends_with_whoever_started_it() -> None:
    code = (
        "import os\n"
        "from benchmarks.counting import CountingProxy\n"
        "with CountingProxy('http://127.0.0.1:9', ['a']) as proxy:\n"
        "    print(proxy.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(10)  # raises if it is still there
