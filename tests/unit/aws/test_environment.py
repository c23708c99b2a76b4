"""Environments of functions: what the infrastructure writes is what a function reads."""

from __future__ import annotations

import pytest

from brokerless.aws.environment import (
    CanaryEnvironment,
    ControllerEnvironment,
    Environment,
    GeneratorEnvironment,
    IngestEnvironment,
    MaintenanceEnvironment,
    TopicsEnvironment,
)
from brokerless.errors import ConfigError
from brokerless.settings import Settings

ROOT = "s3://bucket/prefix"
COMMON = {"stage": "dev", "metrics_namespace": "Brokerless/dev"}
ALL = [
    IngestEnvironment(**COMMON, root=ROOT, topics=("a", "b"), default_topic="a", max_body_bytes=1000),
    IngestEnvironment(**COMMON, root=ROOT, topics=(), default_topic="", max_body_bytes=1),
    GeneratorEnvironment(**COMMON, root=ROOT, rate_per_s=0.5, duration_s=50),
    ControllerEnvironment(**COMMON, state_prefix="s3://bucket/controller"),
    MaintenanceEnvironment(**COMMON, root=ROOT, log_retention_s=604800.0, grace_s=3600, sweep_every_s=1e7),
    CanaryEnvironment(**COMMON, root=ROOT, topic="in", output="out", pipeline="p", timeout_s=30.25),
    TopicsEnvironment(**COMMON, root=ROOT),
]


@pytest.mark.parametrize("environment", ALL, ids=lambda value: type(value).__name__)
def test_what_is_written_is_read_back(environment: Environment) -> None:
    variables = environment.to_environ()
    assert all(isinstance(value, str) for value in variables.values())
    assert type(environment).load({**variables, "PATH": "/bin"}) == environment


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALL[-1].to_environ().items():
        monkeypatch.setenv(name, value)
    assert TopicsEnvironment.load() == ALL[-1]


def test_every_mistake_is_named_at_once() -> None:
    variables = {**ALL[5].to_environ(), "BROKERLESS_TIMEOUT_S": "soon"}
    del variables["BROKERLESS_TOPIC"], variables["BROKERLESS_OUTPUT"]
    with pytest.raises(ConfigError) as raised:
        CanaryEnvironment.load(variables)
    for part in ("BROKERLESS_TOPIC is not set", "BROKERLESS_OUTPUT is not set", "BROKERLESS_TIMEOUT_S='soon'"):
        assert part in str(raised.value)
    assert "BROKERLESS_PIPELINE" not in str(raised.value)


def test_a_function_with_a_root_uses_the_profile_aws() -> None:
    settings = Settings.load(environ=ALL[0].to_environ(), dotenv=None)
    assert (settings.profile, settings.root) == ("aws", ROOT)
    assert "BROKERLESS_PROFILE" not in ALL[3].to_environ()


@pytest.mark.parametrize("environment", ALL, ids=lambda value: type(value).__name__)
def test_powertools_learns_service_and_namespace(environment: Environment) -> None:
    variables = environment.to_environ()
    assert variables["POWERTOOLS_SERVICE_NAME"] == environment.service != ""
    assert variables["POWERTOOLS_METRICS_NAMESPACE"] == "Brokerless/dev"


def test_each_function_has_its_own_service() -> None:
    kinds = [type(environment) for environment in ALL[1:]]
    assert len({kind.service for kind in kinds}) == len(kinds)
