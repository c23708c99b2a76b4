"""The app as a whole: the same each time, one entry for a new topic, and nothing that differs unseen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.config import PipelineConfig, TopicConfig
from infra.stages import STAGES
from tests.infra.templates import text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.infra.conftest import Synthesised

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = Path(__file__).parent / "snapshots" / "prod.json"
UPDATE = "BROKERLESS_UPDATE_SNAPSHOTS"


def readable(value: Any) -> Any:
    """A value with its references, joins and substitutions as text, and documents in texts as what they hold."""
    match value:
        case {"Ref": _} | {"Fn::Join": _} | {"Fn::GetAtt": _} | {"Fn::Sub": _} | {"Fn::GetStackOutput": _}:
            return readable(text(value))
        case str() if value.startswith("{"):
            return json.loads(value)
        case dict():
            return {key: readable(one) for key, one in value.items()}
        case list():
            return [readable(one) for one in value]
    return value


def snapshot(app: Synthesised) -> dict[str, Any]:
    """Resources and outputs, without what changes with every change of code: hashes of files."""
    parts = {
        stack: {part: readable(template[part]) for part in ("Resources", "Outputs") if part in template}
        for stack, template in app.templates.items()
    }
    plain = re.sub(r"\b[0-9a-f]{64}\b", "<hash>", json.dumps(parts))
    plain = re.sub(r'("(?:CodeHash|ConfigHash)": )"[0-9a-f]{32}"', r'\1"<hash>"', plain)
    found: dict[str, Any] = json.loads(plain)
    return found


def written(value: Any, indent: str = "") -> str:
    """JSON with what fits on a line on one."""
    flat = json.dumps(value, sort_keys=True)
    if not isinstance(value, dict | list) or len(indent) + len(flat) < 110:
        return flat
    inner = indent + " "
    if isinstance(value, list):
        rows = [written(one, inner) for one in value]
    else:
        rows = [f"{json.dumps(key)}: {written(value[key], inner)}" for key in sorted(value)]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return ",\n".join([f"{opening}\n{inner}{rows[0]}", *(inner + row for row in rows[1:])]) + f"\n{indent}{closing}"


def test_templates_are_as_they_were(prod: Synthesised) -> None:
    """Set BROKERLESS_UPDATE_SNAPSHOTS=1 to accept what has changed, and read the difference before committing it."""
    found = snapshot(prod)
    if os.environ.get(UPDATE):
        SNAPSHOT.write_text(written(found) + "\n")
    before = json.loads(SNAPSHOT.read_text())
    changed = [
        f"{stack}: {name}"
        for stack in sorted({*before, *found})
        for name in sorted({*resources(before, stack), *resources(found, stack)})
        if resources(before, stack).get(name) != resources(found, stack).get(name)
    ]
    assert changed == [], f"accept with {UPDATE}=1"
    assert before == found


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


REMOVED_WITH_THE_STACK = {"AWS::IAM::Role": 1, "AWS::Lambda::Function": 1, "Custom::S3AutoDeleteObjects": 3}


def test_stages_differ_in_nothing_but_their_configuration(
    dev: Synthesised, staging: Synthesised, prod: Synthesised
) -> None:
    def kinds(app: Synthesised) -> Counter[str]:
        return Counter(one["Type"] for stack in app.templates.values() for one in stack["Resources"].values())

    assert kinds(dev) - kinds(prod) == REMOVED_WITH_THE_STACK
    assert kinds(prod) - kinds(dev) == {
        "AWS::Glue::SecurityConfiguration": 1,
        "AWS::KMS::Alias": 1,
        "AWS::KMS::Key": 1,
    }
    assert kinds(staging) - kinds(prod) == REMOVED_WITH_THE_STACK | {"AWS::EMRServerless::Application": 1}
    assert kinds(prod) - kinds(staging) == {
        "AWS::Glue::Job": 1,
        "AWS::Glue::SecurityConfiguration": 1,
        "AWS::Logs::LogGroup": 1,
    }
    for stage in (dev, staging):
        assert handlers(stage) == handlers(prod)


def handlers(app: Synthesised) -> list[str]:
    functions = app.resources("streams", "AWS::Lambda::Function").values()
    return sorted(one["Handler"] for one in functions if "FunctionName" in one)


def test_the_budget_tells_before_it_is_spent(prod: Synthesised) -> None:
    budget = prod.one("monitoring", "AWS::Budgets::Budget")
    assert budget["Budget"]["BudgetLimit"] == {"Amount": 1000, "Unit": "USD"}
    assert budget["Budget"]["CostFilters"] == {"TagKeyValue": ["user:stage$prod"]}
    notified = [
        (one["Notification"]["NotificationType"], one["Notification"]["Threshold"])
        for one in budget["NotificationsWithSubscribers"]
    ]
    assert notified == [("ACTUAL", 80), ("FORECASTED", 100)]
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
