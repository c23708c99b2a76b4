"""The sink's scratch folders, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.spark import checkpoints

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


class BrokenQuery:
    """One whose JVM has gone."""

    @property
    def isActive(self) -> bool:  # Spark's name
        raise ConnectionRefusedError


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> dict[Path, Any]:
    known: dict[Path, Any] = {}
    monkeypatch.setattr(checkpoints, "queries", known)
    return known


def test_a_checkpoint_stays_as_long_as_its_query_runs(tmp_path: Path, queries: dict[Path, Any]) -> None:
    starting = checkpoints.fresh_checkpoint(tmp_path, "p")
    running, ended, broken = (checkpoints.fresh_checkpoint(tmp_path, "p") for _ in range(3))
    queries[running] = SimpleNamespace(isActive=True)
    queries[ended] = SimpleNamespace(isActive=False)
    queries[broken] = BrokenQuery()
    new = checkpoints.fresh_checkpoint(tmp_path, "p")
    assert set((tmp_path / "pipeline-p").iterdir()) == {starting, running, new} == set(queries)
    checkpoints.remove_checkpoint(new)
    assert set((tmp_path / "pipeline-p").iterdir()) == {starting, running} == set(queries)


def test_what_other_processes_left_is_removed_if_they_are_gone(tmp_path: Path, queries: dict[Path, Any]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    folders = {pid: tmp_path / "pipeline-p" / f"{pid}-0" for pid in (gone.pid, os.getppid(), os.getpid())}
    for folder in folders.values():
        folder.mkdir(parents=True)
    new = checkpoints.fresh_checkpoint(tmp_path, "p")
    # Nothing of this process's number is known here: another one had it before.
    assert set((tmp_path / "pipeline-p").iterdir()) == {folders[os.getppid()], new}


def test_queries_of_one_name_differ_for_spark(
    tmp_path: Path, queries: dict[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 4_194_303)  # as large as they get
    names = {checkpoints.query_name("p", checkpoints.fresh_checkpoint(tmp_path, "p")) for _ in range(2)}
    assert len(names) == 2
    assert all(len(name) == len("p-") + 8 for name in names)
