"""The fault proxy before real servers: what is passed on, what each fault looks like, what the kit does about it."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import urlopen

import boto3
import botocore.config
import obstore
import pytest
from botocore.exceptions import ClientError
from obstore.store import S3Store

from brokerless import open_store
from brokerless.errors import AccessDenied, ConfigError
from brokerless.testing import (
    Answer,
    Chaos,
    ClockSkew,
    Conflict,
    Corrupted,
    Denied,
    Expired,
    Fault,
    FaultProxy,
    Gate,
    Held,
    Latency,
    LostAnswer,
    LostRequest,
    PreconditionFailed,
    Reset,
    Rule,
    Script,
    ServerError,
    SlowDown,
    StaleAbsence,
    Stalled,
    Truncated,
)
from brokerless.testing.faults import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokerless import Settings
    from tests.support.fakes import FakeClock

pytest_plugins = ["brokerless.testing.plugin"]
pytestmark = pytest.mark.faults

REPO = Path(__file__).parents[2]
WAIT_S = 30.0
BODY = bytes(range(256)) * 4


@pytest.fixture
def fault_server(settings: Settings) -> Settings:
    """Behind the proxy stand the servers of these tests: the embedded one, and MinIO where there is one."""
    return settings


# Plain requests, to the embedded server, which asks for no signature


class Plain:
    """One connection by way of the proxy, and a look past it."""

    def __init__(self, proxy: FaultProxy, bucket: str, timeout_s: float = WAIT_S) -> None:
        self.proxy = proxy
        self.bucket = bucket
        self.connection = http.client.HTTPConnection(urlsplit(proxy.endpoint).netloc, timeout=timeout_s)

    def __call__(
        self, method: str, key: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, f"/{self.bucket}/{key}", body, given)
        answer = self.connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def stored(self, key: str) -> bytes | None:
        """What the server has."""
        past = http.client.HTTPConnection(urlsplit(self.proxy.upstream).netloc, timeout=WAIT_S)
        with contextlib.closing(past):
            past.request("GET", f"/{self.bucket}/{key}")
            answer = past.getresponse()
            content = answer.read()
            return content if answer.status == 200 else None

    def wait_stored(self, key: str, content: bytes) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.stored(key) != content:
            assert time.monotonic() < deadline


@pytest.fixture
def proxy(embedded_settings: Settings, clock: FakeClock) -> Iterator[FaultProxy]:
    """In front of the embedded server; its delays take no time."""
    assert embedded_settings.endpoint
    with FaultProxy(embedded_settings.endpoint, clock=clock) as proxy:
        yield proxy


@pytest.fixture
def plain(proxy: FaultProxy, embedded_settings: Settings) -> Iterator[Plain]:
    found = Plain(proxy, f"{embedded_settings.bucket}/{uuid.uuid4().hex}")
    with contextlib.closing(found.connection):
        yield found


def test_without_rules_everything_passes(plain: Plain) -> None:
    assert plain("PUT", "a", BODY)[0] == 200
    assert plain("GET", "a")[2] == BODY
    status, headers, content = plain("HEAD", "a")
    assert (status, headers["Content-Length"], content) == (200, str(len(BODY)), b"")
    assert plain("PUT", "a", b"other", If_None_Match="*")[0] == 412
    assert plain("GET", "nix")[0] == 404
    assert plain("GET", "a", Range="bytes=1-3")[2] == BODY[1:4]
    assert plain("DELETE", "a")[0] == 204
    assert plain.stored("a") is None
    assert plain.proxy.log() == ()
    assert plain.proxy.requests == {"PUT": 1, "GET": 3, "HEAD": 1, "CONDITIONAL_PUT": 1, "DELETE": 1}


ANSWERS: list[tuple[Answer, int, str]] = [
    (ServerError(), 500, "InternalError"),
    (ServerError(502), 502, "InternalError"),
    (ServerError(503, "ServiceUnavailable"), 503, "ServiceUnavailable"),
    (SlowDown(), 503, "SlowDown"),
    (Conflict(), 409, "ConditionalRequestConflict"),
    (PreconditionFailed(), 412, "PreconditionFailed"),
    (Expired(), 400, "ExpiredToken"),
    (Expired(403), 403, "ExpiredToken"),
    (Denied(), 403, "AccessDenied"),
    (Answer(418, "Teapot"), 418, "Teapot"),
]


@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "applied"])
@pytest.mark.parametrize(("fault", "status", "code"), ANSWERS, ids=[repr(fault) for fault, _, _ in ANSWERS])
def test_error_answers(plain: Plain, fault: Answer, status: int, code: str, applied: bool) -> None:
    plain.proxy.add(Rule(dataclasses.replace(fault, applied=applied), op="CONDITIONAL_PUT", key="a"))
    found, headers, content = plain("PUT", "a", BODY, If_None_Match="*")
    assert found == status
    assert headers["Content-Type"] == "application/xml"
    assert f"<Code>{code}</Code>".encode() in content
    assert plain.stored("a") == (BODY if applied else None)
    (line,) = plain.proxy.log()
    assert (line.applied, line.upstream, line.key.split("/")[-1]) == (applied, 200 if applied else None, "a")
    # The same connection goes on: the body of the refused request was taken off it.
    assert plain("PUT", "b", b"next")[0] == 200


def test_an_error_answer_to_head_has_no_body(plain: Plain) -> None:
    plain.proxy.add(Rule(SlowDown(), op="HEAD"))
    assert plain("HEAD", "a")[0] == 503
    assert plain("GET", "a")[0] == 404


@pytest.mark.parametrize(
    ("fault", "applied", "broken"),
    [
        (LostAnswer(), True, http.client.RemoteDisconnected),
        (LostRequest(), False, http.client.RemoteDisconnected),
        (Reset(), False, ConnectionResetError),
        (Reset(applied=True), True, ConnectionResetError),
        (Stalled(5.0), False, http.client.RemoteDisconnected),
        (Stalled(5.0, applied=True), True, http.client.RemoteDisconnected),
    ],
    ids=repr,
)
def test_no_answer(plain: Plain, clock: FakeClock, fault: Fault, applied: bool, broken: type[Exception]) -> None:
    plain.proxy.add(Rule(fault, op="PUT"))
    with pytest.raises(broken) as caught:
        plain("PUT", "a", BODY)
    assert isinstance(caught.value, http.client.RemoteDisconnected) == (not isinstance(fault, Reset))
    assert plain.stored("a") == (BODY if applied else None)
    assert plain.proxy.log()[0].applied is applied
    assert sum(clock.slept) == pytest.approx(5.0 if isinstance(fault, Stalled) else 0.0)


def test_a_stalled_socket_says_nothing_until_the_client_gives_up(embedded_settings: Settings) -> None:
    assert embedded_settings.endpoint
    with FaultProxy(embedded_settings.endpoint, Script([Rule(Stalled(60.0))])) as proxy:
        plain = Plain(proxy, embedded_settings.bucket, timeout_s=0.1)
        with pytest.raises(TimeoutError):
            plain("GET", "a")
        plain.connection.close()
        plain.connection = http.client.HTTPConnection(urlsplit(proxy.endpoint).netloc, timeout=WAIT_S)
        assert plain("GET", "nix")[0] == 404
        plain.connection.close()


def test_latency_on_the_way_there_and_back(plain: Plain, clock: FakeClock) -> None:
    plain.proxy.add(Rule(Latency(0.25)), Rule(Latency(0.5, where="answer")))
    assert plain("PUT", "a", BODY)[0] == 200
    assert sum(clock.slept) == pytest.approx(0.25)
    assert plain("GET", "a")[2] == BODY
    assert sum(clock.slept) == pytest.approx(0.75)
    assert [line.applied for line in plain.proxy.log()] == [None, True]


def test_latency_has_a_tail(plain: Plain, clock: FakeClock) -> None:
    plain.proxy.add(Rule(Latency(1.0, tail_s=2.0), times=None))
    waits = []
    for _ in range(60):
        before = sum(clock.slept)
        plain("HEAD", "a")
        waits.append(sum(clock.slept) - before)
    assert min(waits) >= 1.0
    assert 2.0 < sum(waits) / 60 < 4.5  # the mean is 3
    assert max(waits) > 5.0


def test_a_late_put_is_applied_after_its_client_has_given_up(plain: Plain, clock: FakeClock) -> None:
    plain.connection.connect()
    client = plain.connection.sock
    clock.on_sleep = lambda: client.shutdown(socket.SHUT_RDWR)
    plain.proxy.add(Rule(Latency(0.05), op="PUT"))
    with pytest.raises(http.client.RemoteDisconnected):
        plain("PUT", "a", BODY)
    plain.wait_stored("a", BODY)


def test_a_held_request_waits_for_the_test(plain: Plain) -> None:
    gate = Gate()
    plain.proxy.add(Rule(Held(gate), op="PUT"))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(plain, "PUT", "a", BODY)
        assert gate.wait_reached(WAIT_S)
        assert plain.stored("a") is None
        gate.open()
        assert answer.result(WAIT_S)[0] == 200
    assert plain.stored("a") == BODY


def test_a_held_answer_waits_after_the_server_has_applied_the_request(plain: Plain) -> None:
    gate = Gate()
    plain.proxy.add(Rule(Held(gate, applied=True), op="PUT"))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(plain, "PUT", "a", BODY)
        assert gate.wait_reached(WAIT_S)
        assert plain.stored("a") == BODY
        assert not answer.done()
        gate.open()
        assert answer.result(WAIT_S)[0] == 200


def test_a_refusal_is_not_held_as_applied(plain: Plain) -> None:
    gate = Gate()
    plain.proxy.add(Rule(Held(gate, applied=True), op="GET"))
    assert plain("GET", "absent")[0] == 404
    assert not gate.wait_reached(0)
    assert plain.proxy.pending()


@pytest.mark.parametrize(("applied", "stored"), [(False, None), (True, BODY)])
def test_what_is_dropped_at_the_gate_gets_no_further(plain: Plain, applied: bool, stored: bytes | None) -> None:
    gate = Gate()
    plain.proxy.add(Rule(Held(gate, applied=applied), op="PUT"))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(plain, "PUT", "a", BODY)
        assert gate.wait_reached(WAIT_S)
        gate.drop()
        with pytest.raises(http.client.RemoteDisconnected):
            answer.result(WAIT_S)
    assert plain.stored("a") == stored


def test_a_late_deletion_of_many_reaches_the_server(plain: Plain) -> None:
    plain("PUT", "a", BODY)
    plain.proxy.add(Rule(Latency(0.01), op="DELETE"))
    whole, (bucket, _, folder) = plain.bucket, plain.bucket.partition("/")
    plain.bucket = bucket
    assert plain("POST", "?delete", f"<Delete><Object><Key>{folder}/a</Key></Object></Delete>".encode())[0] == 200
    plain.bucket = whole
    assert plain.stored("a") is None


def test_a_truncated_body_is_shorter_than_it_says(plain: Plain) -> None:
    plain("PUT", "a", BODY)
    plain.proxy.add(Rule(Truncated(0.25), op="GET"))
    with pytest.raises(http.client.IncompleteRead) as caught:
        plain("GET", "a")
    assert caught.value.partial == BODY[:256]
    assert caught.value.expected == 768


def flipped_bits(one: bytes, other: bytes) -> int:
    assert len(one) == len(other)
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


def test_a_corrupted_body_differs_in_one_bit_the_same_for_a_seed(plain: Plain) -> None:
    plain("PUT", "a", BODY)
    found = []
    for seed in (1, 1, 2):
        plain.proxy.play(Script([Rule(Corrupted())], seed=seed))
        found.append(plain("GET", "a")[2])
    assert [flipped_bits(BODY, content) for content in found] == [1, 1, 1]
    assert found[0] == found[1] != found[2]
    assert plain("GET", "a")[2] == BODY


def test_a_body_that_is_not_there_cannot_be_damaged(plain: Plain) -> None:
    plain("PUT", "a", BODY)
    plain("PUT", "empty", b"")
    plain.proxy.add(Rule(Corrupted(), op="GET"))
    assert plain("GET", "nix")[0] == 404
    assert plain("GET", "empty")[2] == b""
    assert plain.proxy.log() == ()
    assert plain("GET", "a")[2] != BODY
    assert plain.proxy.pending() == ()


def test_what_was_just_written_is_absent_for_a_while(plain: Plain, clock: FakeClock) -> None:
    plain("PUT", "a", BODY)
    plain.proxy.add(Rule(StaleAbsence(within_s=2.0), times=None))
    status, _, content = plain("GET", "a")
    assert (status, b"<Code>NoSuchKey</Code>" in content) == (404, True)
    assert plain("HEAD", "a")[0] == 404
    clock.advance(2.0)
    assert plain("GET", "a")[2] == BODY
    assert plain("PUT", "a", b"refused", If_None_Match="*")[0] == 412
    assert plain("GET", "a")[2] == BODY  # a refused PUT wrote nothing


@pytest.mark.parametrize("seconds", [3600.0, -7200.0])
def test_a_servers_clock_that_is_off(plain: Plain, seconds: float) -> None:
    def date() -> float:
        return parsedate_to_datetime(plain("HEAD", "a")[1]["Date"]).timestamp()

    right = date()
    plain.proxy.add(Rule(ClockSkew(seconds)))
    assert abs(date() - right - seconds) < 60


def test_the_deletion_of_many_objects_is_known_by_its_keys(plain: Plain) -> None:
    for key in ("a", "b&c"):
        plain("PUT", key.replace("&", "%26"), BODY)
    folder = plain.bucket.partition("/")[2]
    body = f"<Delete><Object><Key>{folder}/a</Key></Object><Object><Key>{folder}/b&amp;c</Key></Object></Delete>"
    plain.proxy.add(Rule(LostAnswer(), op="DELETE", key="b&c"))
    plain.bucket, bucket = plain.bucket.partition("/")[0], plain.bucket
    with pytest.raises(http.client.RemoteDisconnected):
        plain("POST", "?delete", body.encode())
    plain.bucket = bucket
    assert plain.stored("a") is plain.stored("b%26c") is None


def test_the_same_seed_gives_the_same_faults(plain: Plain) -> None:
    chaos = Chaos(3, {SlowDown(): 0.3, ServerError(): 0.2, PreconditionFailed(applied=True): 0.2})

    def run() -> list[tuple[str, str, str]]:
        known = len(plain.proxy.log())
        plain.proxy.play(chaos)
        for n in range(10):
            plain("PUT", str(n), BODY, If_None_Match="*")
            plain("GET", str(n))
        return [(line.fault.kind, line.op, line.key) for line in plain.proxy.log()[known:]]

    first = run()
    assert len(first) > 5
    assert run() == first


# Signed requests, to each server


def test_boto3_by_way_of_the_proxy(fault_settings: Settings, fault_proxy: FaultProxy) -> None:
    s3 = boto3.client(
        "s3",
        endpoint_url=fault_settings.endpoint,
        region_name="us-east-1",
        aws_access_key_id=fault_settings.access_key,
        aws_secret_access_key=fault_settings.secret_key,
        config=botocore.config.Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )
    prefix = urlsplit(fault_settings.root).path.strip("/")
    bucket, key = fault_settings.bucket, f"{prefix}/a b+c=d é.bin"
    s3.put_object(Bucket=bucket, Key=key, Body=BODY, ChecksumAlgorithm="SHA256")  # in chunks, with a trailer
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == BODY
    assert s3.head_object(Bucket=bucket, Key=key)["ContentLength"] == len(BODY)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"", IfNoneMatch="*")
    listed = s3.list_objects_v2(Bucket=bucket, Prefix=prefix + "/")
    assert [found["Key"] for found in listed["Contents"]] == [key]
    presigned = s3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": key})
    with urlopen(presigned, timeout=WAIT_S) as answer:  # noqa: S310  # to the proxy
        assert answer.read() == BODY
    upload = s3.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/large")["UploadId"]
    names = {"Bucket": bucket, "Key": f"{prefix}/large", "UploadId": upload}
    sizes = {1: 5 * 2**20, 2: 1000}
    parts = [
        {"PartNumber": n, "ETag": s3.upload_part(**names, PartNumber=n, Body=bytes(size))["ETag"]}
        for n, size in sizes.items()
    ]
    s3.complete_multipart_upload(**names, MultipartUpload={"Parts": parts})
    assert s3.head_object(Bucket=bucket, Key=f"{prefix}/large")["ContentLength"] == sum(sizes.values())
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key}, {"Key": f"{prefix}/large"}]})
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket, Prefix=prefix + "/")
    assert fault_proxy.requests["MULTIPART"] == 4
    fault_proxy.add(Rule(SlowDown(), op="LIST"))
    with pytest.raises(ClientError, match="SlowDown"):
        s3.list_objects_v2(Bucket=bucket, Prefix=prefix)


def test_obstore_by_way_of_the_proxy(fault_settings: Settings, fault_proxy: FaultProxy) -> None:
    store = S3Store(
        fault_settings.bucket,
        prefix=urlsplit(fault_settings.root).path.strip("/"),
        config={
            "endpoint": fault_settings.endpoint or "",
            "region": "us-east-1",
            "access_key_id": fault_settings.access_key or "",
            "secret_access_key": fault_settings.secret_key or "",
        },
        client_options={"allow_http": True},
    )
    large = os.urandom(12 * 2**20)
    obstore.put(store, "a", BODY, mode="create")
    obstore.put(store, "large", large, use_multipart=True, chunk_size=5 * 2**20)
    assert obstore.get(store, "a").bytes().to_bytes() == BODY
    assert obstore.get(store, "large").bytes().to_bytes() == large
    assert obstore.head(store, "a")["size"] == len(BODY)
    assert sorted(item["path"] for chunk in obstore.list(store) for item in chunk) == ["a", "large"]
    obstore.delete(store, ["a", "large"])
    assert [*obstore.list(store)] == []
    assert fault_proxy.faults == {}


@pytest.mark.minio
def test_a_wrong_signature_stays_wrong(minio_settings: Settings) -> None:
    assert minio_settings.endpoint
    with FaultProxy(minio_settings.endpoint) as proxy:
        wrong = dataclasses.replace(proxy.through(minio_settings), secret_key="wrong-secret")
        with pytest.raises(AccessDenied, match="SignatureDoesNotMatch"):
            open_store(wrong).put("x", b"")


# Control over HTTP


@pytest.mark.parametrize("upstream", ["https://s3.amazonaws.com", "127.0.0.1:9000", "http://x:y", "http://x:1/path"])
def test_an_upstream_that_cannot_be_proxied_is_refused(upstream: str) -> None:
    with pytest.raises(ConfigError, match="http://host:port"):
        FaultProxy(upstream)


def test_a_port_that_is_taken_is_named(proxy: FaultProxy) -> None:
    port = int(proxy.endpoint.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=str(port)):
        FaultProxy(proxy.upstream, port=port)


def test_stopping_breaks_what_is_going_on(embedded_settings: Settings) -> None:
    assert embedded_settings.endpoint
    gate = Gate()
    before = threading.active_count()
    proxy = FaultProxy(embedded_settings.endpoint, Script([Rule(Held(gate), op="PUT"), Rule(Stalled(600.0), op="GET")]))
    clients = [Plain(proxy, embedded_settings.bucket) for _ in range(3)]
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(clients[0], "PUT", "stopped", BODY)
        stalled = pool.submit(clients[1], "GET", "stopped")
        clients[2]("HEAD", "stopped")  # and one that does nothing
        assert gate.wait_reached(WAIT_S)
        proxy.stop()
        for call in (held, stalled):
            with pytest.raises((http.client.HTTPException, OSError)):
                call.result(WAIT_S)
    assert clients[0].stored("stopped") is None
    assert threading.active_count() == before


# The page


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    page = (REPO / "docs" / "testing.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_examples.py").write_text("\n\n".join(examples))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            "test_examples.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_names_every_fault() -> None:
    page = (REPO / "docs" / "testing.md").read_text()
    rows = "".join(line for line in page.split("\n## Faults\n")[1].split("\n## ")[0].splitlines() if line[:2] == "| ")
    assert set(re.findall(r"`([A-Z]\w+)\(", rows)) == {*KINDS, "Held"}
