"""The rule packs of cdk-nag and cfn-lint find nothing, in any stage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.infra.conftest import Synthesised

STAGES = ["dev", "staging", "prod", "wide"]


@pytest.mark.parametrize("stage", STAGES)
def test_the_rule_packs_find_nothing(stage: str, request: pytest.FixtureRequest) -> None:
    app: Synthesised = request.getfixturevalue(stage)
    assert app.findings == []


def test_cfn_lint_finds_nothing(request: pytest.FixtureRequest) -> None:
    # All that prod and staging have is in the widest stage; what only dev has goes with its stacks.
    apps: list[Synthesised] = [request.getfixturevalue(stage) for stage in ("dev", "wide")]
    templates = [str(path) for app in apps for path in sorted(app.directory.glob("*.template.json"))]
    assert len(templates) == 3 * len(apps)
    command = [Path(sys.executable).with_name("cfn-lint"), "--regions", "us-east-1"]
    # Dependencies that the CDK writes down twice.
    command += ["--ignore-checks", "W3005", "--", *templates]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout
