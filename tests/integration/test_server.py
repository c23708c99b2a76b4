"""Real servers on the loopback interface: start, stop, crash, and who else may reach them."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError
from obstore.store import S3Store

from brokerless.errors import ConfigError
from brokerless.local import background, processes, server
from brokerless.local.background import down, read_state, status, up
from brokerless.local.minio import find_minio, start_minio
from brokerless.local.processes import free_port
from brokerless.local.server import LocalServer, start_embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "objects"


def alive(pid: int | None) -> bool:
    return pid is not None and background._process_start(pid) is not None


def wait_until_dead(pid: int) -> None:
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} did not end"
        threading.Event().wait(0.02)


def make_bucket(endpoint: str) -> None:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=10)
    connection.request("PUT", f"/{BUCKET}")
    assert connection.getresponse().status == http.client.OK
    connection.close()


def store_at(endpoint: str, *, access_key: str = "any", secret_key: str = "any", retries: int = 10) -> S3Store:
    return S3Store(
        BUCKET,
        config={
            "aws_endpoint": endpoint,
            "aws_access_key_id": access_key,
            "aws_secret_access_key": secret_key,
            "aws_region": "us-east-1",
            "aws_virtual_hosted_style_request": "false",
        },
        client_options={"allow_http": True, "timeout": "10s"},
        retry_config={"max_retries": retries},
    )


def listeners(pid: int) -> set[str]:
    """Local addresses of the process's listening TCP sockets, as /proc writes them (little-endian hexadecimal)."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
        except FileNotFoundError:
            continue
        if match:
            inodes.add(match[1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            values = line.split()
            # State 0A is LISTEN.
            if values[3] == "0A" and values[9] in inodes:
                found.add(values[1].partition(":")[0])
    return found


LOOPBACK = {"0100007F", "00000000000000000000000001000000"}

needs_proc = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="listening sockets are read from /proc")


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    down(tmp_path / "state")


def test_starts_serves_and_stops(tmp_path: Path) -> None:
    with start_embedded(tmp_path) as running:
        pid = running.pid
        assert running.kind == "embedded"
        make_bucket(running.endpoint)
        store = store_at(running.endpoint)
        store.put("a/b", b"content")
        assert bytes(store.get("a/b").bytes()) == b"content"
    assert not alive(pid)
    assert running.pid is None
    # Nothing temporary is left, not even the server's own pid file.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["objects", "server.log", "state"]
    running.stop()


def test_conditional_put_has_one_winner(tmp_path: Path) -> None:
    with start_embedded(tmp_path) as running:
        make_bucket(running.endpoint)
        store, wins, barrier = store_at(running.endpoint), [], threading.Barrier(8)

        def race(number: int) -> None:
            for turn in range(10):
                barrier.wait(10)
                try:
                    store.put(f"log/{turn}", str(number).encode(), mode="create")
                except AlreadyExistsError:
                    continue
                wins.append((turn, number))

        threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(turn for turn, _ in wins) == list(range(10))
        for turn, number in wins:
            assert bytes(store.get(f"log/{turn}").bytes()) == str(number).encode()


@pytest.mark.parametrize("limit", [100, 10], ids=["no room for its properties", "no room for its content"])
def test_what_the_disk_does_not_take_is_refused_and_forgotten(tmp_path: Path, limit: int) -> None:
    """A limit on the size of a file fails the server's writes, as a full disk does, without one."""
    resource = pytest.importorskip("resource")
    if not hasattr(resource, "prlimit"):
        pytest.skip("another process's limits can be set on Linux only")
    with start_embedded(tmp_path) as running:
        make_bucket(running.endpoint)
        store = store_at(running.endpoint, retries=0)
        store.put("kept", b"stored before")
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        for _ in range(2):
            with pytest.raises(GenericError, match="507"):
                store.put("new", b"x" * 50, mode="create")  # by the second time it would be there
        with pytest.raises(GenericError, match="507"):
            store.put("kept", b"y" * 50)
        with pytest.raises(FileNotFoundError):
            store.head("new")
        assert bytes(store.get("kept").bytes()) == b"stored before"
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.put("later", b"there is room again", mode="create")
    with start_embedded(tmp_path) as running:
        store = store_at(running.endpoint)
        assert sorted(str(info["path"]) for chunk in store.list() for info in chunk) == ["kept", "later"]
        assert bytes(store.get("kept").bytes()) == b"stored before"


def test_names_that_one_folder_cannot_hold_are_kept_apart(tmp_path: Path) -> None:
    names = ["a", "a/b", "x", "x.meta.json", "x.tmp"]
    for run in range(2):
        with start_embedded(tmp_path) as running:
            if run == 0:
                make_bucket(running.endpoint)
            for name in names:
                store_at(running.endpoint).put(name, name.encode())
    with start_embedded(tmp_path) as running:
        for name in names:
            assert bytes(store_at(running.endpoint).get(name).bytes()) == name.encode()


def test_an_object_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    with start_embedded(tmp_path) as running:
        make_bucket(running.endpoint)
        store = store_at(running.endpoint, retries=0)
        store.put("key", b"content")
        next((tmp_path / "objects").rglob("key")).unlink()
        with pytest.raises(GenericError, match="500"):
            store.get("key").bytes()


def test_objects_that_cannot_be_read_at_the_start_end_the_server(tmp_path: Path) -> None:
    """It would serve a log without its entries, and take new ones in their place."""
    with start_embedded(tmp_path) as running:
        make_bucket(running.endpoint)
        store_at(running.endpoint).put("key", b"content")
    stored = next((tmp_path / "objects").rglob("key"))
    stored.with_name("key.meta.json").unlink()
    stored.unlink()
    stored.symlink_to("key")  # to itself: reading it is an error for root, too
    with pytest.raises(ConfigError, match=r"cannot start: .*key"):
        start_embedded(tmp_path)


@needs_proc
def test_listens_on_loopback_only(tmp_path: Path) -> None:
    with start_embedded(tmp_path) as running:
        assert running.pid is not None
        found = listeners(running.pid)
        assert found
        assert found <= LOOPBACK


def test_taken_port_is_an_error_and_the_holder_is_left_alone(tmp_path: Path) -> None:
    with start_embedded(tmp_path / "a") as first:
        port = int(first.endpoint.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"Port {port} on 127.0.0.1 is taken"):
            start_embedded(tmp_path / "b", port=port)
        make_bucket(first.endpoint)


def test_foreign_server_that_wins_the_race_is_never_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check of the port and the bind, another embedded server takes it, and answers the probes."""
    with start_embedded(tmp_path / "theirs") as theirs:
        port = int(theirs.endpoint.rpartition(":")[2])
        monkeypatch.setattr(processes, "_check_port", lambda port: None)
        with pytest.raises(ConfigError, match="is taken"):
            start_embedded(tmp_path / "ours", port=port)
        ports = iter([port, free_port()])
        monkeypatch.setattr(processes, "free_port", lambda: next(ports))
        with start_embedded(tmp_path / "ours") as ours:
            assert ours.endpoint != theirs.endpoint


def test_port_can_be_used_again_at_once(tmp_path: Path) -> None:
    port = free_port()
    for _ in range(2):
        with start_embedded(tmp_path, port=port) as running:
            make_bucket(running.endpoint)


def test_ends_with_its_parent_even_if_that_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                f"""
                import pathlib, time
                from brokerless.local.server import start_embedded
                print(start_embedded(pathlib.Path({str(tmp_path)!r})).pid, flush=True)
                time.sleep(60)
                """
            ),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.communicate()
    wait_until_dead(pid)


def test_stop_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    stubborn = subprocess.Popen(["sh", "-c", f"trap '' TERM; : > {ready}; while :; do sleep 0.05; done"])
    while not ready.exists():
        threading.Event().wait(0.01)
    running = LocalServer(
        kind="embedded", endpoint="http://127.0.0.1:1", access_key="a", secret_key="b", process=stubborn
    )
    running.stop(grace_s=0.1)
    assert stubborn.returncode == -signal.SIGKILL


class TestUpDown:
    def test_up_twice_gives_the_same_server(self, state_dir: Path) -> None:
        first = up(state_dir)
        assert up(state_dir) == first
        assert status(state_dir) == first == read_state(state_dir)
        assert first.data_dir == str(state_dir / "s3")

    def test_up_at_the_same_time_starts_one(self, state_dir: Path) -> None:
        states: list[object] = []
        threads = [threading.Thread(target=lambda: states.append(up(state_dir))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(states) == 4
        assert len(set(states)) == 1

    def test_another_port_or_kind_than_the_running_one_is_an_error(self, state_dir: Path) -> None:
        running = up(state_dir)
        with pytest.raises(ConfigError, match=r"is running at .*brokerless down"):
            up(state_dir, port=free_port())
        with pytest.raises(ConfigError, match="minio was asked for"):
            up(state_dir, kind="minio")
        assert status(state_dir) == running

    def test_down_stops_it_and_says_so(self, state_dir: Path) -> None:
        running = up(state_dir)
        assert down(state_dir) == running
        assert not alive(running.pid)
        assert status(state_dir) is None
        assert down(state_dir) is None
        assert not (state_dir / "server.json").exists()

    def test_survives_the_process_that_started_it(self, state_dir: Path) -> None:
        script = f"import pathlib; from brokerless.local.background import up; up(pathlib.Path({str(state_dir)!r}))"
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
        running = status(state_dir)
        assert running is not None
        assert os.getsid(running.pid) == running.pid
        assert down(state_dir) == running
        wait_until_dead(running.pid)

    def test_kill_9_keeps_the_objects(self, state_dir: Path) -> None:
        first = up(state_dir)
        make_bucket(first.endpoint)
        store_at(first.endpoint).put("key", b"kept")
        os.kill(first.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while status(state_dir) is not None:
            assert time.monotonic() < deadline
        second = up(state_dir)
        assert second.pid != first.pid
        assert bytes(store_at(second.endpoint).get("key").bytes()) == b"kept"

    def test_hanging_server_is_replaced(self, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "_PROBE_TIMEOUT_S", 0.3)
        first = up(state_dir)
        os.kill(first.pid, signal.SIGSTOP)
        assert status(state_dir) is None
        monkeypatch.setattr(background, "_UP_GRACE_S", 0.2)
        second = up(state_dir)
        assert second.pid != first.pid
        assert not alive(first.pid)

    def test_failed_bookkeeping_leaves_no_server(self, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        started: list[LocalServer] = []
        real = server.start_embedded

        def start(*args: Path, **options: int | None) -> LocalServer:
            started.append(real(*args, **options))  # type: ignore[arg-type]
            return started[0]

        def fail(*args: object) -> None:
            raise OSError("no room for the state")

        monkeypatch.setattr(background, "start_embedded", start)
        monkeypatch.setattr(background, "write_state", fail)
        with pytest.raises(OSError, match="no room for the state"):
            up(state_dir)
        assert started[0].pid is None
        assert status(state_dir) is None


@pytest.mark.minio
@pytest.mark.skipif(find_minio() is None, reason="no MinIO: put 'minio' on PATH or set BROKERLESS_MINIO_BINARY")
class TestMinio:
    KEYS = ("brokerless-test", "not-a-secret-0")

    def test_serves_with_the_given_keys_only(self, tmp_path: Path) -> None:
        access_key, secret_key = self.KEYS
        with start_minio(tmp_path, access_key=access_key, secret_key=secret_key) as running:
            pid = running.pid
            assert pid is not None
            # A directory is a bucket to MinIO's single-drive layout; creating one by its API takes a signature.
            (tmp_path / "objects" / BUCKET).mkdir()
            store_at(running.endpoint, access_key=access_key, secret_key=secret_key).put("key", b"content")
            with pytest.raises(PermissionDeniedError):
                store_at(running.endpoint, access_key=access_key, secret_key="another-secret").put("key", b"")
            if Path("/proc/net/tcp").exists():
                assert listeners(pid) <= LOOPBACK
                assert secret_key not in Path(f"/proc/{pid}/cmdline").read_text()
        assert not alive(pid)
        # Other keys, same data.
        with start_minio(tmp_path, access_key="other", secret_key="other-secret") as running:
            store = store_at(running.endpoint, access_key="other", secret_key="other-secret")
            assert bytes(store.get("key").bytes()) == b"content"

    def test_taken_port(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        access_key, secret_key = self.KEYS
        with start_minio(tmp_path / "a", access_key=access_key, secret_key=secret_key) as first:
            port = int(first.endpoint.rpartition(":")[2])
            # Not noticed before the start: MinIO itself has to.
            monkeypatch.setattr(processes, "_check_port", lambda port: None)
            with pytest.raises(ConfigError, match="is taken"):
                start_minio(tmp_path / "b", access_key=access_key, secret_key=secret_key, port=port)

    def test_up_and_down(self, state_dir: Path) -> None:
        environ = {
            "PATH": os.environ["PATH"],
            "BROKERLESS_MINIO_BINARY": str(find_minio()),
            "MINIO_S3_ACCESS_KEY": self.KEYS[0],
            "MINIO_S3_SECRET_ACCESS_KEY": self.KEYS[1],
        }
        running = up(state_dir, kind="minio", environ=environ)
        assert running.kind == "minio"
        assert status(state_dir) == running == up(state_dir, kind="minio", environ=environ)
        assert self.KEYS[1] not in (state_dir / "server.json").read_text()
        assert down(state_dir) == running
        assert not alive(running.pid)
