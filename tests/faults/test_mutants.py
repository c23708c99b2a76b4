"""The suite of mutants itself: it applies to today's code, it bites, and it says so when nothing does."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.mutants import copies, suite
from tests.mutants.__main__ import main
from tests.mutants.catalogue import GROUPS, MUTANTS
from tests.mutants.copies import Copy
from tests.mutants.mutant import ROOT, MovedError, Mutant, Named, Sim
from tests.mutants.page import PATH, page
from tests.proof import results

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.faults

each = pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name.replace(" ", "-") for mutant in MUTANTS])

BY_SEEDS = next(mutant for mutant in MUTANTS if mutant.name == "an entry with another commit id is not ours")
BY_A_TEST = next(mutant for mutant in MUTANTS if mutant.name == "partition 0 is created last")


def edited(mutant: Mutant) -> str:
    return mutant.applied_to((ROOT / mutant.file).read_text())


@each
def test_it_applies_to_the_code_as_it_is(mutant: Mutant) -> None:
    text = edited(mutant)
    compile(text, mutant.file, "exec")
    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse((ROOT / mutant.file).read_text()))


@each
def test_what_catches_it_is_there(mutant: Mutant) -> None:
    if isinstance(mutant.caught_by, Sim):
        assert mutant.caught_by.seeds > 100  # a range: traces shift with each changed line
        return
    for name in mutant.caught_by.ids:
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_names_and_edits_differ() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({edited(mutant) for mutant in MUTANTS}) == len(MUTANTS)


def test_code_that_has_moved_is_said() -> None:
    for text in ("", BY_A_TEST.old * 2):
        with pytest.raises(MovedError, match="update the mutant 'partition 0"):
            BY_A_TEST.applied_to(text)


def test_the_page_is_that_of_the_list_and_the_recorded_run() -> None:
    assert PATH.read_text() == page(GROUPS, results.read().get("mutants"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    copy = Copy.of_checkout(tmp_path_factory.mktemp("mutants") / "whole")
    yield copy
    copy.close()


@pytest.fixture
def no_copying(whole: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests here share one copy: to make one takes longer than to attack it."""
    monkeypatch.setattr(suite.Copy, "of_checkout", lambda _: whole)
    monkeypatch.setattr(suite.Copy, "again", lambda *_: whole)
    monkeypatch.setattr(suite.Copy, "close", lambda _: None)
    monkeypatch.setattr(suite, "CALM_SEEDS", 1)


@pytest.mark.usefixtures("no_copying")
def test_real_mutants_are_caught(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--processes", "1"], mutants=[BY_SEEDS, BY_A_TEST]) == 0
    shown = capsys.readouterr().out
    assert f"{BY_SEEDS.name}: caught by seed " in shown
    assert f"{BY_A_TEST.name}: caught by tests/faults/test_safeguards.py::test_a_creation" in shown
    assert "2 safeguards taken away" in shown


@pytest.mark.usefixtures("no_copying")
def test_a_mutant_that_changes_nothing_survives(capsys: pytest.CaptureFixture[str]) -> None:
    comment = replace(BY_A_TEST, new=f"{BY_A_TEST.old}  # the last one", name="a comment")
    moved = replace(BY_A_TEST, old="text that is nowhere", name="moved")
    assert main(["--processes", "1"], mutants=[comment, moved]) == 1
    shown = capsys.readouterr().out
    assert "a comment: SURVIVED test_a_creation" in shown
    assert "moved: The code has moved" in shown


@pytest.mark.usefixtures("no_copying")
def test_attacks_that_fail_without_a_mutant_prove_nothing(
    whole: Copy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with whole.without(BY_A_TEST):
        assert main(["--processes", "1"], mutants=[BY_A_TEST]) == 2
    assert "The unmutated copy fails" in capsys.readouterr().out
    assert whole.attack(BY_A_TEST.caught_by) == ""


def test_what_cannot_be_run_is_no_catch(whole: Copy) -> None:
    with pytest.raises(copies.NoAnswerError, match="pytest ended with"):
        whole.attack(Named(("tests/unit/test_topics.py::test_that_is_not_there",)))


def test_only_the_copy_is_attacked(whole: Copy, tmp_path: Path) -> None:
    # Without its own package the copy would fall back on the editable install.
    empty = Copy(tmp_path)
    (tmp_path / "tests").symlink_to(whole.folder / "tests")
    (tmp_path / "pyproject.toml").symlink_to(whole.folder / "pyproject.toml")
    with pytest.raises(copies.NoAnswerError, match="not imported from"):
        empty.seeds([0])
    empty.close()


def test_the_working_tree_is_not_touched(whole: Copy) -> None:
    before = (ROOT / BY_A_TEST.file).read_text()
    with whole.without(BY_A_TEST):
        assert (whole.folder / BY_A_TEST.file).read_text() == edited(BY_A_TEST)
        assert (ROOT / BY_A_TEST.file).read_text() == before
    assert (whole.folder / BY_A_TEST.file).read_text() == before
