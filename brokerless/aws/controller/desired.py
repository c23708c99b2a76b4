"""The pipeline that a deployment asks for: the properties of its custom resource. Standard library only."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

from brokerless.aws.controller.services import EmrJob, JobLocation, RunsOn
from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_REQUIRED: Final = ("Pipeline", "Engine", "CodeHash", "ConfigHash")

# Property, least and greatest value. CloudFormation sends all properties as text.
_NUMBERS: Final = {
    "max_failures_per_hour": ("MaxFailuresPerHour", 1, 100),
    "max_start_failures": ("MaxStartFailures", 1, 100),
    "settle_s": ("SettleSeconds", 0, 3600),
    "grace_s": ("GraceSeconds", 0, 600),
    "deploy_timeout_s": ("DeployTimeoutSeconds", 60, 7200),
}


@dataclass(frozen=True, slots=True)
class DesiredPipeline:
    """The pipeline that a deployment asks for: the properties of its custom resource.

    Attributes:
        pipeline: its name.
        location: the job or application that runs it. Its name may be a token of the CDK.
        code_hash: the hash of the script and the library; a new hash restarts the run.
        config_hash: the hash of arguments, workers and so on; a new hash restarts the run.
        job: the parameters of EMR Serverless; None on Glue.
        running: False stops the run and leaves it stopped.
        bump: any text; a new text restarts the run although nothing else changed.
        max_failures_per_hour: after this number of failures the controller gives up, until a deployment or a reset.
        max_start_failures: after this number of failed runs, before one has settled, the deployment fails.
        settle_s: how long a run must have been RUNNING before the deployment is done.
        grace_s: how long a run may take to stop (EMR Serverless; Glue decides itself).
        deploy_timeout_s: after this time a deployment fails with a reason. It must be less than the time-out of the
            custom resource's provider, whose message has no reason.

    Raises:
        ConfigError: a value is invalid.
    """

    pipeline: str
    location: JobLocation
    code_hash: str
    config_hash: str
    job: EmrJob | None = None
    running: bool = True
    bump: str = ""
    max_failures_per_hour: int = 5
    max_start_failures: int = 3
    settle_s: int = 60
    grace_s: int = 120
    deploy_timeout_s: int = 1500

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.pipeline):
            raise ConfigError(
                "A pipeline's name must be 1 to 100 letters, digits, '_', '.' and '-', and begin with a letter, "
                f"got {self.pipeline!r}."
            )
        if self.location.runs_on not in get_args(RunsOn):
            known = ", ".join(get_args(RunsOn))
            raise ConfigError(
                f"Pipeline {self.pipeline!r}: Engine must be one of {known}, got {self.location.runs_on!r}."
            )
        if (self.location.runs_on == "emr-serverless") != (self.job is not None):
            raise ConfigError(
                f"Pipeline {self.pipeline!r}: EntryPoint and ExecutionRoleArn must be given for "
                "emr-serverless, and only there."
            )
        for name, (spelt, least, most) in _NUMBERS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"Pipeline {self.pipeline!r}: {spelt} must be {least} to {most}, got {value}.")

    @property
    def version(self) -> str:
        """A hash of what is run: 16 hexadecimal digits that do not depend on the location."""
        job = None if self.job is None else asdict(self.job)
        text = json.dumps([self.code_hash, self.config_hash, self.bump, job])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_properties(self) -> dict[str, Any]:
        """Return the custom resource's properties, from which ``from_properties`` makes an equal value."""
        properties: dict[str, Any] = {
            "Pipeline": self.pipeline,
            "Engine": self.location.runs_on,
            _location_property(self.location.runs_on): self.location.name,
            "CodeHash": self.code_hash,
            "ConfigHash": self.config_hash,
            "Desired": "RUNNING" if self.running else "STOPPED",
            "Bump": self.bump,
            **{spelt: str(getattr(self, name)) for name, (spelt, _, _) in _NUMBERS.items()},
        }
        if self.job is not None:
            properties |= {
                "EntryPoint": self.job.entry_point,
                "ExecutionRoleArn": self.job.role_arn,
                "Arguments": list(self.job.arguments),
                "SparkSubmitParameters": self.job.spark_submit,
                "LogGroupName": self.job.log_group,
                "LogStreamNamePrefix": self.job.log_prefix,
                "LogEncryptionKeyArn": self.job.log_key_arn,
            }
        return properties

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> DesiredPipeline:
        """Return the value of a custom resource's properties; unknown ones are ignored (``ServiceToken``).

        Raises:
            ConfigError: a property is missing or invalid.
        """
        runs_on = properties.get("Engine", "")
        missing = [name for name in (*_REQUIRED, _location_property(runs_on)) if not properties.get(name)]
        if missing:
            raise ConfigError(
                f"The custom resource lacks {', '.join(missing)}; it has: {', '.join(sorted(properties))}."
            )
        wanted = properties.get("Desired", "RUNNING")
        if wanted not in ("RUNNING", "STOPPED"):
            raise ConfigError(
                f"Pipeline {properties['Pipeline']!r}: Desired must be RUNNING or STOPPED, got {wanted!r}."
            )
        return cls(
            pipeline=properties["Pipeline"],
            location=JobLocation(runs_on, properties[_location_property(runs_on)]),
            code_hash=properties["CodeHash"],
            config_hash=properties["ConfigHash"],
            job=_job(properties),
            running=wanted == "RUNNING",
            bump=properties.get("Bump", ""),
            **{
                name: _number(properties, spelt)
                for name, (spelt, _, _) in _NUMBERS.items()
                if properties.get(spelt) is not None
            },
        )


def _location_property(runs_on: str) -> str:
    return "ApplicationId" if runs_on == "emr-serverless" else "JobName"


def _job(properties: Mapping[str, Any]) -> EmrJob | None:
    if not properties.get("EntryPoint") or not properties.get("ExecutionRoleArn"):
        return None
    return EmrJob(
        entry_point=properties["EntryPoint"],
        role_arn=properties["ExecutionRoleArn"],
        arguments=tuple(properties.get("Arguments", ())),
        spark_submit=properties.get("SparkSubmitParameters", ""),
        log_group=properties.get("LogGroupName", ""),
        log_prefix=properties.get("LogStreamNamePrefix", ""),
        log_key_arn=properties.get("LogEncryptionKeyArn", ""),
    )


def _number(properties: Mapping[str, Any], name: str) -> int:
    try:
        return int(properties[name])
    except ValueError:
        raise ConfigError(
            f"Pipeline {properties['Pipeline']!r}: {name} must be a number, got {properties[name]!r}."
        ) from None
