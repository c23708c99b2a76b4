"""The CDK app of ``make deploy-local``: the same stacks and templates as for any stage, deployed to the local emulator.

Only what cannot be otherwise is: the functions' packages fit this machine, because the emulator runs functions in
this interpreter; the generator sends messages from the start; and topics have all sources that the emulator supports.
Context ``interval``: seconds between batches of the pipeline.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from typing import Final

from brokerless.errors import BrokerlessError
from brokerless.examples.timezone.messages import NEW_YORK, PARIS
from infra.app import add_stage, use_packaged_node
from infra.assets import build_assets
from infra.config import GeneratorConfig, Runtime, Source, StageConfig
from infra.stages import STAGES

STAGE: Final = "local"

HOST_RUNTIME: Final = Runtime(
    architecture="arm64" if platform.machine() in {"arm64", "aarch64"} else "x86_64",
    python=f"{sys.version_info.major}.{sys.version_info.minor}",
)
"""The runtime of this machine and this interpreter."""

INTERVAL_S: Final = "0.2"


def local_stage(*, interval_s: str = INTERVAL_S) -> StageConfig:
    """Return the stage ``dev`` as it is deployed to the emulator."""
    dev = STAGES["dev"]
    slower = (("--commit-interval", f"{interval_s}s"),)
    # Each source once: the example's topics have only some of them.
    sources: dict[str, tuple[Source, ...]] = {
        NEW_YORK: ("url", "sqs", "sns"),
        PARIS: ("sqs-fifo", "kinesis", "eventbridge"),
    }
    return replace(
        dev,
        name=STAGE,
        runtime=HOST_RUNTIME,
        topics=tuple(replace(topic, sources=sources[topic.name]) for topic in dev.topics),
        generator=GeneratorConfig(rate_per_s=5, duration_s=10, enabled=True),
        pipelines=tuple(replace(pipeline, arguments=slower) for pipeline in dev.pipelines),
    )


def main() -> int:
    """Synthesise the stage for the emulator. Return the exit code."""
    use_packaged_node()
    import aws_cdk as cdk

    app = cdk.App()
    stage = local_stage(interval_s=app.node.try_get_context("interval") or INTERVAL_S)
    try:
        add_stage(app, stage, build_assets(stage.runtime))
    except BrokerlessError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
