"""MinIO on this machine: a binary, a container of docker compose, or an endpoint that is given."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokerless.errors import ConfigError
from brokerless.local.processes import HOST, free_port, http_get, on_free_port, prepare, read_log, spawn, wait_ready
from brokerless.local.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIO_BINARY_ENV: Final = "BROKERLESS_MINIO_BINARY"
ACCESS_KEY_ENV: Final = "MINIO_S3_ACCESS_KEY"
SECRET_KEY_ENV: Final = "MINIO_S3_SECRET_ACCESS_KEY"  # noqa: S105  (a name, not a secret)

# Long, because the first start may download the image.
_COMPOSE_DEADLINE_S: Final = 300.0


def find_minio(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the MinIO binary: the one named by ``BROKERLESS_MINIO_BINARY``, else ``minio`` on ``PATH``, else None.

    Raises:
        ConfigError: the variable does not name an executable file.
    """
    named = environ.get(MINIO_BINARY_ENV, "").strip()
    if named:
        if not (Path(named).is_file() and os.access(named, os.X_OK)):
            raise ConfigError(
                f"{MINIO_BINARY_ENV}={named} is not an executable file; name the MinIO binary or unset it."
            )
        return Path(named)
    found = shutil.which("minio", path=environ.get("PATH", ""))
    return None if found is None else Path(found)


def start_minio(
    data_dir: Path,
    *,
    access_key: str,
    secret_key: str,
    port: int | None = None,
    binary: Path | None = None,
    log_file: Path | None = None,
    detached: bool = False,
) -> LocalServer:
    """Start a MinIO server on ``data_dir``; it is ready on return, after about 0.5 s.

    Its web console, update check and telemetry are off. The keys may differ from those of an earlier run on the same
    directory. Unlike the embedded server, it runs on if this process is killed.

    Args:
        data_dir: the folder for everything that the server writes; created if missing.
        access_key: at least 3 characters.
        secret_key: at least 8 characters.
        port: the port to listen on; a free one if None.
        binary: the MinIO binary; ``find_minio()`` if None.
        log_file: the file for its output; ``<data_dir>/server.log`` if None. Replaced at each start.
        detached: give the server its own session, so that it runs on after this process.

    Raises:
        ConfigError: there is no binary, the keys are too short, the port is taken, the disk is full or not writable,
            or the server did not start.
    """
    binary = binary or find_minio()
    if binary is None:
        raise ConfigError(f"No MinIO binary was found. Put 'minio' on PATH or set {MINIO_BINARY_ENV} to its path.")
    if len(access_key) < 3 or len(secret_key) < 8:
        raise ConfigError(
            f"MinIO refuses these keys: the access key has {len(access_key)} characters (at least 3 are needed), the "
            f"secret {len(secret_key)} (at least 8). Change {ACCESS_KEY_ENV} and {SECRET_KEY_ENV}."
        )
    data_dir = prepare(data_dir)
    log = log_file or data_dir / "server.log"

    def attempt(chosen: int) -> LocalServer:
        process = spawn(
            [
                str(binary),
                "server",
                str(data_dir / "objects"),
                "--address",
                f"{HOST}:{chosen}",
                # Without it, MinIO writes to the home directory.
                "--certs-dir",
                str(data_dir / "certs"),
            ],
            environ={
                "MINIO_ROOT_USER": access_key,
                "MINIO_ROOT_PASSWORD": secret_key,
                # The console would open one more port.
                "MINIO_BROWSER": "off",
                "MINIO_UPDATE": "off",
                "MINIO_CALLHOME_ENABLE": "off",
                "MINIO_PROMETHEUS_AUTH_TYPE": "public",
            },
            log_file=log,
            detached=detached,
        )
        # It prints its address only after it has opened the port; an answer alone could come from another server.
        announced = re.compile(rf"http://{re.escape(HOST)}:{chosen}\b")

        def is_ready() -> bool:
            return bool(announced.search(read_log(log))) and bool(
                http_get(chosen, "/minio/health/ready", header="Server")
            )

        wait_ready(process, name="MinIO", port=chosen, log_file=log, is_ready=is_ready)
        return LocalServer(
            kind="minio",
            endpoint=f"http://{HOST}:{chosen}",
            access_key=access_key,
            secret_key=secret_key,
            process=process,
        )

    return on_free_port(port, attempt)


def start_minio_compose(
    *, access_key: str, secret_key: str, project: str, port: int | None = None, compose_file: Path | None = None
) -> LocalServer:
    """Start MinIO in a container with docker compose; it is healthy on return. The first start downloads the image.

    Args:
        access_key: at least 3 characters.
        secret_key: at least 8 characters.
        project: docker compose's project name. Its volume keeps the objects after ``stop``.
        port: the port on the loopback interface; a free one if None.
        compose_file: the compose file; the one that comes with brokerless if None.

    Raises:
        ConfigError: docker cannot be used, or the container did not become healthy.
    """
    file = compose_file or _compose_file()
    if file is None or not docker_usable():
        raise ConfigError(
            "MinIO cannot be started with docker: 'docker compose' or the docker daemon does not answer. Start docker."
        )
    chosen = port or free_port()
    compose = ["docker", "compose", "--file", str(file), "--project-name", project]
    environ = dict(os.environ) | {
        ACCESS_KEY_ENV: access_key,
        SECRET_KEY_ENV: secret_key,
        "BROKERLESS_MINIO_PORT": str(chosen),
    }
    # docker shows its progress (the download of the image) on the terminal.
    command = [*compose, "up", "--detach", "--wait", "minio"]
    try:
        code = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=_COMPOSE_DEADLINE_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        code = None

    def stop() -> None:
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            subprocess.run(
                [*compose, "down"],
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=60,
                check=False,
            )

    if code != 0:
        stop()
        reason = f"exit {code}" if code is not None else f"no answer within {_COMPOSE_DEADLINE_S:.0f} s"
        raise ConfigError(f"'{' '.join(command)}' failed ({reason}); see its output above, and run it yourself.")
    return LocalServer(
        kind="minio",
        endpoint=f"http://{HOST}:{chosen}",
        access_key=access_key,
        secret_key=secret_key,
        on_stop=stop,
    )


def docker_usable(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if ``docker compose`` is installed and its daemon answers."""
    docker = shutil.which("docker", path=environ.get("PATH", ""))
    if docker is None:
        return False
    for arguments in (["compose", "version"], ["info"]):
        try:
            answer = subprocess.run(
                [docker, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        if answer.returncode != 0:
            return False
    return True


def minio_server(environ: Mapping[str, str], data_dir: Path) -> LocalServer:
    """Return a MinIO server: the endpoint in ``environ``, else a ``minio`` binary, else docker compose.

    Credentials are ``MINIO_S3_ACCESS_KEY`` and ``MINIO_S3_SECRET_ACCESS_KEY`` (or the AWS SDK's names). Without them, a
    server that is started here gets random ones, which are in the result.

    Args:
        environ: the variables with endpoint, credentials, ``PATH`` and ``BROKERLESS_MINIO_BINARY``.
        data_dir: the folder for the objects of a server that is started here (a container uses a volume instead).

    Returns:
        The server. ``stop`` has no effect if its endpoint was given.

    Raises:
        ConfigError: none of the three is possible, an endpoint has no credentials, or the server cannot be started.
    """
    access_key = environ.get(ACCESS_KEY_ENV) or environ.get("AWS_ACCESS_KEY_ID") or ""
    secret_key = environ.get(SECRET_KEY_ENV) or environ.get("AWS_SECRET_ACCESS_KEY") or ""
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    if endpoint:
        if not (access_key and secret_key):
            raise ConfigError(f"The endpoint {endpoint} needs credentials. Set {ACCESS_KEY_ENV} and {SECRET_KEY_ENV}.")
        return LocalServer(kind="minio", endpoint=endpoint.rstrip("/"), access_key=access_key, secret_key=secret_key)
    if not (access_key and secret_key):
        access_key, secret_key = f"brokerless-{secrets.token_hex(4)}", secrets.token_urlsafe(24)
    binary = find_minio(environ)
    if binary is not None:
        return start_minio(data_dir, access_key=access_key, secret_key=secret_key, binary=binary)
    if _compose_file() is not None and docker_usable(environ):
        # One project per directory, so that two checkouts do not stop each other's server.
        digest = hashlib.sha256(os.fsencode(data_dir.absolute())).hexdigest()[:8]
        return start_minio_compose(access_key=access_key, secret_key=secret_key, project=f"brokerless-{digest}")
    raise ConfigError(
        "No MinIO server was found. Do one of these: set AWS_ENDPOINT_URL to a running server (with "
        f"{ACCESS_KEY_ENV} and {SECRET_KEY_ENV}); put a 'minio' binary on PATH or set {MINIO_BINARY_ENV}; "
        "or start docker, with its compose plugin."
    )


def _compose_file() -> Path | None:
    # In the wheel it is in this module's folder, in the repository under local/.
    here = Path(__file__).resolve()
    for candidate in (here.with_name("compose.yaml"), here.parents[2] / "local" / "compose.yaml"):
        if candidate.is_file():
            return candidate
    return None
