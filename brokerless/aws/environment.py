"""What a deployed function is told by its environment variables: one value a function, checked when it starts.

The names of the variables exist here only. The infrastructure makes the same values and asks them for their variables
(``to_environ``); a function reads them back (``load``). Standard library only, so that synth needs nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from brokerless.errors import ConfigError
from brokerless.settings import PROFILE_ENV, ROOT_ENV

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "BROKERLESS_"


@dataclass(frozen=True, slots=True)
class Environment:
    """What every function knows. A field ``state_prefix`` travels as ``BROKERLESS_STATE_PREFIX``.

    Attributes:
        stage: ``dev``, ``staging`` or ``prod``.
        metrics_namespace: the CloudWatch namespace that this stage's metrics go to.
    """

    stage: str
    metrics_namespace: str

    service: ClassVar[str] = ""

    def to_environ(self) -> dict[str, str]:
        """The variables from which ``load`` makes this very value."""
        values = {_PREFIX + field.name.upper(): _text(getattr(self, field.name)) for field in fields(self)}
        if ROOT_ENV in values:
            values[PROFILE_ENV] = "aws"
        # Read by Powertools when it is imported.
        values["POWERTOOLS_SERVICE_NAME"] = self.service
        values["POWERTOOLS_METRICS_NAMESPACE"] = self.metrics_namespace
        return values

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Self:
        """The value that the environment holds.

        Raises:
            ConfigError: a variable is missing or cannot be read; all of them are named at once.
        """
        given = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        wrong: list[str] = []
        for field in fields(cls):
            name = _PREFIX + field.name.upper()
            try:
                values[field.name] = _value(given[name], str(field.type))
            except KeyError:
                wrong.append(f"{name} is not set")
            except ValueError:
                wrong.append(f"{name}={given[name]!r} is not a number")
        if wrong:
            raise ConfigError(f"The function's environment is incomplete: {'; '.join(wrong)}. Deploy the stack again.")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class IngestEnvironment(Environment):
    """Of ``lambdas/ingest``.

    Attributes:
        root: where topics are: ``s3://bucket/prefix``.
        topics: those that messages may go to.
        default_topic: where a message goes that names none; empty if it must name one.
        max_body_bytes: of one HTTP request, after decompression.
    """

    root: str
    topics: tuple[str, ...]
    default_topic: str
    max_body_bytes: int

    service: ClassVar[str] = "ingest"


@dataclass(frozen=True, slots=True)
class GeneratorEnvironment(Environment):
    """Of ``lambdas/generator``.

    Attributes:
        root: where topics are.
        rate_per_s: messages a second, unless the event says otherwise.
        duration_s: for how long, likewise.
    """

    root: str
    rate_per_s: float
    duration_s: float

    service: ClassVar[str] = "generator"


@dataclass(frozen=True, slots=True)
class ControllerEnvironment(Environment):
    """Of ``lambdas/stream_controller``.

    Attributes:
        state_prefix: where each pipeline has its record, ``s3://bucket/path``; not below the root of topics.
    """

    state_prefix: str

    service: ClassVar[str] = "stream-controller"


@dataclass(frozen=True, slots=True)
class MaintenanceEnvironment(Environment):
    """Of ``lambdas/maintenance``.

    Attributes:
        root: where topics are.
        log_retention_s: how far back in time readers may go.
        grace_s: how old an unreferenced object must be before it is removed.
        sweep_every_s: how often orphans are looked for, which lists every object.
    """

    root: str
    log_retention_s: float
    grace_s: float
    sweep_every_s: float

    service: ClassVar[str] = "maintenance"


@dataclass(frozen=True, slots=True)
class CanaryEnvironment(Environment):
    """Of ``lambdas/canary``.

    Attributes:
        root: where topics are.
        topic: the input topic that gets the canary's message.
        output: the output topic in which it must appear.
        pipeline: whose latency it is.
        timeout_s: after which the message counts as missing.
    """

    root: str
    topic: str
    output: str
    pipeline: str
    timeout_s: float

    service: ClassVar[str] = "canary"


@dataclass(frozen=True, slots=True)
class TopicsEnvironment(Environment):
    """Of ``lambdas/topics``, the custom resource that creates topics.

    Attributes:
        root: where topics are.
    """

    root: str

    service: ClassVar[str] = "topics"


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _value(text: str, kind: str) -> object:
    if kind.startswith("tuple"):
        return tuple(part for part in text.split(",") if part)
    return {"int": int, "float": float}.get(kind, str)(text)
