"""The app as a whole: the same each time, one entry for a new topic, and nothing that differs unseen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from infra.config import PipelineConfig, TopicConfig
from infra.stages import STAGES
from tests.infra.templates import text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.infra.conftest import Synthesised

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = "BROKERLESS_UPDATE_SNAPSHOTS"


def masked(app: Synthesised) -> dict[str, Any]:
    """Templates without what changes with every change of code: hashes of files."""
    plain = json.dumps(app.templates, sort_keys=True)
    plain = re.sub(r"\b[0-9a-f]{64}\b", "<hash>", plain)
    plain = re.sub(r'("(?:CodeHash|ConfigHash)": )"[0-9a-f]{32}"', r'\1"<hash>"', plain)
    found: dict[str, Any] = json.loads(plain)
    return found


@pytest.mark.parametrize("stage", ["dev", "staging", "prod"])
def test_templates_are_as_they_were(stage: str, request: pytest.FixtureRequest) -> None:
    """Set BROKERLESS_UPDATE_SNAPSHOTS=1 to accept what has changed, and read the difference before committing it."""
    found = masked(request.getfixturevalue(stage))
    path = SNAPSHOTS / f"{stage}.json"
    if os.environ.get(UPDATE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    kept = json.loads(path.read_text())
    changed = [
        f"{stack}: {name}"
        for stack in sorted({*kept, *found})
        for name in sorted({*resources(kept, stack), *resources(found, stack)})
        if resources(kept, stack).get(name) != resources(found, stack).get(name)
    ]
    assert changed == [], f"accept with {UPDATE}=1"
    assert kept == found


def resources(templates: dict[str, Any], stack: str) -> dict[str, Any]:
    found: dict[str, Any] = templates.get(stack, {}).get("Resources", {})
    return found


def test_synth_gives_the_same_templates_each_time(dev: Synthesised, synth: Callable[..., Synthesised]) -> None:
    assert synth(STAGES["dev"], rules=False).templates == dev.templates


def test_a_topic_and_a_pipeline_are_one_entry_each(dev: Synthesised, synth: Callable[..., Synthesised]) -> None:
    stage = STAGES["dev"]
    topic = TopicConfig("orders", "id long, message string", sources=("url",))
    pipeline = PipelineConfig(
        "totals",
        "timezone_etl.py",
        ("orders",),
        "totals",
        "message string",
        latency_objective_p99_s=3.0,
        canary="orders",
    )
    more = synth(replace(stage, topics=(*stage.topics, topic), pipelines=(*stage.pipelines, pipeline)))
    new = {
        (resource["Type"], text(next((props[key] for key in NAMES if key in props), "")))
        for stack, template in more.templates.items()
        for name, resource in template["Resources"].items()
        if name not in dev.templates[stack]["Resources"]
        for props in [resource.get("Properties", {})]
    }
    assert {
        ("AWS::Glue::Job", "brokerless-dev-totals"),
        ("Custom::BrokerlessStream", "totals"),
        ("AWS::Lambda::Function", "brokerless-dev-ingest-orders"),
        ("AWS::Lambda::Function", "brokerless-dev-canary-totals"),
        ("AWS::Logs::LogGroup", "/brokerless/dev/jobs/totals/error"),
        ("AWS::Logs::LogGroup", "/brokerless/dev/lambda/brokerless-dev-ingest-orders"),
    } <= new
    tables = [one["TableInput"]["Name"] for one in more.resources("data", "AWS::Glue::Table").values()]
    assert {"orders", "totals", "totals_dead_letters"} <= set(tables)
    created = more.one("streams", "Custom::BrokerlessTopics")["Topics"]
    assert [one["Name"] for one in created] == ["timezone1", "timezone2", "orders", "timezone_unified", "totals"]
    alarms = more.resources("monitoring", "AWS::CloudWatch::Alarm").values()
    watched = {dimension["Value"] for one in alarms for dimension in one.get("Dimensions", [])}
    assert {"orders", "totals"} <= watched
    (dashboard,) = more.resources("monitoring", "AWS::CloudWatch::Dashboard").values()
    assert "totals" in text(dashboard["DashboardBody"])
    assert more.findings == []


NAMES = ("FunctionName", "LogGroupName", "Pipeline", "Name")


def test_stages_differ_in_nothing_but_their_configuration(prod: Synthesised, staging: Synthesised) -> None:
    def functions(app: Synthesised) -> list[str]:
        return sorted(
            one["Handler"]
            for one in app.resources("streams", "AWS::Lambda::Function").values()
            if "FunctionName" in one
        )

    assert functions(prod) == functions(staging)


def test_everything_has_the_stages_tags(prod: Synthesised) -> None:
    for stack in prod.templates:
        for name, one in prod.resources(stack, "AWS::Lambda::Function").items():
            assert {"Key": "stage", "Value": "prod"} in one["Tags"], name
    job = prod.one("streams", "AWS::Glue::Job")
    assert job["Tags"] == {"pipeline": "timezone-etl", "project": "brokerless", "stage": "prod"}


def test_the_budget_tells_before_it_is_spent(prod: Synthesised) -> None:
    budget = prod.one("monitoring", "AWS::Budgets::Budget")
    assert budget["Budget"]["BudgetLimit"] == {"Amount": 1000, "Unit": "USD"}
    assert budget["Budget"]["CostFilters"] == {"TagKeyValue": ["user:stage$prod"]}
    told = [
        (one["Notification"]["NotificationType"], one["Notification"]["Threshold"])
        for one in budget["NotificationsWithSubscribers"]
    ]
    assert told == [("ACTUAL", 80), ("FORECASTED", 100)]
    topic = text(budget["NotificationsWithSubscribers"][0]["Subscribers"][0]["Address"])
    publishers = [
        statement["Principal"]["Service"]
        for policy in prod.resources("monitoring", "AWS::SNS::TopicPolicy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if statement.get("Sid") == "Budget" and f"<{text(policy['Topics'][0]).strip('<>')}>" == topic
    ]
    assert publishers == ["budgets.amazonaws.com"]


def test_queues_that_should_be_empty_are_watched(wide: Synthesised) -> None:
    queues = {one.get("QueueName") for one in wide.resources("streams", "AWS::SQS::Queue").values()}
    alarms = wide.resources("monitoring", "AWS::CloudWatch::Alarm").values()
    watched = {one["Dimensions"][0]["Value"] for one in alarms if one.get("Namespace") == "AWS/SQS"}
    assert watched == {name for name in queues if name and ("failures" in name or "dead-letters" in name)}
    assert len(watched) == 5


def run_app(tmp_path: Path, **context: str) -> subprocess.CompletedProcess[str]:
    """``python -m infra.app`` in a process of its own."""
    settings = json.dumps({**json.loads((ROOT / "cdk.json").read_text())["context"], **context})
    environ = {**os.environ, "CDK_OUTDIR": str(tmp_path), "CDK_CONTEXT_JSON": settings}
    command = [sys.executable, "-m", "infra.app"]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)


def test_an_unknown_stage_is_named(tmp_path: Path) -> None:
    done = run_app(tmp_path, stage="production")
    assert done.returncode == 1
    assert "ConfigError: Unknown stage 'production'. infra/stages.py has: dev, staging, prod." in done.stderr


def test_the_commands_pins_are_exact() -> None:
    package = json.loads((ROOT / "package.json").read_text())
    lock = (ROOT / "package-lock.json").read_text()
    assert package["devDependencies"] == {"aws-cdk": "2.1148.1"}
    assert json.loads(lock)["packages"]["node_modules/aws-cdk"]["version"] == "2.1148.1"
    assert "resolved" not in lock


def test_a_pipeline_that_is_stopped_on_purpose_alarms_nobody(synth: Callable[..., Synthesised]) -> None:
    stage = STAGES["dev"]
    stopped = synth(replace(stage, pipelines=(replace(stage.pipelines[0], running=False),)))
    assert stopped.one("streams", "Custom::BrokerlessStream")["Desired"] == "STOPPED"
    names = {
        one["FunctionName"]
        for one in stopped.resources("streams", "AWS::Lambda::Function").values()
        if one.get("FunctionName")
    }
    assert "brokerless-dev-canary-timezone-etl" not in names
    alarms = {one["AlarmName"] for one in stopped.resources("monitoring", "AWS::CloudWatch::Alarm").values()}
    assert not [name for name in alarms if "timezone-etl" in name]
    assert [name for name in alarms if "timezone1" in name]
