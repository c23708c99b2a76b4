"""Functions: their code, their environment, their time, and the sources that lead to them."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.aws import environment
from infra.stages import STAGES
from tests.infra.conftest import CLUSTER
from tests.infra.templates import text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.infra.conftest import Synthesised

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {
    "ingest": environment.IngestEnvironment,
    "generator": environment.GeneratorEnvironment,
    "stream_controller": environment.ControllerEnvironment,
    "maintenance": environment.MaintenanceEnvironment,
    "canary": environment.CanaryEnvironment,
    "topics": environment.TopicsEnvironment,
}


@pytest.fixture(params=["dev", "staging", "prod", "wide"])
def app(request: pytest.FixtureRequest) -> Synthesised:
    """Each stage in turn."""
    return request.getfixturevalue(request.param)


def ours(app: Synthesised) -> dict[str, dict[str, Any]]:
    """Our functions by name; the CDK's own have none."""
    found = app.resources("streams", "AWS::Lambda::Function").values()
    return {one["FunctionName"]: one for one in found if "FunctionName" in one}


def function(app: Synthesised, name: str) -> dict[str, Any]:
    (found,) = (one for full, one in ours(app).items() if full.endswith(name))
    return found


def folder(one: dict[str, Any]) -> str:
    return str(one["Handler"]).split(".")[1]


def mappings(app: Synthesised, topic: str, source: str) -> list[dict[str, Any]]:
    found = app.resources("streams", "AWS::Lambda::EventSourceMapping").items()
    return [one for name, one in found if name.startswith(f"Ingest{topic}") and source in name]


def test_every_folder_of_functions_is_deployed(dev: Synthesised) -> None:
    folders = {path.parent.name for path in (ROOT / "lambdas").glob("*/handler.py")}
    assert {folder(one) for one in ours(dev).values()} == folders


def test_handlers_exist(app: Synthesised) -> None:
    for one in ours(app).values():
        module, _, name = one["Handler"].rpartition(".")
        tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_function_can_read_its_environment(app: Synthesised) -> None:
    for one in ours(app).values():
        variables = {key: text(value) for key, value in one["Environment"]["Variables"].items()}
        loaded = ENVIRONMENTS[folder(one)].load(variables)
        assert loaded.to_environ() == variables


def test_maintenance_has_the_package_with_deltalake(dev: Synthesised) -> None:
    packages = {name: text(one["Code"]["S3Key"]) for name, one in ours(dev).items()}
    assert len(set(packages.values())) == 2
    assert [name for name in packages if list(packages.values()).count(packages[name]) == 1] == [
        "brokerless-dev-maintenance"
    ]


def test_each_function_has_a_log_that_ends(app: Synthesised) -> None:
    groups = app.resources("streams", "AWS::Logs::LogGroup")
    for one in app.resources("streams", "AWS::Lambda::Function").values():
        assert groups[one["LoggingConfig"]["LogGroup"]["Ref"]]["RetentionInDays"] in (7, 90)


@pytest.mark.parametrize("name", ["maintenance", "canary-timezone-etl"])
def test_what_runs_alone_runs_alone(dev: Synthesised, name: str) -> None:
    found = function(dev, name)
    assert found["ReservedConcurrentExecutions"] == 1
    (schedule,) = (
        one
        for one in dev.resources("streams", "AWS::Events::Rule").values()
        if "ScheduleExpression" in one and folder(found).title() in text(one["Targets"][0]["Arn"])
    )
    minutes = int("".join(filter(str.isdigit, schedule["ScheduleExpression"])))
    assert found["Timeout"] < 60 * minutes


def test_the_canary_waits_less_than_its_time(dev: Synthesised) -> None:
    found = function(dev, "canary-timezone-etl")
    # lambdas/canary/handler.py keeps ten seconds back.
    assert float(found["Environment"]["Variables"]["BROKERLESS_TIMEOUT_S"]) + 10 <= found["Timeout"]


def test_a_new_account_has_nothing_to_reserve(synth: Callable[..., Synthesised]) -> None:
    app = synth(replace(STAGES["dev"], reserve_concurrency=False), rules=False)
    assert not [name for name, one in ours(app).items() if "ReservedConcurrentExecutions" in one]


def test_failed_events_go_to_a_queue(app: Synthesised) -> None:
    destinations = app.resources("streams", "AWS::Lambda::EventInvokeConfig").values()
    with_destination = {text(one["FunctionName"]).strip("<>") for one in destinations}
    for logical_id, one in app.resources("streams", "AWS::Lambda::Function").items():
        if "FunctionName" in one:
            assert ("DeadLetterConfig" in one) != (logical_id in with_destination), logical_id


def test_writers_wait_for_the_topics(dev: Synthesised) -> None:
    resources = dev.templates["streams"]["Resources"]
    (topics,) = (name for name, one in resources.items() if one["Type"] == "Custom::BrokerlessTopics")
    for name, one in resources.items():
        if one["Type"] == "AWS::Lambda::Function" and name.startswith(("Ingest", "Canary", "Generator")):
            assert topics in one["DependsOn"]


def test_queues_are_encrypted_and_take_tls_only(app: Synthesised, request: pytest.FixtureRequest) -> None:
    own_key = request.node.callspec.params["app"] != "dev"
    queues = app.resources("streams", "AWS::SQS::Queue")
    assert queues
    for one in queues.values():
        assert ("KmsMasterKeyId" in one) == own_key
        assert own_key or one["SqsManagedSseEnabled"] is True
    secured = {
        text(policy["Queues"][0]).strip("<>")
        for policy in app.resources("streams", "AWS::SQS::QueuePolicy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if statement.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}} and statement["Effect"] == "Deny"
    }
    assert secured == set(queues)


def test_a_message_does_not_come_back_while_it_is_worked_on(app: Synthesised) -> None:
    for one in app.resources("streams", "AWS::SQS::Queue").values():
        if "RedrivePolicy" in one:
            assert one["VisibilityTimeout"] >= 6 * 60
            assert one["RedrivePolicy"]["maxReceiveCount"] == 5


def test_sources_deliver_again_only_what_failed(wide: Synthesised) -> None:
    found = wide.resources("streams", "AWS::Lambda::EventSourceMapping").values()
    assert len(found) == 6
    for one in found:
        assert one["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


def test_a_shards_batches_come_one_at_a_time(wide: Synthesised) -> None:
    (mapping,) = mappings(wide, "clickseu", "Kinesis")
    assert mapping["ParallelizationFactor"] == 1
    assert mapping["DestinationConfig"]["OnFailure"]


def test_kafka_comes_from_the_topic_of_the_same_name(wide: Synthesised) -> None:
    (mapping,) = mappings(wide, "clickseu", "Kafka")
    assert (mapping["EventSourceArn"], mapping["Topics"]) == (CLUSTER, ["clicks.eu"])
    assert mapping["AmazonManagedKafkaEventSourceConfig"] == {"ConsumerGroupId": "brokerless-wide-clicks-eu"}


def test_events_come_by_the_stages_bus(wide: Synthesised) -> None:
    (bus,) = wide.resources("streams", "AWS::Events::EventBus").items()
    assert bus[1]["Name"] == "brokerless-wide"
    (rule,) = (one for one in wide.resources("streams", "AWS::Events::Rule").values() if "EventBusName" in one)
    assert text(rule["EventBusName"]) == f"<{bus[0]}>"
    assert rule["EventPattern"] == {"detail-type": ["clicks.eu"]}


def test_a_topic_without_sources_has_no_function(wide: Synthesised) -> None:
    assert "brokerless-wide-ingest-clicks-eu" in ours(wide)
    assert "brokerless-wide-ingest-internal" not in ours(wide)


def test_in_a_network_functions_are_inside(wide: Synthesised) -> None:
    for one in ours(wide).values():
        assert len(one["VpcConfig"]["SubnetIds"]) == 2
    (vpc,) = wide.resources("streams", "AWS::EC2::VPC")
    assert vpc
    assert wide.resources("streams", "AWS::EC2::NatGateway") == {}
    assert wide.resources("streams", "AWS::EC2::InternetGateway") == {}
