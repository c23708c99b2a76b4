"""Pipelines on this machine: the same scripts as on Glue and EMR Serverless, each in a child process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brokerless.settings import Settings

Job = Literal["timezone-etl"]

_JVM_GRACE_S: Final = 1.0

_SCRIPTS: Final[Mapping[str, str]] = {"timezone-etl": "timezone_etl.py"}


def job_script(job: Job) -> Path:
    """Return the path of the job's script in the installed ``glue_jobs``, without importing it (that would load Spark).

    Raises:
        ConfigError: the job is not installed.
    """
    found = importlib.util.find_spec("glue_jobs")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        script = Path(folder) / _SCRIPTS[job]
        if script.is_file():
            return script
    raise ConfigError(
        f"The job {job!r} is not installed for {sys.executable}. Reinstall it: pip install 'brokerless[spark]'."
    )


def check_job(job: Job, environ: Mapping[str, str] = os.environ) -> Path:
    """Check that a job can run on this machine, and return the ``JAVA_HOME`` for it.

    Raises:
        ConfigError: the job or pyspark is not installed, or there is no supported Java. It is found here, before a
            child process fails with a traceback.
    """
    # Imported here because it loads Spark's package: the command line must start without it.
    from brokerless.spark.java import find_java_home

    job_script(job)
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError(
            f"Pipelines need pyspark, which is not installed for {sys.executable}: pip install 'brokerless[spark]'."
        )
    return find_java_home(environ)


def start_job(
    job: Job,
    settings: Settings,
    arguments: Sequence[str] = (),
    *,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
) -> subprocess.Popen[str]:
    """Start a job and return its process. It receives no signals of the terminal; the caller stops it.

    Args:
        job: the job's name.
        settings: passed on in the environment.
        arguments: the arguments of the script.
        stdout: as for ``subprocess.Popen``.
        stderr: as for ``subprocess.Popen``.

    Raises:
        ConfigError: as ``check_job``.
    """
    environ = {
        **os.environ,
        **settings.to_environ(),
        "JAVA_HOME": str(check_job(job)),
        "PYTHONUNBUFFERED": "1",  # so that progress is visible at once, also through a pipe
    }
    command = [sys.executable, str(job_script(job)), *arguments]
    return subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        # Ctrl-C goes to the whole foreground group; the job would get it twice when the caller forwards it.
        process_group=0,
    )


def stop_job(process: subprocess.Popen[str], *, grace_s: float = 15.0) -> int:
    """Stop the job after its running batch; send SIGKILL after ``grace_s`` seconds, which is safe as well.

    Returns:
        The job's exit code.
    """
    process.terminate()
    try:
        code = process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    end_group(process)
    return code


def end_group(process: subprocess.Popen[str], *, grace_s: float = _JVM_GRACE_S) -> None:
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
