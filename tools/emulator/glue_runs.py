"""Run Glue's Spark jobs for the emulator, which by itself only reports that they succeeded.

A run is one ``spark-submit`` on this machine, made from the job's definition as Glue does it: script and wheel come
from the bucket, the settings from ``--conf``, the arguments from the definition, and the credentials from the job's
role, so that its policy applies. A job has at most one running run, stopping it ends the process, and the event bus
gets an event at its end.

Differences to Glue: two local cores instead of workers, this interpreter with its installed pyspark, obstore and arro3
instead of Glue's and those in the archive of wheels, and ``--state-dir`` below the emulator's directory.
"""

from __future__ import annotations

import contextvars
import importlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import deque
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import boto3

from brokerless.spark.java import find_java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LOG: Final = logging.getLogger(__name__)

LIVE: Final = frozenset({"STARTING", "RUNNING", "STOPPING"})
"""The states of a run that may still write."""

# Much longer than a batch takes here; then the driver is killed, as Glue does it.
_STOP_S: Final = 15.0
_MESSAGE_LINES: Final = 5

# Settings for this machine come after those of the definition, because the last one counts.
_LOCAL_CONF: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


class GlueRuns:
    """A replacement of ministack's StartJobRun, BatchStopJobRun and GetJobRuns.

    Args:
        directory: the folder for the runs, each with its log.
        endpoint: the endpoint of the emulator.
    """

    def __init__(self, directory: Path, endpoint: str) -> None:
        self._directory = directory
        self._endpoint = endpoint
        self._glue: Any = importlib.import_module("ministack.services.glue")
        self._events: Any = importlib.import_module("ministack.services.eventbridge")
        self._responses: Any = importlib.import_module("ministack.core.responses")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def install(self) -> None:
        """Replace ministack's operations with these."""
        self._glue._start_job_run = self.start
        self._glue._batch_stop_job_run = self.stop
        self._glue._get_job_runs = self.runs

    def close(self) -> None:
        """Kill all runs, at the end of the emulator."""
        with self._lock:
            for process in self._processes.values():
                _signal(process, signal.SIGKILL)

    def start(self, data: dict[str, Any]) -> Any:
        """Handle StartJobRun; refused while a run is active, as with MaxConcurrentRuns 1, Glue's default."""
        name = data["JobName"]
        job = self._glue._jobs.get(name)
        if job is None:
            return self._error("EntityNotFoundException", f"Job {name} not found")
        now = int(time.time())
        run = {
            "Id": f"jr_{self._responses.new_uuid().replace('-', '')}",
            "Attempt": 0,
            "JobName": name,
            "StartedOn": now,
            "LastModifiedOn": now,
            "JobRunState": "STARTING",
            "Arguments": data.get("Arguments", {}),
            "ExecutionTime": 0,
            "WorkerType": job["WorkerType"],
            "NumberOfWorkers": job["NumberOfWorkers"],
            "GlueVersion": job["GlueVersion"],
        }
        with self._lock:
            runs = self._glue._job_runs.setdefault(name, [])
            if any(other["JobRunState"] in LIVE for other in runs):
                return self._error("ConcurrentRunsExceededException", f"Concurrent runs exceeded for {name}")
            runs.append(run)
        # The current definition: a later UpdateJob affects later runs only.
        self._thread(partial(self._run, deepcopy(job), run))
        return self._responses.json_response({"JobRunId": run["Id"]})

    def stop(self, data: dict[str, Any]) -> Any:
        """Handle BatchStopJobRun: the run is STOPPING until its process has ended."""
        stopping, errors = [], []
        for run_id in data.get("JobRunIds", []):
            names = {"JobName": data["JobName"], "JobRunId": run_id}
            run = next((r for r in self._glue._job_runs.get(data["JobName"], []) if r["Id"] == run_id), None)
            if run is None or run["JobRunState"] not in LIVE:
                code = "EntityNotFoundException" if run is None else "InvalidInputException"
                state = "unknown" if run is None else run["JobRunState"]
                detail = {"ErrorCode": code, "ErrorMessage": f"Run {run_id} is {state}"}
                errors.append({**names, "ErrorDetail": detail})
                continue
            self._note(run, "STOPPING")
            stopping.append(names)
            self._thread(partial(self._end, run_id))
        return self._responses.json_response({"SuccessfulSubmissions": stopping, "Errors": errors})

    def runs(self, data: dict[str, Any]) -> Any:
        """Handle GetJobRuns: return the runs, newest first."""
        runs = list(reversed(self._glue._job_runs.get(data["JobName"], [])))
        return self._responses.json_response({"JobRuns": runs[: data.get("MaxResults", len(runs))]})

    def _run(self, job: dict[str, Any], run: dict[str, Any]) -> None:
        directory = self._directory / run["Id"]
        directory.mkdir(parents=True)
        try:
            process = self._spawn(job, run, directory)
        except Exception as error:  # any error ends the run, but not the emulator
            _LOG.exception("Glue run %s did not start", run["Id"])
            self._finish(run, "FAILED", f"{type(error).__name__}: {error}")
            return
        if run["JobRunState"] == "STARTING":
            self._note(run, "RUNNING")
        else:
            self._end(run["Id"])
        code = process.wait()
        with self._lock:
            del self._processes[run["Id"]]
        _signal(process, signal.SIGKILL)  # remaining processes of the driver's group
        shutil.rmtree(directory / "scratch", ignore_errors=True)
        if run["JobRunState"] == "STOPPING":
            self._finish(run, "STOPPED", "")
        elif code == 0:
            self._finish(run, "SUCCEEDED", "")
        else:
            self._finish(run, "FAILED", f"Exit code {code}: {_tail(directory / 'log')}")

    def _spawn(self, job: dict[str, Any], run: dict[str, Any], directory: Path) -> subprocess.Popen[bytes]:
        environ = self._environ(job, run, directory)
        s3 = self._client("s3", environ)
        script = _download(s3, job["Command"]["ScriptLocation"], directory)
        arguments = {**job["DefaultArguments"], **run["Arguments"]}
        for archive in filter(None, arguments.get("--additional-python-modules", "").split(",")):
            _unpack_library(_download(s3, archive, directory), directory / "library")
        command = spark_submit(script, {"--JOB_NAME": run["JobName"], "--JOB_RUN_ID": run["Id"], **arguments})
        command += ["--state-dir", str(directory / "scratch")]
        with self._lock, (directory / "log").open("wb") as log:
            process = self._processes[run["Id"]] = subprocess.Popen(
                command,
                env=environ,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        return process

    def _environ(self, job: dict[str, Any], run: dict[str, Any], directory: Path) -> dict[str, str]:
        """Return the driver's environment: the job's role, and not the emulator's own credentials."""
        environ = {
            name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH"}
        }
        root = {**environ, **{name: value for name, value in os.environ.items() if name.startswith("AWS_")}}
        role = self._client("sts", root).assume_role(RoleArn=job["Role"], RoleSessionName=run["Id"][:64])
        keys = role["Credentials"]
        scratch = directory / "scratch"
        scratch.mkdir()
        return environ | {
            "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
            "AWS_SESSION_TOKEN": keys["SessionToken"],
            "AWS_ENDPOINT_URL": self._endpoint,
            "AWS_REGION": os.environ["AWS_REGION"],
            "AWS_DEFAULT_REGION": os.environ["AWS_REGION"],
            "HOME": str(directory),
            "TMPDIR": str(scratch),
            "SPARK_LOCAL_DIRS": str(scratch),
            "JAVA_HOME": str(find_java_home()),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(directory / "library"),
        }

    def _client(self, service: str, environ: Mapping[str, str]) -> Any:
        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self._endpoint,
            region_name=os.environ["AWS_REGION"],
            aws_access_key_id=environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=environ.get("AWS_SESSION_TOKEN"),
        )

    def _end(self, run_id: str) -> None:
        with self._lock:
            process = self._processes.get(run_id)
        if process is None:
            return  # it has not been started yet; the thread that starts it will end it
        _signal(process, signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)

    def _finish(self, run: dict[str, Any], state: str, message: str) -> None:
        run["CompletedOn"] = int(time.time())
        run["ExecutionTime"] = run["CompletedOn"] - run["StartedOn"]
        if message:
            run["ErrorMessage"] = message
        self._note(run, state)
        detail = {
            "jobName": run["JobName"],
            "jobRunId": run["Id"],
            "state": state,
            "severity": "ERROR" if state == "FAILED" else "INFO",
            "message": message,
        }
        entry = {"Source": "aws.glue", "DetailType": "Glue Job State Change", "Detail": json.dumps(detail)}
        self._events._put_events({"Entries": [entry]}, allow_aws_source=True)

    @staticmethod
    def _note(run: dict[str, Any], state: str) -> None:
        run["JobRunState"] = state
        run["LastModifiedOn"] = int(time.time())

    @staticmethod
    def _thread(work: Callable[[], None]) -> None:
        # ministack keeps the request's account and region in context variables, which threads do not inherit.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work,), daemon=True).start()

    def _error(self, code: str, message: str) -> Any:
        return self._responses.error_response_json(code, message, 400)


def spark_submit(script: Path, arguments: Mapping[str, str]) -> list[str]:
    """Return the command that runs a Glue job's script on this machine.

    Args:
        script: the job's file.
        arguments: as in the job's definition. ``--conf`` has Glue's format ``a=b --conf c=d``; the script gets the
            other arguments.
    """
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    chain = arguments.get("--conf", "")
    settings = [part.strip() for part in f" {chain}".split(" --conf ")] if chain else []
    for setting in (*settings, *(f"{key}={value}" for key, value in _LOCAL_CONF.items())):
        command += ["--conf", setting.strip()]
    given = [word for name, value in arguments.items() if name != "--conf" for word in (name, value)]
    return [*command, str(script), *given]


def _download(s3: Any, uri: str, directory: Path) -> Path:
    parts = urlsplit(uri)
    path = directory / Path(parts.path).name
    s3.download_file(parts.netloc, parts.path.lstrip("/"), str(path))
    return path


def _unpack_library(archive: Path, library: Path) -> None:
    """Unpack the wheels that any interpreter runs; the others are for that of Glue."""
    with zipfile.ZipFile(archive) as wheels, tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        for name in wheels.namelist():
            if Path(name).name.startswith("brokerless-") and name.endswith("-none-any.whl"):
                with zipfile.ZipFile(wheels.extract(name, scratch)) as wheel:
                    wheel.extractall(library)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _tail(log: Path) -> str:
    with log.open(encoding="utf-8", errors="replace") as lines:
        return " | ".join(deque((line.strip() for line in lines if line.strip()), _MESSAGE_LINES))
