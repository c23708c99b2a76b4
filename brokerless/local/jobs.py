"""Pipelines on this machine: the very scripts that Glue and EMR Serverless run, each in a child process."""

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
    """The file to run, wherever ``glue_jobs`` is installed. Imports nothing of it: that would load Spark.

    Raises:
        ConfigError: it is not there.
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
    """Makes sure that a job can run here; returns the ``JAVA_HOME`` for it.

    Raises:
        ConfigError: the job or pyspark is not installed, or there is no usable Java. Found here, it costs a fraction of
            a second and no traceback of a child.
    """
    # Beside Spark only here: the command line must start without it.
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
    """The job, started. It gets no signal of the terminal: its starter decides when and how it stops.

    Args:
        job: which.
        settings: handed on by environment.
        arguments: of the script.
        stdout: as for ``subprocess.Popen``.
        stderr: likewise.

    Raises:
        ConfigError: as ``check_job``.
    """
    environ = {
        **os.environ,
        **settings.to_environ(),
        "JAVA_HOME": str(check_job(job)),
        "PYTHONUNBUFFERED": "1",  # progress must be seen when it happens, also through a pipe
    }
    command = [sys.executable, str(job_script(job)), *arguments]
    return subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        # Ctrl-C goes to the whole foreground group; the job would get it a second time when it is forwarded.
        process_group=0,
    )


def stop_job(process: subprocess.Popen[str], *, grace_s: float = 15.0) -> int:
    """Ends the job after its running batch; SIGKILL after ``grace_s`` seconds, which loses and repeats nothing either.

    Returns:
        Its exit code.
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
    """Ends what an ended job has left of its process group: a JVM that is still starting does not miss its parent.

    A JVM that is done removes its scratch files and ends by itself, in less than a second; it is given that time.
    """
    # No pid is given out again while a group bears its number, and an empty group cannot be signalled.
    deadline = time.monotonic() + grace_s
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
