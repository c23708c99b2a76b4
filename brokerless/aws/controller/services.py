"""The services that run streaming jobs, behind one protocol: list the runs of a pipeline, start one, stop some.

Invariants: an error of a start says whether nothing was started and the service refused (``StartRefused``), nothing was
started and a later call may succeed (``ServiceBusy``), or the outcome is unknown (``AnswerLost``). To take the third
for the second is how a pipeline comes to run twice. A run names its own version and start (Glue: two arguments, EMR:
its name), so it is recognised after a lost answer, after a lost state, and after Glue's weekly restart.

``glue`` and ``emr_serverless`` implement the protocol. Clients are passed in, and must not repeat calls (``calls``).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from brokerless.errors import BrokerlessError

RunsOn = Literal["glue", "emr-serverless"]
"""The service that runs a pipeline's job."""

Phase = Literal["starting", "running", "stopping", "ended"]
"""The phase of a run. A run is alive until it has ended: it may still read and write."""

Outcome = Literal["", "failed", "finished", "stopped", "expired"]
"""How a run ended. ``expired``: Glue starts its successor by itself."""

UNKNOWN_STATE: Final[tuple[Phase, Outcome]] = ("starting", "")
"""The phase of a state that is not known here. It counts as alive: waiting is safe, a second run is not."""


class ServiceBusy(BrokerlessError):
    """The service did nothing now, and a later call may succeed: throttling, a quota, a starting application."""


class StartRefused(BrokerlessError):
    """The service refuses this run for good: invalid arguments, a missing job or role, no permission."""


class AnswerLost(BrokerlessError):
    """The service was asked to start a run and did not respond, so the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class JobLocation:
    """The location of runs: a Glue job or an EMR Serverless application.

    Attributes:
        name: the job's name, or the application's id.
    """

    runs_on: RunsOn
    name: str

    def __str__(self) -> str:
        return f"{self.runs_on} {self.name}"


@dataclass(frozen=True, slots=True)
class EmrJob:
    """The parameters of each start on EMR Serverless. On Glue they are part of the job's definition.

    Attributes:
        entry_point: the script, ``s3://bucket/job.py``.
        role_arn: the role of the run.
        arguments: the arguments of the script.
        spark_submit: parameters of spark-submit, in one string.
        log_group: the CloudWatch log group of the driver's output; empty for the service's own log only.
        log_prefix: the prefix of the log streams.
        log_key_arn: the key that encrypts the log; empty for the default key.
    """

    entry_point: str
    role_arn: str
    arguments: tuple[str, ...] = ()
    spark_submit: str = ""
    log_group: str = ""
    log_prefix: str = ""
    log_key_arn: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a pipeline. The same start twice asks for the same run.

    Attributes:
        version: a hash of code, configuration and parameters.
        label: the number of the start; unique in a pipeline.
        job: None on Glue.
    """

    pipeline: str
    location: JobLocation
    version: str
    label: str
    job: EmrJob | None = None

    @property
    def token(self) -> str:
        """The client token of EMR Serverless: 64 hexadecimal digits, the same for the same start."""
        return hashlib.sha256("\n".join((self.pipeline, self.version, self.label)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the service reports it now.

    Attributes:
        version: the version of its ``Start``; empty if a person started it.
        label: the label of its ``Start``, likewise.
        state: the state in the service's own words.
        error: the service's message; empty if there is none.
        started_us: microseconds since the epoch.
    """

    id: str
    location: JobLocation
    phase: Phase
    version: str = ""
    label: str = ""
    outcome: Outcome = ""
    state: str = ""
    error: str = ""
    started_us: int = 0

    @property
    def alive(self) -> bool:
        """Whether the run may still read and write."""
        return self.phase != "ended"


class JobService(Protocol):
    """A service that runs streaming jobs."""

    def runs(self, location: JobLocation, *, pipeline: str, known: str) -> tuple[Run, ...]:
        """Return all live runs of the pipeline at a location, and the known run even if it has ended.

        Guaranteed: a location that does not exist has no runs, and is not an error. Not guaranteed: that a run which
        was just started is returned.

        Args:
            location: the Glue job or EMR application.
            pipeline: the pipeline; a location may run several.
            known: the id of a run, or empty.

        Raises:
            ServiceBusy: the service could not list the runs now.
        """

    def start(self, start: Start) -> str:
        """Start a run and return its id.

        Raises:
            ServiceBusy: nothing was started; a later call may.
            StartRefused: nothing was started, and the same call will never succeed.
            AnswerLost: it is unknown whether a run was started.
        """

    def stop(self, location: JobLocation, run_ids: tuple[str, ...], *, grace_s: int) -> None:
        """Ask runs to end; they end later. A run that has ended or does not exist is not an error.

        Raises:
            ServiceBusy: not all runs could be asked.
        """
