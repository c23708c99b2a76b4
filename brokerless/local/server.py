"""S3 servers on this machine: what they have in common, and the embedded one; MinIO is in ``minio``.

Every server started here has these properties:

- It listens on the loopback interface only, and its data directory is not readable for other users.
- It is returned only after it proved to be the process that was started; another server on the port would answer the
  readiness check as well, and would get the data. Only processes that were started here receive signals.
- Secrets are passed in the environment, never in arguments (which every user can read) or files.
- Acknowledged objects survive ``kill -9``, and a power failure if the file system does. A failed write gets status 507.

Not guaranteed: the embedded server accepts any credentials, so other users of the machine can use it by its port.
"""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import sys
import threading
from typing import TYPE_CHECKING, Final, Literal, Self

from brokerless.errors import ConfigError
from brokerless.local import embedded
from brokerless.local.processes import (
    HOST,
    end_child,
    http_get,
    on_free_port,
    prepare,
    spawn,
    wait_ready,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

Kind = Literal["embedded", "minio"]
"""The kind of server: ``embedded`` is ministack from PyPI; ``minio`` is a MinIO binary, container or endpoint."""


class LocalServer:
    """A running S3 server. Use it as a context manager, or call ``stop``.

    Attributes:
        kind: the server's software.
        endpoint: URL without a trailing slash.
        pid: the id of the server's process; None if it was not started here (a container, a given endpoint).
        access_key, secret_key: the credentials that it accepts.
    """

    def __init__(
        self,
        *,
        kind: Kind,
        endpoint: str,
        access_key: str,
        secret_key: str,
        process: subprocess.Popen[bytes] | None = None,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        self.kind: Final = kind
        self.endpoint: Final = endpoint
        self.access_key: Final = access_key
        self.secret_key: Final = secret_key
        self._process = process
        self._on_stop = on_stop
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"LocalServer(kind={self.kind!r}, endpoint={self.endpoint!r}, pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """Return the id of the server's process, or None if it was not started here."""
        return None if self._process is None else self._process.pid

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop the server: send SIGTERM, and SIGKILL after ``grace_s`` seconds. Its data stays. May be called again.

        Has no effect on a server that was not started here (an endpoint from the environment).
        """
        with self._lock:
            process, self._process = self._process, None
            on_stop, self._on_stop = self._on_stop, None
        if process is not None:
            end_child(process, grace_s=grace_s)
        if on_stop is not None:
            on_stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def detach(self) -> subprocess.Popen[bytes] | None:
        """Release the process, so that it runs on after this object and this interpreter end; return it."""
        with self._lock:
            process, self._process, self._on_stop = self._process, None, None
        if process is not None:
            # Avoids Popen's warning about a process that still runs when the object is collected.
            process.returncode = 0
        return process


def start_embedded(
    data_dir: Path, *, port: int | None = None, log_file: Path | None = None, detached: bool = False
) -> LocalServer:
    """Start an embedded S3 server on ``data_dir``; it is ready on return, after about 0.3 s.

    It has the objects of earlier runs on the same directory, also after ``kill -9``. It ends with this process, even if
    that is killed, unless ``detached``.

    Args:
        data_dir: the folder for everything that the server writes; created if missing.
        port: the port to listen on; a free one if None.
        log_file: the file for the server's warnings; ``<data_dir>/server.log`` if None. Replaced at each start.
        detached: give the server its own session, so that it runs on after this process.

    Raises:
        ConfigError: ministack is not installed, the port is taken, the disk is full or not writable, or the server
            did not start.
    """
    data_dir = prepare_ministack(data_dir)

    def attempt(chosen: int) -> LocalServer:
        nonce = secrets.token_hex(16)
        process = spawn(
            _ministack_command(detached=detached),
            environ={**ministack_environ(data_dir, port=chosen, nonce=nonce), "SERVICES": "s3"},
            log_file=log_file or data_dir / "server.log",
            detached=detached,
        )
        wait_ready(
            process,
            name="The embedded S3 server",
            port=chosen,
            log_file=log_file or data_dir / "server.log",
            is_ready=lambda: nonce in http_get(chosen, "/_ministack/health"),
        )
        return LocalServer(
            kind="embedded",
            endpoint=f"http://{HOST}:{chosen}",
            # The server accepts any credentials, and clients need some.
            access_key="brokerless",
            secret_key="brokerless",  # noqa: S106
            process=process,
            on_stop=lambda: shutil.rmtree(data_dir / "tmp", ignore_errors=True),
        )

    return on_free_port(port, attempt)


def prepare_ministack(data_dir: Path) -> Path:
    """Create the directory for ``ministack_environ`` with the folders that ministack needs; return its absolute path.

    Raises:
        ConfigError: the disk is full or not writable.
    """
    data_dir = prepare(data_dir)
    for part in ("objects", "state"):
        (data_dir / part).mkdir(exist_ok=True)
    # A killed run leaves a pid file there.
    shutil.rmtree(data_dir / "tmp", ignore_errors=True)
    (data_dir / "tmp").mkdir()
    return data_dir


def ministack_environ(data_dir: Path, *, port: int, nonce: str) -> dict[str, str]:
    """Return the environment with which ministack uses only the loopback interface and ``data_dir``.

    Args:
        data_dir: from ``prepare_ministack``. Objects are in ``objects``, temporary files in ``tmp``.
        port: the port to listen on.
        nonce: a value that ``/_ministack/health`` returns; it shows that the answer comes from this server and not
            from another one on the port.
    """
    return {
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(port),
        "S3_PERSIST": "1",
        "S3_DATA_DIR": str(data_dir / "objects"),
        "STATE_DIR": str(data_dir / "state"),
        "TMPDIR": str(data_dir / "tmp"),
        # At level INFO it logs every request.
        "LOG_LEVEL": "WARNING",
        # It would open two more ports, one of them on all interfaces.
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        # It removes containers of earlier runs. Here it has none, and must not touch the user's containers.
        "DOCKER_HOST": f"unix://{data_dir / 'tmp' / 'no-docker'}",
        "MINISTACK_EDITION": nonce,
    }


def _ministack_command(*, detached: bool) -> list[str]:
    # Not imported: it runs in its own interpreter, and importing it would slow down the command line.
    if importlib.util.find_spec("ministack") is None:
        raise ConfigError(
            f"The embedded S3 server (ministack) is not installed for {sys.executable}. "
            "Install it: pip install 'brokerless[local]'."
        )
    # Otherwise the server would run on if its parent is killed.
    options = [] if detached else [embedded.STOP_WITH_PARENT]
    # -P: files in the working directory must not replace modules of the standard library.
    return [sys.executable, "-P", "-m", embedded.__name__, *options]
