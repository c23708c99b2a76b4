"""The environment variables of deployed functions: one value for each function, checked when the function starts.

The names of the variables are defined only here. The infrastructure makes the same values and gets their variables with
``to_environ``; a function reads them with ``load``. Standard library only, so that synth needs nothing else.
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
    """The variables of every function. The field ``state_prefix`` is the variable ``BROKERLESS_STATE_PREFIX``.

    Attributes:
        stage: ``dev``, ``staging`` or ``prod``.
        metrics_namespace: the CloudWatch namespace of the stage's metrics.
    """

    stage: str
    metrics_namespace: str

    service: ClassVar[str] = ""

    def to_environ(self) -> dict[str, str]:
        """Return the variables from which ``load`` makes an equal value."""
        values = {_PREFIX + field.name.upper(): _text(getattr(self, field.name)) for field in fields(self)}
        if ROOT_ENV in values:
            values[PROFILE_ENV] = "aws"
        # Read by Powertools when it is imported.
        values["POWERTOOLS_SERVICE_NAME"] = self.service
        values["POWERTOOLS_METRICS_NAMESPACE"] = self.metrics_namespace
        return values

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Return the value of the environment.

        Raises:
            ConfigError: variables are missing or invalid; the text names all of them.
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
    """The environment of ``lambdas/ingest``.

    Attributes:
        root: the root of topics: ``s3://bucket/prefix``.
        topics: the allowed topics.
        default_topic: the topic of a message that names none; empty if it must name one.
        max_body_bytes: the limit of one HTTP request, after decompression.
    """

    root: str
    topics: tuple[str, ...]
    default_topic: str
    max_body_bytes: int

    service: ClassVar[str] = "ingest"


@dataclass(frozen=True, slots=True)
class GeneratorEnvironment(Environment):
    """The environment of ``lambdas/generator``.

    Attributes:
        root: the root of topics.
        rate_per_s: messages a second, unless the event has another value.
        duration_s: the duration in seconds, likewise.
    """

    root: str
    rate_per_s: float
    duration_s: float

    service: ClassVar[str] = "generator"


@dataclass(frozen=True, slots=True)
class ControllerEnvironment(Environment):
    """The environment of ``lambdas/stream_controller``.

    Attributes:
        state_prefix: the prefix of pipelines' states, ``s3://bucket/path``; not below the root of topics.
    """

    state_prefix: str

    service: ClassVar[str] = "stream-controller"


@dataclass(frozen=True, slots=True)
class MaintenanceEnvironment(Environment):
    """The environment of ``lambdas/maintenance``.

    Attributes:
        root: the root of topics.
        log_retention_s: how far back in time readers may go.
        grace_s: how old an unreferenced object must be before it is removed.
        sweep_every_s: how often garbage is collected, which lists every object.
    """

    root: str
    log_retention_s: float
    grace_s: float
    sweep_every_s: float

    service: ClassVar[str] = "maintenance"


@dataclass(frozen=True, slots=True)
class CanaryEnvironment(Environment):
    """The environment of ``lambdas/canary``.

    Attributes:
        root: the root of topics.
        topic: the input topic that gets the canary's message.
        output: the output topic in which it must appear.
        pipeline: the pipeline that is measured.
        timeout_s: the time after which the message counts as missing.
    """

    root: str
    topic: str
    output: str
    pipeline: str
    timeout_s: float

    service: ClassVar[str] = "canary"


@dataclass(frozen=True, slots=True)
class TopicsEnvironment(Environment):
    """The environment of ``lambdas/topics``, the custom resource that creates topics.

    Attributes:
        root: the root of topics.
    """

    root: str

    service: ClassVar[str] = "topics"


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _value(text: str, kind: str) -> object:
    if kind.startswith("tuple"):
        return tuple(part for part in text.split(",") if part)
    return {"int": int, "float": float}.get(kind, str)(text)
