"""The CDK app: ``python -m infra.app``, which the ``cdk`` command starts: ``cdk synth -c stage=dev``, or all stages.

Needs no credentials, network or Docker: assets are made beforehand (``python -m infra.assets``), and no stack looks
anything up in an account.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from brokerless.errors import BrokerlessError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import aws_cdk as cdk

    from infra.assets import Assets
    from infra.config import StageConfig


def use_packaged_node(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make the CDK's Python bindings start the ``node`` beside this interpreter. Call it before importing aws_cdk.

    So the version of Node.js is pinned, too.
    """
    node = Path(sys.executable).with_name("node")
    if node.exists():
        environ.setdefault("JSII_NODE", str(node))


def add_stage(app: cdk.App, stage: StageConfig, assets: Assets) -> None:
    """Add a stage's stacks to the app."""
    import aws_cdk as cdk

    from infra.stacks import DataStack, MonitoringStack, StreamStack

    data = DataStack(app, f"{stage.prefix}-data", stage=stage)
    streams = StreamStack(app, f"{stage.prefix}-streams", stage=stage, assets=assets, data=data)
    monitoring = MonitoringStack(app, f"{stage.prefix}-monitoring", stage=stage, data=data)
    for stack in (data, streams, monitoring):
        for key, value in {"project": "brokerless", "stage": stage.name}.items():
            cdk.Tags.of(stack).add(key, value)


def main() -> int:
    """Synthesise the stages that the context names. Return the exit code."""
    use_packaged_node()
    import aws_cdk as cdk

    from infra.assets import find_assets
    from infra.checks import check
    from infra.stages import STAGES, stage_config

    app = cdk.App()
    wanted = app.node.try_get_context("stage")
    try:
        stages = [stage_config(wanted)] if wanted else list(STAGES.values())
        assets = {runtime: find_assets(runtime) for runtime in {stage.runtime for stage in stages}}
        for stage in stages:
            add_stage(app, stage, assets[stage.runtime])
    except BrokerlessError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    check(app)
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
