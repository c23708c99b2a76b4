"""The S3 server that ``brokerless up`` starts in the background, with its state in ``server.json``.

A pid in the file is used only together with the process's start time, because the system reuses pids: so no process
receives a signal except the one that was started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args
from urllib.parse import urlsplit

from brokerless.errors import ConfigError
from brokerless.local.minio import ACCESS_KEY_ENV, SECRET_KEY_ENV, find_minio, start_minio
from brokerless.local.processes import http_get, prepare
from brokerless.local.server import Kind, LocalServer, start_embedded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STATE_FILE: Final = "server.json"

# Time for a server that does not answer to end, before another one is started on its data.
_UP_GRACE_S: Final = 5.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ServerState:
    """The server that ``brokerless up`` started.

    Attributes:
        pid: the id of its process.
        process_start: the start time of that process in the system's unit; a later process with the same pid differs.
        kind: the server's software.
        endpoint: URL without a trailing slash.
        data_dir: absolute path of its data.
        started_at: UTC, ISO 8601.
    """

    pid: int
    process_start: str
    kind: Kind
    endpoint: str
    data_dir: str
    started_at: str


def write_state(state_dir: Path, state: ServerState) -> None:
    """Write ``server.json`` atomically, readable by its owner only."""
    handle, name = tempfile.mkstemp(dir=state_dir, prefix=".server-")
    temporary = Path(name)
    try:
        # mkstemp creates the file with mode 0600.
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(state), file, indent=2)
            file.write("\n")
        temporary.replace(state_dir / STATE_FILE)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_state(state_dir: Path) -> ServerState | None:
    """Read ``server.json``; return None if it is missing or damaged. The process is not checked."""
    try:
        record = json.loads((state_dir / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    names = {field.name for field in fields(ServerState)}
    if not isinstance(record, dict) or not names <= record.keys():
        return None
    values = {name: record[name] for name in names}
    if not isinstance(values.pop("pid"), int) or not all(isinstance(value, str) for value in values.values()):
        return None
    if values["kind"] not in get_args(Kind):
        return None
    return ServerState(pid=record["pid"], **values)


def clear_state(state_dir: Path) -> None:
    """Remove ``server.json`` if it exists."""
    (state_dir / STATE_FILE).unlink(missing_ok=True)


def up(
    state_dir: Path, *, kind: Kind = "embedded", port: int | None = None, environ: Mapping[str, str] = os.environ
) -> ServerState:
    """Return the server of ``state_dir``, running in the background; start it if it is not running.

    Objects are under ``<state_dir>/s3`` (MinIO: ``<state_dir>/minio``); they stay after ``down`` and after a crash. Two
    calls at the same time start one server.

    Args:
        state_dir: created if missing.
        kind: ``minio`` needs a binary, and its credentials in ``environ``.
        port: the port of a new server; a free one if None.
        environ: the variables with MinIO's binary and credentials.

    Raises:
        ConfigError: a server of another kind or on another port is running; or the server cannot be started.
    """
    state_dir = prepare(state_dir)
    with _locked(state_dir):
        running = status(state_dir)
        if running is not None:
            if running.kind != kind or (port is not None and urlsplit(running.endpoint).port != port):
                raise ConfigError(
                    f"A server of kind {running.kind} is running at {running.endpoint}, and {kind}"
                    f"{f' on port {port}' if port is not None else ''} was asked for. Stop it first: brokerless down."
                )
            return running
        # The process may exist without answering.
        _stop_recorded(state_dir, grace_s=_UP_GRACE_S)
        data_dir = state_dir / ("s3" if kind == "embedded" else "minio")
        server = (
            start_embedded(data_dir, port=port, detached=True)
            if kind == "embedded"
            else _start_minio_detached(data_dir, port=port, environ=environ)
        )
        try:
            pid = server.pid
            start = None if pid is None else _process_start(pid)
            if pid is None or start is None:
                raise ConfigError(
                    f"The server at {server.endpoint} ended right after its start; see {data_dir / 'server.log'}."
                )
            state = ServerState(
                pid=pid,
                process_start=start,
                kind=kind,
                endpoint=server.endpoint,
                data_dir=str(data_dir),
                started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            write_state(state_dir, state)
        except BaseException:
            server.stop()
            raise
        server.detach()
        return state


def down(state_dir: Path, *, grace_s: float = 5.0) -> ServerState | None:
    """Stop the server of ``state_dir``; its data stays.

    Returns:
        The stopped server, or None if no server was running.
    """
    if not state_dir.is_dir():
        return None
    with _locked(state_dir):
        return _stop_recorded(state_dir, grace_s=grace_s)


def status(state_dir: Path) -> ServerState | None:
    """Return the running server of ``state_dir``, or None.

    A server is running if the recorded process still exists and answers on its port.
    """
    state = read_state(state_dir)
    if state is None or not _is_alive(state):
        return None
    port = urlsplit(state.endpoint).port
    path = "/_ministack/health" if state.kind == "embedded" else "/minio/health/live"
    return state if port is not None and http_get(port, path, header="Date") else None


def _start_minio_detached(data_dir: Path, *, port: int | None, environ: Mapping[str, str]) -> LocalServer:
    access_key = environ.get(ACCESS_KEY_ENV) or environ.get("AWS_ACCESS_KEY_ID") or ""
    secret_key = environ.get(SECRET_KEY_ENV) or environ.get("AWS_SECRET_ACCESS_KEY") or ""
    # Random ones would have to be stored in a file for later commands.
    if not (access_key and secret_key):
        raise ConfigError(f"MinIO in the background needs credentials. Set {ACCESS_KEY_ENV} and {SECRET_KEY_ENV}.")
    return start_minio(
        data_dir,
        access_key=access_key,
        secret_key=secret_key,
        port=port,
        binary=find_minio(environ),
        detached=True,
    )


def _stop_recorded(state_dir: Path, *, grace_s: float) -> ServerState | None:
    """End the process of ``server.json`` if it is still the same process, and remove the file."""
    state = read_state(state_dir)
    stopped = None
    if state is not None and _is_alive(state):
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.pid, number)
            deadline = time.monotonic() + patience_s
            while _is_alive(state) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if not _is_alive(state):
                break
        stopped = state
        shutil.rmtree(Path(state.data_dir) / "tmp", ignore_errors=True)
    clear_state(state_dir)
    return stopped


def _is_alive(state: ServerState) -> bool:
    # A server that this process started stays a zombie until it is waited for.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(state.pid, os.WNOHANG)
    return _process_start(state.pid) == state.process_start


def _process_start(pid: int) -> str | None:
    """Return the start time of a process as text to compare; None if the process does not exist or has ended.

    On Linux it is the boot id and the ticks since boot, because pids and ticks begin again with each boot.
    """
    proc = Path("/proc")
    if (proc / "self" / "stat").exists():
        try:
            # The name, in parentheses, may contain spaces and parentheses.
            values = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        # proc(5): state is field 3, starttime is field 22; the split begins at field 3.
        return None if values[0] in {"Z", "X"} else f"{boot}/{values[19]}"
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
    )
    stat, _, start = answer.stdout.strip().partition(" ")
    return None if not start or stat.startswith("Z") else start.strip()


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    # Unix only, like the servers; imported here so that this module can be imported everywhere.
    import fcntl

    with (state_dir / "server.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
