"""The streaming jobs: the arguments of Glue and EMR Serverless, and the controller."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.aws.controller.desired import DesiredPipeline
from brokerless.aws.controller.services import JobLocation
from brokerless.spark import job
from brokerless.spark.conf import SESSION_CONF, STREAM_CONF
from infra.constructs.spark import JobPlan, chained, config_hash
from infra.stages import STAGES
from tests.infra.templates import ACCOUNT, REGION, allowed, text, texts

if TYPE_CHECKING:
    from tests.infra.conftest import Synthesised

ROOT = f"s3://brokerless-%s-data-{ACCOUNT}-{REGION}/topics"
ASSETS = f"s3://cdk-hnb659fds-assets-{ACCOUNT}-{REGION}/"


def glue_job(app: Synthesised) -> dict[str, Any]:
    return app.one("streams", "AWS::Glue::Job")


def stream(app: Synthesised) -> dict[str, Any]:
    return app.one("streams", "Custom::BrokerlessStream", Pipeline="timezone-etl")


def emr_arguments(app: Synthesised) -> dict[str, str]:
    parts = texts(stream(app)["Arguments"])
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_a_glue_job_runs_once_and_only_the_controller_restarts_it(dev: Synthesised) -> None:
    found = glue_job(dev)
    assert found["ExecutionProperty"] == {"MaxConcurrentRuns": 1}
    assert found["MaxRetries"] == 0
    assert found["JobRunQueuingEnabled"] is False
    # With a time-out below seven days Glue would end the stream for good.
    assert "Timeout" not in found


def test_what_a_job_loads_is_uploaded_under_the_same_name(dev: Synthesised) -> None:
    files = json.loads((dev.directory / "brokerless-dev-streams.assets.json").read_text())["files"].values()
    keys = {location["objectKey"] for one in files for location in one["destinations"].values()}
    found = glue_job(dev)
    for url in (found["Command"]["ScriptLocation"], found["DefaultArguments"]["--additional-python-modules"]):
        assert text(url).removeprefix(ASSETS) in keys


def test_the_script_is_the_very_file_of_glue_jobs(dev: Synthesised) -> None:
    name = text(glue_job(dev)["Command"]["ScriptLocation"]).removeprefix(ASSETS)
    script = Path(__file__).resolve().parents[2] / "glue_jobs" / "timezone_etl.py"
    assert (dev.directory / f"asset.{name}").read_bytes() == script.read_bytes()


def test_a_job_knows_every_argument_that_it_is_given(staging: Synthesised) -> None:
    source = inspect.getsource(job)
    unknown = [name for name in emr_arguments(staging) if f'"{name}"' not in source]
    assert unknown == []


def test_sparks_settings_are_the_librarys(dev: Synthesised) -> None:
    settings = dict(one.split("=", 1) for one in glue_job(dev)["DefaultArguments"]["--conf"].split(" --conf "))
    assert settings == {**SESSION_CONF, **STREAM_CONF}


def test_a_setting_with_a_space_is_refused() -> None:
    with pytest.raises(ValueError, match="holds a space"):
        chained({"spark.driver.extraJavaOptions": "-Da -Db"})


def test_log_groups_are_those_that_glue_writes_to(dev: Synthesised) -> None:
    prefix = glue_job(dev)["DefaultArguments"]["--custom-logGroup-prefix"]
    groups = {text(one["LogGroupName"]): one for one in dev.resources("streams", "AWS::Logs::LogGroup").values()}
    for name in ("error", "output"):
        assert groups[f"{prefix}/{name}"]["RetentionInDays"] == 7
    assert "SecurityConfiguration" not in glue_job(dev)


def test_with_a_security_configuration_glue_writes_to_others(prod: Synthesised) -> None:
    prefix = glue_job(prod)["DefaultArguments"]["--custom-logGroup-prefix"]
    (security,) = prod.resources("streams", "AWS::Glue::SecurityConfiguration").items()
    assert text(glue_job(prod)["SecurityConfiguration"]) == f"<{security[0]}>"
    role = text(glue_job(prod)["Role"]).strip("<>").removesuffix(".Arn")
    groups = {
        text(one["LogGroupName"]): (name, one) for name, one in prod.resources("streams", "AWS::Logs::LogGroup").items()
    }
    for name in ("error", "output"):
        logical_id, group = groups[f"{prefix}/{security[1]['Name']}-role/<{role}>/{name}"]
        assert group["KmsKeyId"]
        # Without it Glue logs nothing at all.
        assert f"<{logical_id}.Arn>" in allowed(prod, "Jobtimezoneetl", "logs:AssociateKmsKey")


def test_emr_is_the_release_with_the_same_spark(staging: Synthesised) -> None:
    application = staging.one("streams", "AWS::EMRServerless::Application")
    assert application["ReleaseLabel"] == "emr-spark-8.1.0"
    assert application["Architecture"] == "ARM64"
    # The brake on the bill.
    assert application["MaximumCapacity"] == {"Cpu": "8 vCPU", "Memory": "16 GB"}


def test_a_run_on_emr_is_what_a_run_on_glue_is(staging: Synthesised) -> None:
    run = stream(staging)
    assert text(run["EntryPoint"]).endswith(".py")
    arguments = emr_arguments(staging)
    assert (arguments["--root"], arguments["--output"]) == (ROOT % "staging", "timezone_unified")
    submit = text(run["SparkSubmitParameters"])
    for key, value in {**SESSION_CONF, **STREAM_CONF}.items():
        assert f"--conf {key}={value}" in submit
    assert f"--conf spark.archives={ASSETS}" in submit
    assert "#environment --conf" in submit
    for role in ("emr-serverless.driverEnv", "executorEnv"):
        assert f"--conf spark.{role}.PYTHONPATH=./environment" in submit
        assert f"--conf spark.{role}.PYSPARK_PYTHON=/usr/bin/python3.13" in submit
        assert f"--conf spark.{role}.AWS_REGION={REGION}" in submit


def test_the_controller_reads_its_properties(dev: Synthesised, staging: Synthesised) -> None:
    location = DesiredPipeline.from_properties(stream(dev)).location
    assert location == JobLocation("glue", "brokerless-dev-timezone-etl")
    resolved = {key: texts(value) if isinstance(value, list) else text(value) for key, value in stream(staging).items()}
    wanted = DesiredPipeline.from_properties(resolved)
    assert wanted.location.runs_on == "emr-serverless"
    assert wanted.job is not None
    assert wanted.job.log_group.startswith("<Jobtimezoneetl")
    assert wanted.job.log_key_arn
    assert wanted.max_failures_per_hour == 5


def test_a_run_starts_when_all_that_it_needs_is_there(dev: Synthesised) -> None:
    (one,) = (
        resource
        for resource in dev.templates["streams"]["Resources"].values()
        if resource["Type"] == "Custom::BrokerlessStream"
    )
    kinds = {dev.templates["streams"]["Resources"][name]["Type"] for name in one["DependsOn"]}
    assert kinds == {"AWS::Glue::Job", "AWS::IAM::Role", "AWS::IAM::Policy", "Custom::BrokerlessTopics"}


def test_ends_of_runs_and_a_clock_call_the_controller(wide: Synthesised) -> None:
    rules = {
        one["Description"]: one
        for one in wide.resources("streams", "AWS::Events::Rule").values()
        if "ControllerFunction" in text(one["Targets"][0]["Arn"])
    }
    patterns = [one.get("EventPattern", {}) for one in rules.values()]
    assert {tuple(one["source"]) for one in patterns if one} == {("aws.glue",), ("aws.emr-serverless",)}
    assert [one["ScheduleExpression"] for one in rules.values() if "ScheduleExpression" in one] == ["rate(5 minutes)"]
    for one in rules.values():
        assert "DeadLetterConfig" in one["Targets"][0]


def plan(**change: Any) -> JobPlan:
    stage = STAGES["dev"]
    return JobPlan(stage, replace(stage.pipelines[0], **change), "s3://root", 0.5)


def test_a_run_is_replaced_if_it_would_be_given_other_values() -> None:
    assert config_hash(plan()) == config_hash(plan())
    assert config_hash(plan(workers=3)) != config_hash(plan())
    assert config_hash(plan(arguments=(("--interval", "1"),))) != config_hash(plan())
    assert config_hash(plan(), "6.1") != config_hash(plan(), "6.0")


def test_a_run_is_not_replaced_for_what_others_are_given() -> None:
    assert config_hash(plan(latency_objective_p99_s=9.0, canary=None)) == config_hash(plan())


def test_a_pipelines_own_arguments_win() -> None:
    assert plan(arguments=(("--state-dir", "/scratch"),)).arguments["--state-dir"] == "/scratch"


def test_in_a_network_jobs_are_inside(wide: Synthesised) -> None:
    (connection,) = wide.resources("streams", "AWS::Glue::Connection")
    assert texts(glue_job(wide)["Connections"]["Connections"]) == [f"<{connection}>"]
    reachable = allowed(wide, "Jobtimezoneetl", "glue:GetConnection")
    assert f"arn:aws:glue:{REGION}:{ACCOUNT}:connection/<{connection}>" in reachable
    application = wide.one("streams", "AWS::EMRServerless::Application")
    assert len(application["NetworkConfiguration"]["SubnetIds"]) == 2
