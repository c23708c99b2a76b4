"""The peers of brokerless: which engine the pipeline is asked for, and that figures of another one do not pass."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.peers import brokerless, load
from benchmarks.peers.base import PeerError, Site
from benchmarks.peers.brokerless import Brokerless
from benchmarks.spec import Spec
from brokerless.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

JOB = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(json.dumps({"event": "started", "pipeline": "p"} | json.loads(sys.argv[1])), flush=True)
time.sleep(60)
"""


def peer(name: str, tmp_path: Path, **values: Any) -> Brokerless:
    settings = Settings(profile="aws", root=f"file://{tmp_path}/root", state_dir=tmp_path)
    found = load(name)(Spec(name, 1_000, **values), Site(settings, tmp_path, tmp_path))
    assert isinstance(found, Brokerless)
    return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the pipeline's script says when it is ready; ``arguments`` are added when it is started."""
    said: dict[str, Any] = {}

    def start(job: str, settings: Settings, arguments: Sequence[str], **streams: Any) -> subprocess.Popen[str]:
        text = json.dumps(said)
        said["arguments"] = list(arguments)
        return subprocess.Popen([sys.executable, "-S", "-c", JOB, text], text=True, process_group=0, **streams)

    monkeypatch.setattr(brokerless, "start_job", start)
    return said


def test_the_pipeline_commits_as_often_as_the_producers(tmp_path: Path) -> None:
    arguments = peer("brokerless", tmp_path, commit_ms=20).job_arguments()
    assert "--commit-interval=20ms" in arguments
    assert not [argument for argument in arguments if argument.startswith("--engine")], "it chooses itself"


@pytest.mark.parametrize("name", ["brokerless-micro-batch", "brokerless-executors"])
def test_micro_batches_are_asked_for_and_commit_as_fast_as_they_can(name: str, tmp_path: Path) -> None:
    text = " ".join(peer(name, tmp_path).job_arguments())
    assert "--engine micro-batch" in text
    assert "--commit-interval" not in text
    assert ("--executor-rows 0" in text) == (name == "brokerless-executors")
    assert load(name).hops == (2,)


@pytest.mark.parametrize(("name", "engine"), [("brokerless", "realtime"), ("brokerless-micro-batch", "micro-batch")])
def test_the_engine_is_among_the_figures(
    name: str, engine: str, says: dict[str, Any], stack: ExitStack, tmp_path: Path
) -> None:
    says.update(engine=engine, reason="")
    running = peer(name, tmp_path)
    running.start(stack)
    assert says["arguments"] == running.job_arguments()
    assert running.finish().figures["engine"] == engine


@pytest.mark.parametrize(
    ("name", "engine", "reason", "text"),
    [
        ("brokerless", "micro-batch", "tasks run elsewhere", "'realtime', got 'micro-batch': tasks run elsewhere."),
        ("brokerless-micro-batch", "realtime", "", "'micro-batch', got 'realtime'."),
    ],
)
def test_a_pipeline_by_another_engine_is_not_measured(
    name: str, engine: str, reason: str, text: str, says: dict[str, Any], stack: ExitStack, tmp_path: Path
) -> None:
    says.update(engine=engine, reason=reason)
    with pytest.raises(PeerError) as refused:
        peer(name, tmp_path).start(stack)
    assert str(refused.value).endswith(text)
