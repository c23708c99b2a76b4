"""Synthesised apps that tests share: no network, no AWS, and assets that are empty."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from infra.app import use_packaged_node
from infra.assets import Asset, Assets
from infra.config import MskConfig, PipelineConfig, StageConfig, TopicConfig, VpcConfig
from infra.stages import STAGES

use_packaged_node()

if TYPE_CHECKING:
    from collections.abc import Callable

CLUSTER = "arn:aws:kafka:us-east-1:123456789012:cluster/events/0a1b2c3d-1111-2222-3333-444455556666-7"

WIDE = replace(
    STAGES["prod"],
    name="wide",
    topics=(
        *STAGES["prod"].topics,
        TopicConfig(
            "clicks.eu",
            "at timestamp, amount decimal(10,2), n int",
            partitions=12,
            sources=("url", "sqs", "sqs-fifo", "kinesis", "sns", "eventbridge", "msk"),
        ),
        TopicConfig("internal", "n long", sources=()),
    ),
    pipelines=(
        *STAGES["prod"].pipelines,
        PipelineConfig(
            name="again",
            script="timezone_etl.py",
            inputs=("timezone_unified",),
            output="again",
            output_schema="n long",
            latency_objective_p99_s=5,
            runs_on="emr-serverless",
            workers=3,
        ),
    ),
    vpc=VpcConfig(),
    msk=MskConfig(CLUSTER),
    alarm_emails=("somebody@example.org",),
)

CDK_JSON = Path(__file__).resolve().parents[2] / "cdk.json"


@dataclass(frozen=True)
class Synthesised:
    """A stage's templates by the last part of the stack's name, and what the rules found."""

    templates: dict[str, dict[str, Any]]
    directory: Path
    findings: list[str]

    def resources(self, stack: str, kind: str) -> dict[str, dict[str, Any]]:
        """The properties of a stack's resources of a type, by logical id."""
        found = self.templates[stack]["Resources"].items()
        return {name: resource.get("Properties", {}) for name, resource in found if resource["Type"] == kind}

    def one(self, stack: str, kind: str, **having: Any) -> dict[str, Any]:
        """The properties of the only resource of a type that has these."""
        all_of_kind = self.resources(stack, kind).values()
        matching = [one for one in all_of_kind if all(one.get(key) == value for key, value in having.items())]
        assert len(matching) == 1, f"{len(matching)} of {kind} with {having}"
        return matching[0]


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    """Placeholders with the names and digests of real ones."""
    folder = tmp_path_factory.mktemp("assets")
    made = {}
    for kind in ("core", "maintenance", "gluewheels", "environment"):
        path = folder / (f"{kind}.gluewheels.zip" if kind == "gluewheels" else f"{kind}.zip")
        path.write_bytes(b"PK\x05\x06" + bytes(18))
        made[kind] = Asset(path, kind.encode().hex().ljust(64, "0"))
    return Assets(**made)


@pytest.fixture(scope="session")
def synth(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Callable[[StageConfig], Synthesised]:
    """Synthesises a stage, rules included."""
    import aws_cdk as cdk

    from infra.app import add_stage
    from infra.checks import check

    context = json.loads(CDK_JSON.read_text())["context"]

    def run(stage: StageConfig, *, rules: bool = True) -> Synthesised:
        directory = tmp_path_factory.mktemp(f"cdk-{stage.name}")
        app = cdk.App(context=context, outdir=str(directory), analytics_reporting=False)
        add_stage(app, stage, assets)
        if rules:
            check(app)
        try:
            app.synth()
        except RuntimeError as error:  # templates are written nevertheless
            if "ValidationFailed" not in str(error):
                raise
        templates = {
            path.name.split(".")[0].removeprefix(f"{stage.prefix}-"): json.loads(path.read_text())
            for path in directory.glob("*.template.json")
        }
        return Synthesised(templates, directory, _findings(directory))

    return run


def _findings(directory: Path) -> list[str]:
    report = directory / "validation-report.json"
    if not report.is_file():
        return []
    return [
        f"{finding['ruleName']} {construct['constructPath']}"
        for plugin in json.loads(report.read_text())["pluginReports"]
        for finding in plugin["violations"]
        for construct in finding["violatingConstructs"]
    ]


@pytest.fixture(scope="session")
def dev(synth: Callable[[StageConfig], Synthesised]) -> Synthesised:
    """The stage dev: Glue, without a key of its own."""
    return synth(STAGES["dev"])


@pytest.fixture(scope="session")
def staging(synth: Callable[[StageConfig], Synthesised]) -> Synthesised:
    """The stage staging: EMR Serverless, with a key."""
    return synth(STAGES["staging"])


@pytest.fixture(scope="session")
def prod(synth: Callable[[StageConfig], Synthesised]) -> Synthesised:
    """The stage prod: Glue, with a key, data retained."""
    return synth(STAGES["prod"])


@pytest.fixture(scope="session")
def wide(synth: Callable[[StageConfig], Synthesised]) -> Synthesised:
    """Everything that a stage can have: all sources, a network, partitions, both services."""
    return synth(WIDE)
