"""A secret that is easy to find is given to real processes; then it is looked for wherever others could look."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from brokerless.local.server import find_minio, start_embedded, start_minio
from brokerless.settings import Settings
from brokerless.store import create_bucket
from tests.support.cli import Cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokerless.local.server import LocalServer

ACCESS, CANARY, TOKEN = "canary-access-51", "canary-secret-83c1e", "canary-token-99d2"
SECRETS = (CANARY.encode(), TOKEN.encode())
SCHEMA = "date string, message string"
needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="arguments are read from /proc")


@pytest.fixture(scope="module", params=["embedded", pytest.param("minio", marks=pytest.mark.minio)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    folder = tmp_path_factory.mktemp("server")
    if request.param == "embedded":
        with start_embedded(folder) as running:
            yield running
        return
    if find_minio() is None:
        pytest.skip("no MinIO: put 'minio' on PATH or set BROKERLESS_MINIO_BINARY")
    with start_minio(folder, access_key=ACCESS, secret_key=CANARY) as running:
        yield running


@pytest.fixture
def cli(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    settings = Settings(
        server.kind,
        f"s3://brokerless-tests/{uuid.uuid4().hex}",
        endpoint=server.endpoint,
        access_key=ACCESS,
        secret_key=CANARY,
        # MinIO refuses a token that it did not give.
        session_token=TOKEN if server.kind == "embedded" else None,
        state_dir=tmp_path / "state",
    )
    create_bucket(settings)
    return Cli(settings)


def process(cli: Cli, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "brokerless.cli", *args],
        env={**os.environ, **cli.settings.to_environ()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def arguments() -> bytes:
    """The arguments of every process of the machine, as ``ps`` shows them to every user."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return b"\n".join(found)


def assert_clean(*texts: bytes | str) -> None:
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        for secret in SECRETS:
            at = data.find(secret)
            assert at < 0, data[max(0, at - 200) : at + 50]


def files_below(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


@needs_proc
def test_no_secret_in_arguments_output_or_files_while_a_producer_runs(
    cli: Cli, server: LocalServer, tmp_path: Path
) -> None:
    assert cli("topics", "create", "t", "--schema", SCHEMA).exit_code == 0
    running = process(cli, "produce", "t")
    assert running.stdin is not None
    running.stdin.write(b'{"date": "d", "message": "m"}\n')
    running.stdin.flush()
    deadline = time.monotonic() + 30
    while b"brokerless.cli" not in (shown := arguments()):  # for a moment a new process has none
        assert time.monotonic() < deadline
        time.sleep(0.01)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors.decode()[-2000:]
    assert_clean(shown, output, errors, *files_below(tmp_path))


@pytest.mark.parametrize(
    "args",
    [
        ["doctor", "--json"],
        ["topics", "list", "--json"],
        ["topics", "describe", "nix"],
        ["tail", "nix", "--once"],
        ["export", "nix", "out.csv", "--once"],
        ["verify", "nix"],
        ["run", "timezone-etl", "--once"],
        ["status", "--json"],
    ],
)
def test_no_secret_in_what_a_command_says(cli: Cli, tmp_path: Path, args: list[str]) -> None:
    assert_clean(cli(*args).output, *files_below(tmp_path))


def test_no_secret_in_the_errors_of_a_store_that_refuses_or_does_not_answer(cli: Cli) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for args in (["topics", "list"], ["doctor", "--json"], ["topics", "create", "t", "--schema", SCHEMA]):
            result = cli(*args, AWS_ENDPOINT_URL_S3=url)
            assert result.exit_code != 0
            assert_clean(result.output)
    if cli.settings.profile == "minio":
        result = cli("topics", "list", MINIO_S3_ACCESS_KEY="nobody")
        assert result.exit_code == 2
        assert_clean(result.output)


def test_the_embedded_server_serves_no_web_pages(server: LocalServer) -> None:
    if server.kind != "embedded":
        pytest.skip("MinIO asks for credentials")
    opener = build_opener(ProxyHandler({}))
    for path, method in (("/_ministack/reset", "POST"), ("/", "GET"), ("/brokerless-tests?list-type=2", "GET")):
        for headers in ({"Origin": "https://evil.example"}, {"Host": "rebound.evil.example"}):
            with pytest.raises(HTTPError) as refused:
                opener.open(Request(server.endpoint + path, method=method, headers=headers), timeout=10)  # noqa: S310
            assert refused.value.code == 403
            assert "Access-Control-Allow-Origin" not in refused.value.headers


def test_servers_are_not_reached_by_another_address_of_this_machine(server: LocalServer) -> None:
    """A server that listens everywhere is there at 127.0.0.2, too, which needs no network to be tried."""
    port = int(server.endpoint.rpartition(":")[2])
    others = {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), port, family=socket.AF_INET)}
    for address in {"127.0.0.2", *others} - {"127.0.0.1"}:
        with pytest.raises(OSError):  # refused or unreachable, as the system has it
            socket.create_connection((address, port), 2).close()


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.spark
def test_no_secret_in_arguments_output_or_conf_while_a_pipeline_runs(cli: Cli, tmp_path: Path) -> None:
    for name in ("timezone1", "timezone2"):
        cli.json("topics", "create", name, "--schema", SCHEMA)
    running = process(cli, "run", "timezone-etl", "--once")
    shown = []
    while running.poll() is None:
        shown.append(arguments())
        try:
            running.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    output, errors = running.communicate()
    assert running.returncode == 0, errors.decode()[-2000:]
    assert any(b"org.apache.spark" in text for text in shown)  # the JVM was seen
    assert_clean(*shown, output, errors, *files_below(tmp_path))
