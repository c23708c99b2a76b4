"""The state of ``brokerless up``, and what is decided without starting a server."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokerless.errors import ConfigError
from brokerless.local import background, minio, processes, server
from brokerless.local.background import ServerState, clear_state, down, read_state, status, up, write_state
from brokerless.local.minio import find_minio, minio_server, start_minio, start_minio_compose
from brokerless.local.processes import free_port
from brokerless.local.server import start_embedded

if TYPE_CHECKING:
    from pathlib import Path

STATE = ServerState(
    pid=4242,
    process_start="boot/1",
    kind="embedded",
    endpoint="http://127.0.0.1:9",
    data_dir="/data",
    started_at="2026-01-02T03:04:05+00:00",
)


def executable(path: Path, text: str = "#!/bin/sh\nexit 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minio, "docker_usable", lambda environ=None: False)


class TestStateFile:
    def test_round_trip(self, tmp_path: Path) -> None:
        write_state(tmp_path, STATE)
        assert read_state(tmp_path) == STATE
        clear_state(tmp_path)
        assert read_state(tmp_path) is None
        clear_state(tmp_path)

    def test_only_the_owner_reads_it_and_nothing_else_is_left(self, tmp_path: Path) -> None:
        write_state(tmp_path, STATE)
        write_state(tmp_path, replace(STATE, pid=1))
        assert [path.name for path in tmp_path.iterdir()] == ["server.json"]
        assert stat.S_IMODE((tmp_path / "server.json").stat().st_mode) == 0o600

    def test_failed_write_keeps_the_old_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_state(tmp_path, STATE)

        def full(*args: object, **kwargs: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(json, "dump", full)
        with pytest.raises(OSError, match="No space left"):
            write_state(tmp_path, replace(STATE, pid=1))
        assert read_state(tmp_path) == STATE
        assert [path.name for path in tmp_path.iterdir()] == ["server.json"]

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', "\x00"])
    def test_damaged_file_counts_as_none(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "server.json").write_text(text)
        assert read_state(tmp_path) is None

    @pytest.mark.parametrize(("field", "value"), [("pid", "1"), ("endpoint", 7), ("kind", "kafka")])
    def test_wrong_value_counts_as_none(self, tmp_path: Path, field: str, value: object) -> None:
        write_state(tmp_path, STATE)
        record = json.loads((tmp_path / "server.json").read_text())
        (tmp_path / "server.json").write_text(json.dumps({**record, field: value}))
        assert read_state(tmp_path) is None

    def test_unknown_field_of_a_later_version_is_ignored(self, tmp_path: Path) -> None:
        write_state(tmp_path, STATE)
        record = json.loads((tmp_path / "server.json").read_text())
        (tmp_path / "server.json").write_text(json.dumps({**record, "later": 1}))
        assert read_state(tmp_path) == STATE


class TestRecycledPid:
    """The recorded pid now belongs to somebody else (here: to this test)."""

    @pytest.fixture
    def recycled(self, tmp_path: Path) -> Path:
        write_state(tmp_path, replace(STATE, pid=os.getpid(), process_start="another boot/1"))
        return tmp_path

    def test_is_not_running(self, recycled: Path) -> None:
        assert status(recycled) is None

    def test_is_never_killed(self, recycled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "kill", lambda pid, number: pytest.fail(f"killed {pid} with {number}"))
        assert down(recycled) is None
        assert read_state(recycled) is None


def test_process_start_is_stable_and_ends_with_the_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    first = background._process_start(child.pid)
    assert first is not None
    assert background._process_start(child.pid) == first
    assert background._process_start(os.getpid()) != first
    child.communicate(b"\n")
    assert background._process_start(child.pid) is None


def test_down_and_status_of_nothing(tmp_path: Path) -> None:
    assert down(tmp_path / "never-made") is None
    assert status(tmp_path / "never-made") is None
    assert not (tmp_path / "never-made").exists()


def test_free_port_can_be_bound() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))


class TestRefusals:
    def test_taken_port(self, tmp_path: Path) -> None:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = holder.getsockname()[1]
            with pytest.raises(ConfigError, match=f"Port {port} on 127.0.0.1 is taken"):
                start_embedded(tmp_path, port=port)

    def test_impossible_port(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="port must be between 0 and 65535, got 70000"):
            start_embedded(tmp_path, port=70000)

    def test_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(processes.shutil, "disk_usage", lambda path: usage(10**9, 10**9, 2**20))
        with pytest.raises(ConfigError, match=r"is full: 1 MiB free, 64 MiB are needed"):
            start_embedded(tmp_path)

    def test_no_space_for_the_first_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(**kwargs: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(processes.tempfile, "TemporaryFile", full)
        with pytest.raises(ConfigError, match="is full"):
            start_embedded(tmp_path)

    def test_a_file_where_the_directory_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match=r"Cannot write to .*/file"):
            start_embedded(tmp_path / "file")

    def test_ministack_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"pip install 'brokerless\[local\]'"):
            start_embedded(tmp_path)

    def test_server_that_ends_at_once_shows_its_log(self, tmp_path: Path) -> None:
        binary = executable(tmp_path / "minio", "#!/bin/sh\necho first; echo broken pipe dream; exit 7\n")
        with pytest.raises(ConfigError, match=r"exit code 7 .*first \| broken pipe dream"):
            start_minio(tmp_path / "d", access_key="abc", secret_key="12345678", binary=binary)

    def test_server_that_never_answers_is_ended(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "_READY_DEADLINE_S", 0.2)
        binary = executable(tmp_path / "minio", f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
        with pytest.raises(ConfigError, match="did not answer"):
            start_minio(tmp_path / "d", access_key="abc", secret_key="12345678", binary=binary)
        assert background._process_start(int((tmp_path / "pid").read_text())) is None

    def test_disk_full_at_the_start_of_the_server(self, tmp_path: Path) -> None:
        binary = executable(tmp_path / "minio", "#!/bin/sh\necho 'write: No space left on device'; exit 1\n")
        with pytest.raises(ConfigError, match="is full"):
            start_minio(tmp_path / "d", access_key="abc", secret_key="12345678", binary=binary)

    def test_port_lost_to_somebody_else_is_tried_again_on_another(self, tmp_path: Path) -> None:
        binary = executable(
            tmp_path / "minio", f"#!/bin/sh\necho $4 >> {tmp_path}/tries\necho 'port is already in use'; exit 1\n"
        )
        with pytest.raises(ConfigError, match="is taken"):
            start_minio(tmp_path / "d", access_key="abc", secret_key="12345678", binary=binary)
        assert len(set((tmp_path / "tries").read_text().split())) > 1

    @pytest.mark.parametrize(("access", "secret"), [("ab", "12345678"), ("abc", "1234567")])
    def test_short_keys(self, tmp_path: Path, access: str, secret: str) -> None:
        with pytest.raises(ConfigError, match="MinIO refuses these keys") as caught:
            start_minio(tmp_path, access_key=access, secret_key=secret, binary=executable(tmp_path / "minio"))
        assert secret not in str(caught.value)

    @pytest.mark.usefixtures("no_docker")
    def test_compose_without_docker(self) -> None:
        with pytest.raises(ConfigError, match="Start docker"):
            start_minio_compose(access_key="abc", secret_key="12345678", project="x")

    def test_up_minio_needs_credentials(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="MINIO_S3_ACCESS_KEY and MINIO_S3_SECRET_ACCESS_KEY"):
            up(tmp_path, kind="minio", environ={"PATH": ""})
        assert read_state(tmp_path) is None


class TestWhichMinio:
    def test_binary_on_path(self, tmp_path: Path) -> None:
        assert find_minio({"PATH": str(tmp_path)}) is None
        binary = executable(tmp_path / "minio")
        assert find_minio({"PATH": str(tmp_path)}) == binary

    def test_named_binary_wins(self, tmp_path: Path) -> None:
        executable(tmp_path / "minio")
        other = executable(tmp_path / "other")
        assert find_minio({"PATH": str(tmp_path), "BROKERLESS_MINIO_BINARY": str(other)}) == other

    def test_named_binary_that_cannot_run(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"BROKERLESS_MINIO_BINARY=.* is not an executable file"):
            find_minio({"PATH": "", "BROKERLESS_MINIO_BINARY": str(tmp_path)})

    def test_given_endpoint_starts_nothing(self, tmp_path: Path) -> None:
        environ = {
            "PATH": str(executable(tmp_path / "bin" / "minio").parent),
            "AWS_ENDPOINT_URL": "http://other:9000",
            "AWS_ENDPOINT_URL_S3": "http://s3:9000/",
            "MINIO_S3_ACCESS_KEY": "abc",
            "MINIO_S3_SECRET_ACCESS_KEY": "12345678",
        }
        with minio_server(environ, tmp_path / "data") as given:
            assert (given.endpoint, given.kind, given.pid) == ("http://s3:9000", "minio", None)
            assert "12345678" not in repr(given)
        assert not (tmp_path / "data").exists()

    def test_given_endpoint_needs_credentials(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="http://s3:9000 needs credentials"):
            minio_server({"AWS_ENDPOINT_URL": "http://s3:9000"}, tmp_path)

    def test_compose_is_the_last_resort(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(minio, "docker_usable", lambda environ=None: True)
        asked: dict[str, object] = {}
        monkeypatch.setattr(minio, "start_minio_compose", lambda **kwargs: asked.update(kwargs))
        minio_server({"PATH": ""}, tmp_path / "a")
        first = dict(asked)
        minio_server({"PATH": ""}, tmp_path / "b")
        assert first["project"] != asked["project"]
        assert first["secret_key"] != asked["secret_key"]

    @pytest.mark.usefixtures("no_docker")
    def test_nothing_names_the_three_ways(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"AWS_ENDPOINT_URL.*'minio' binary on PATH.*start docker"):
            minio_server({"PATH": ""}, tmp_path)


DOCKER = """#!/bin/sh
echo "$@ $MINIO_S3_ACCESS_KEY $MINIO_S3_SECRET_ACCESS_KEY $BROKERLESS_MINIO_PORT" >> {log}
case "$*" in *{fails}*) exit 1;; esac
"""


class TestCompose:
    """A script stands for docker and writes down what it was asked for."""

    def docker(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: str = "nothing") -> Path:
        log = tmp_path / "log"
        executable(tmp_path / "bin" / "docker", DOCKER.format(log=log, fails=fails))
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
        return log

    def test_up_and_down(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = self.docker(tmp_path, monkeypatch)
        with start_minio_compose(access_key="abc", secret_key="12345678", project="p", port=4711) as started:
            assert (started.endpoint, started.kind, started.pid) == ("http://127.0.0.1:4711", "minio", None)
        lines = log.read_text().splitlines()
        assert lines[-2].endswith("--project-name p up --detach --wait minio abc 12345678 4711")
        assert "--project-name p down" in lines[-1]

    def test_unhealthy_container_is_removed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = self.docker(tmp_path, monkeypatch, fails="up")
        with pytest.raises(ConfigError, match=r"up --detach --wait minio' failed \(exit 1\)"):
            start_minio_compose(access_key="abc", secret_key="12345678", project="p")
        assert " down " in log.read_text().splitlines()[-1]

    def test_daemon_that_does_not_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.docker(tmp_path, monkeypatch, fails="info")
        assert not minio.docker_usable({"PATH": str(tmp_path / "bin")})
        assert not minio.docker_usable({"PATH": "/nonexistent"})
