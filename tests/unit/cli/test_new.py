"""``brokerless new pipeline``: what it writes, and what it refuses."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from brokerless.local.jobs import job_script
from brokerless.settings import Settings
from brokerless.spark.files import load_pipeline
from tests.support.cli import Cli, assert_refused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(Settings("embedded", f"file://{tmp_path}/root", state_dir=tmp_path / "state"))


@pytest.mark.spark
@pytest.mark.parametrize(("name", "module"), [("by-section", "by_section"), ("clicks2", "clicks2")])
def test_the_file_defines_a_pipeline_of_that_name(cli: Cli, tmp_path: Path, name: str, module: str) -> None:
    result = cli("new", "pipeline", name)
    assert result.exit_code == 0, result.output
    assert f"Wrote {module}.py and test_{module}.py." in result.stderr
    pipeline = load_pipeline(job_script(f"{module}.py"))
    assert (pipeline.name, pipeline.inputs, pipeline.output) == (name, ("clicks",), module)
    ast.parse((tmp_path / f"test_{module}.py").read_text())


def test_nothing_is_replaced(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("mine")
    assert_refused(cli("new", "pipeline", "mine"), "test_mine.py", str(tmp_path), "Choose another name")
    assert [path.name for path in tmp_path.glob("*.py")] == ["test_mine.py"]
    assert (tmp_path / "test_mine.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "1st", "a b", "../a", "a.b", "class", "a--b", "x" * 101, "{name}"])
def test_a_name_that_cannot_be_one(cli: Cli, tmp_path: Path, name: str) -> None:
    assert_refused(cli("new", "pipeline", "--", name), "must be letters, digits, '_' and '-'")
    assert list(tmp_path.glob("*.py")) == []


@pytest.mark.parametrize("name", ["json", "pyspark", "brokerless"])
def test_a_name_that_would_hide_a_module(cli: Cli, tmp_path: Path, name: str) -> None:
    assert_refused(cli("new", "pipeline", name), f"would hide Python's module '{name}'")
    assert list(tmp_path.glob("*.py")) == []


@pytest.mark.spark
def test_a_run_without_inputs_says_how_to_create_them(cli: Cli) -> None:
    cli("new", "pipeline", "mine")
    assert_refused(cli("run", "mine.py", "--once"), "'clicks'", "brokerless topics create clicks")
    assert cli.objects() == set()


def test_a_run_of_nothing(cli: Cli) -> None:
    assert_refused(cli("run", "nothing.py"), "no file 'nothing.py'", "brokerless new pipeline NAME")
