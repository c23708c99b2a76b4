"""The counting proxy in front of real servers, with two clients that sign. Its wire is tested with the fault proxy."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from benchmarks.counting import CountingProxy
from brokerless.errors import ConfigError
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


def test_a_store_is_counted_by_role_and_kind(proxy: CountingProxy, settings: Settings) -> None:
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
    with pytest.raises(ConfigError, match="plain http"):
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
