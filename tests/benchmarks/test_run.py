"""The harness: what a run finds out, and that it does not pass what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import benchmarks.__main__ as command
import benchmarks.run as running
from benchmarks.result import Result
from benchmarks.session import file_system
from tests.support.peers import SPEC, FilePeer, faulty

if TYPE_CHECKING:
    from contextlib import ExitStack


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str = "", late_share: float = 1.0) -> Result:
    """A run that allows for a machine that is too busy to be on time, unless told otherwise."""
    monkeypatch.setattr(running, "load", lambda name: faulty(fault))
    monkeypatch.setattr(running, "DRAIN_S", 4.0)
    monkeypatch.setattr(running, "ECHO_S", 0.3)
    monkeypatch.setattr(running, "LATE_SHARE", late_share)
    return running.run(SPEC, tmp_path, lambda text, left: None).result


def test_a_clean_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run(monkeypatch, tmp_path)
    assert result.clean, result.problems
    assert (result.sent, result.acknowledged, result.seen) == (4000, 4000, 4000)
    assert result.measured == 3000
    assert result.p50_s is not None
    assert 0.0 < result.p50_s < 0.5
    assert {"load", "reader", "store"} <= set(result.cpu_s)
    assert sum(window.messages for window in result.windows) == 4000
    assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result


@pytest.mark.parametrize(("fault", "problem"), [("late", "fell behind"), ("start", "it did not start")])
def test_what_spoils_a_run_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, problem: str) -> None:
    result = run(monkeypatch, tmp_path, fault, late_share=0.01)
    assert not result.clean
    assert any(problem in text for text in result.problems), result.problems
    if fault == "late":  # which shows in the latency of what had to wait
        assert (result.max_s or 0.0) > 0.9


def test_a_peer_that_cannot_run_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run(monkeypatch, tmp_path, "missing")
    assert result.skipped == "it is not to be had"
    assert not result.clean


def arguments(tmp_path: Path, *more: str) -> list[str]:
    folders = [f"--{name}={tmp_path / name}" for name in ("out", "csv", "cache")]
    return ["--s3-backend=embedded", "--hops=1", "--autocommit-duration-ms=50", *folders, *more]


def test_a_real_run_of_the_kit_with_its_requests_and_its_bill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "LATE_SHARE", 1.0)
    quick = ["--rates=500", "--seconds-to-stream=3", "--warm-up=1", "--count-seconds=2", "--json"]
    assert command.main(arguments(tmp_path, *quick)) == 0
    [found] = json.loads(capsys.readouterr().out)["runs"]
    assert (found["sent"], found["seen"], found["lost"]) == (1500, 1500, 0)
    # A commit is two PUTs, of an object and an entry; two producers commit twenty times a second at most, for 2 s.
    puts = found["figures"]["requests_by_role"]["producer"]["PUT"]
    assert 8 <= puts <= 2 * 2 * 2 * 20 + 8
    assert found["figures"]["requests_by_role"]["reader"]["GET 404"] > 0
    assert found["usd_per_million"] == pytest.approx(found["usd_per_month"] / (500 * 2.628), rel=1e-3)
    assert (tmp_path / "out" / "latest.json").is_file()
    assert (tmp_path / "csv" / "brokerless-1-smooth" / "500.csv").read_text().startswith("time_from_start,p50,")


def test_a_loss_is_counted_and_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "load", lambda name: faulty("loss"))
    monkeypatch.setattr(running, "DRAIN_S", 3.0)
    few = ["--rates=500", "--seconds-to-stream=2", "--warm-up=0.5", "--count-seconds=0", "--json"]
    assert command.main(arguments(tmp_path, *few)) == 1
    [found] = json.loads(capsys.readouterr().out)["runs"]
    assert (found["lost"], found["clean"]) == (1, False)


def test_data_goes_where_it_is_asked_for_and_does_not_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    seen: list[tuple[bool, bool]] = []

    class Looking(FilePeer):
        def start(self, stack: ExitStack) -> None:
            super().start(stack)
            folder = self.site.data_folder
            seen.append((folder.parent == data and (folder / "store").is_dir(), (self.site.folder / "store").exists()))

    monkeypatch.setattr(running, "load", lambda name: Looking)
    monkeypatch.setattr(running, "ECHO_S", 0.3)
    monkeypatch.setattr(running, "LATE_SHARE", 1.0)
    monkeypatch.setattr(command, "file_system", lambda folder: {data: "tmpfs"}[folder])
    few = ["--rates=500", "--seconds-to-stream=1", "--warm-up=0", "--count-seconds=0", "--json", f"--data-dir={data}"]
    assert command.main(arguments(tmp_path, *few)) == 0
    assert seen == [(True, False)]
    assert list(data.iterdir()) == []
    [note] = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith("Data on tmpfs")
    assert str(tmp_path) not in note


@pytest.mark.parametrize(
    ("folder", "kind"), [("/", "ext4"), ("/a", "tmpfs"), ("/a/b/c", "xfs"), ("/ab", "ext4"), ("/d/e", "unknown")]
)
def test_a_folder_is_on_the_innermost_file_system(monkeypatch: pytest.MonkeyPatch, folder: str, kind: str) -> None:
    mounts = [("/a/b", "xfs"), ("/", "ext4"), ("/a", "overlay"), ("/a", "tmpfs"), ("/d", "")]
    parts = [SimpleNamespace(mountpoint=point, fstype=name) for point, name in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)
    assert file_system(Path(folder)) == kind


BUSY = """
import time
while True:
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    time.sleep(0.05)
"""


def test_the_jvm_s_share_of_the_pipeline_is_a_figure_and_no_further_role(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "java"
    java.symlink_to(sys.executable)

    class Piped(FilePeer):
        def start(self, stack: ExitStack) -> None:
            super().start(stack)
            self._java = stack.enter_context(subprocess.Popen([java, "-S", "-c", BUSY]))
            stack.callback(self._java.kill)

        def processes(self) -> dict[str, int]:
            return {"pipeline": self._java.pid}

    monkeypatch.setattr(running, "load", lambda name: Piped)
    monkeypatch.setattr(running, "ECHO_S", 0.3)
    result = running.run(SPEC, tmp_path, lambda text, left: None).result
    assert result.figures["pipeline_jvm_cpu_s"] == result.cpu_s["pipeline"] > 0.2
    assert result.cpu_s.keys() == {"store", "pipeline", "reader", "load"}


@pytest.mark.parametrize(
    "wrong",
    [
        ["--seconds-to-stream=30", "--warm-up=30"],
        ["--rates=0"],
        ["--hops=3"],
        ["--range-start=10", "--range-end=5"],
        ["--producers=101"],
        ["--peers=rabbit"],
        ["--data-dir=/nowhere"],
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(arguments(tmp_path, *wrong))
    assert refused.value.code == 2


def test_the_published_range_is_inclusive_and_peers_take_turns(tmp_path: Path) -> None:
    def plan(*more: str) -> list[tuple[Any, ...]]:
        parser = command._parser()
        args = parser.parse_args(arguments(tmp_path, "--peers=brokerless,kafka", *more))
        return [(repeat, spec.rate, spec.peer) for spec, repeat in command.plan(args, parser)]

    wide = ["--range-start=10", "--range-end=30", "--range-step=10", "--repeat=2"]
    assert [rate for _, rate, peer in plan(*wide) if peer == "kafka"] == [10, 20, 30, 10, 20, 30]
    assert [peer for *_, peer in plan(*wide)][:4] == ["brokerless", "kafka", "brokerless", "kafka"]
    assert [peer for *_, peer in plan(*wide, "--no-interleave")] == ["brokerless"] * 6 + ["kafka"] * 6
