"""Pipelines on this machine, each in a child process: files of users, and the example that Glue runs, too."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from brokerless.errors import ConfigError
from brokerless.local.processes import end_child, end_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brokerless.settings import Settings


def job_script(job: str) -> Path:
    """Return the file of a pipeline: the path that is given, or the file of that name in ``glue_jobs``.

    The file is not imported, because that would load Spark.

    Args:
        job: a path, or the name of an installed example such as ``timezone-etl``.

    Raises:
        ConfigError: it is neither.
    """
    path = Path(job)
    if path.is_file():
        return path.absolute()
    found = importlib.util.find_spec("glue_jobs")
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    scripts = {file.stem.replace("_", "-"): file for folder in folders for file in sorted(folder.glob("[!_]*.py"))}
    if job in scripts:
        return scripts[job]
    raise ConfigError(
        f"There is no file {job!r} in {Path.cwd()}, and no example of that name; examples are: "
        f"{', '.join(scripts) or 'none'}. Begin a pipeline of your own with 'brokerless new pipeline NAME'."
    )


def check_job(job: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Check that a job can run here, and return the ``JAVA_HOME`` for it.

    Raises:
        ConfigError: the job or pyspark is not installed, or there is no supported Java.
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
    job: str,
    settings: Settings,
    arguments: Sequence[str] = (),
    *,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
) -> subprocess.Popen[str]:
    """Start a pipeline in a child process. It gets no signal of the terminal: its starter decides when it stops.

    Args:
        job: which, as for ``job_script``.
        settings: handed on by environment.
        arguments: of the job, such as ``--once``; ``brokerless.spark.job`` lists them.
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
    # -P: what lies in the working directory is not what the library or Python itself means to import.
    command = [sys.executable, "-P", "-m", "brokerless.spark", str(job_script(job)), *arguments]
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
    end_child(process, grace_s=grace_s)
    end_group(process)
    return process.returncode
