"""Child processes on this machine: free ports, starting servers, waiting until ready, and ending.

Secrets are passed in the environment, never in arguments. Only processes that were started here receive signals.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from brokerless.errors import ConfigError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

HOST: Final = "127.0.0.1"

Started = TypeVar("Started")

# Both servers answer in under a second on an idle machine; the rest is for cold disks and busy laptops.
_READY_DEADLINE_S: Final = 30.0
_POLL_S: Final = 0.02
_PROBE_TIMEOUT_S: Final = 2.0
_CONNECT_TIMEOUT_S: Final = 3.0
_GROUP_GRACE_S: Final = 1.0
# Below this a server starts, takes a few objects and then fails in the middle of a commit.
_MIN_FREE_BYTES: Final = 64 * 1024 * 1024
# A port that was free a moment ago can be taken by the time the server binds it; then another one is tried.
_PORT_ATTEMPTS: Final = 4


def free_port() -> int:
    """Return a TCP port that is free at this moment on the loopback interface.

    The port is not reserved: another program can take it before the caller does.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class _PortTaken(ConfigError):
    """Error raised when another program listens on the port."""


def on_free_port(port: int | None, attempt: Callable[[int], Started]) -> Started:
    """Call ``attempt`` with the given port, or with free ports until one is still free, and return its result.

    Raises:
        ConfigError: the given port cannot be used, or what ``attempt`` raises.
    """
    if port is not None:
        _check_port(port)
        return attempt(port)
    for _ in range(_PORT_ATTEMPTS - 1):
        with contextlib.suppress(_PortTaken):
            return attempt(free_port())
    return attempt(free_port())


def _check_port(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set it, too; without it, a port in TIME_WAIT after a restart would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OverflowError:
            raise ConfigError(f"The port must be between 0 and 65535, got {port}.") from None
        except OSError as error:
            if error.errno == errno.EACCES:
                raise ConfigError(
                    f"This user has no permission to use port {port}. Choose one above 1023, or omit the port."
                ) from error
            raise _taken(port) from error


def _taken(port: int) -> _PortTaken:
    return _PortTaken(
        f"Port {port} on {HOST} is taken by another program. Choose another port, or omit it to get a free one."
    )


def prepare(directory: Path) -> Path:
    """Create the directory (readable by its owner only), check that it has room, and return its absolute path."""
    directory = directory.absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(directory, 0) from error
        raise ConfigError(
            f"Cannot write to {directory} ({error.strerror or error}). Choose a directory that you can write to."
        ) from error
    if free < _MIN_FREE_BYTES:
        raise _disk_full(directory, free)
    return directory


def _disk_full(directory: Path, free: int) -> ConfigError:
    return ConfigError(
        f"The disk of {directory} is full: {free / 2**20:.0f} MiB free, {_MIN_FREE_BYTES // 2**20} MiB are needed. "
        "Free some space, or choose a directory on another disk."
    )


# What an interpreter and a Go program need to start. Other variables are not passed on: AWS_*, MINISTACK_* and MINIO_*
# of the user's shell would change the server's behaviour, and a coverage tool's variables would slow it down.
_PASSED_ON: Final = frozenset(
    {"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}
)


def spawn(
    command: list[str],
    *,
    environ: Mapping[str, str],
    log_file: Path,
    detached: bool = False,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server and return its process, the leader of its own process group.

    Args:
        command: the program and its arguments.
        environ: its environment, in addition to the variables that any program needs.
        log_file: the file for its output; an existing one is replaced.
        detached: give it its own session; otherwise its standard input is a pipe that closes with this process.
        cwd: its working directory.

    Raises:
        ConfigError: the program cannot be started.
    """
    base = {name: value for name, value in os.environ.items() if name in _PASSED_ON}
    try:
        with log_file.open("wb") as log:
            return subprocess.Popen(
                command,
                env={**base, **environ},
                stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                start_new_session=detached,
                # Ctrl-C in a terminal goes to the whole group; the server must run on until its clients have finished.
                process_group=None if detached else 0,
            )
    except OSError as error:
        raise ConfigError(
            f"Cannot run {command[0]} ({error.strerror or error}). Reinstall it, or choose another program."
        ) from error


def wait_ready(
    process: subprocess.Popen[bytes], *, name: str, port: int, log_file: Path, is_ready: Callable[[], bool]
) -> None:
    """Wait until ``is_ready`` returns True; if that does not happen in time, end the process and raise.

    Raises:
        ConfigError: the process ended, the port is taken, the disk is full, or nothing answered in time.
    """
    deadline = time.monotonic() + _READY_DEADLINE_S
    try:
        while process.poll() is None:
            if is_ready():
                return
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{name} did not answer on port {port} within {_READY_DEADLINE_S:.0f} s. {_log_tail(log_file)}"
                )
            time.sleep(_POLL_S)
        output = read_log(log_file)
        if "already in use" in output or "address in use" in output.lower():
            raise _taken(port)
        if "No space left" in output:
            raise _disk_full(log_file.parent, shutil.disk_usage(log_file.parent).free)
        raise ConfigError(f"{name} ended with exit code {process.returncode} at its start. {_log_tail(log_file)}")
    except BaseException:
        end_child(process, grace_s=1.0)
        raise


def end_child(process: subprocess.Popen[Any], *, grace_s: float) -> None:
    """End a child process: close its input, send SIGTERM, and SIGKILL after ``grace_s`` seconds."""
    # This ends the embedded server at once; after SIGTERM alone it waits a second for idle connections.
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    # Signal by the Popen object, never by pid: Popen knows whether the process still exists.
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_group(process: subprocess.Popen[Any], *, grace_s: float = _GROUP_GRACE_S) -> None:
    """End the remaining processes of an ended job's group: a starting JVM does not notice the end of its parent.

    A JVM that finishes normally removes its scratch files and ends in less than a second; it gets ``grace_s`` for that.
    """
    # The system does not reuse a pid while a process group has that number, and an empty group cannot be signalled.
    deadline = time.monotonic() + grace_s
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)


def http_get(port: int, path: str, *, header: str | None = None) -> str:
    """Return the body of an answer with status 200 (or one of its headers); empty in all other cases."""
    # urllib would send the request through the user's HTTP proxy.
    connection = http.client.HTTPConnection(HOST, port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    if answer.status != http.client.OK:
        return ""
    return body if header is None else answer.getheader(header, "")


def check_listening(endpoint: str) -> None:
    """Raise if nothing accepts connections at the endpoint.

    Raises:
        StoreUnavailable: nothing listens there.
    """
    parts = urlsplit(endpoint)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), _CONNECT_TIMEOUT_S).close()
    except ValueError as error:
        raise ConfigError(f"The endpoint {endpoint!r} is not a URL ({error}); write http://host:port.") from None
    except OSError as error:
        raise StoreUnavailable(
            f"No S3 server answers at {endpoint} ({error.strerror or error}). Start one with 'brokerless up' (MinIO: "
            "'brokerless up --minio'), or set AWS_ENDPOINT_URL to the one to use."
        ) from None


def read_log(log_file: Path) -> str:
    """Return what a server has written to its log file; empty if the file does not exist."""
    try:
        return log_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _log_tail(log_file: Path) -> str:
    lines = [line.strip() for line in read_log(log_file).splitlines() if line.strip()]
    if not lines:
        return f"It wrote nothing to {log_file}."
    return f"Its log {log_file} ends with: {' | '.join(lines[-3:])}"
