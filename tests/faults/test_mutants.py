"""The suite of mutants itself: each has its guard in the source, it is caught, and the suite says so when it is not."""

from __future__ import annotations

import ast
import builtins
from dataclasses import replace

import pytest

from tests.mutants import suite
from tests.mutants.__main__ import main
from tests.mutants.catalogue import GROUPS, MUTANTS
from tests.mutants.mutant import MovedError, Mutant, guards
from tests.mutants.page import PATH, page
from tests.proof import results

pytestmark = pytest.mark.faults

CAUGHT = next(mutant for mutant in MUTANTS if mutant.guard == "an entry with another commit id is not ours")
NAMES = {*dir(builtins), *dir(str), "key"}


def identifiers(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    return {
        *(node.id for node in nodes if isinstance(node, ast.Name)),
        *(node.attr for node in nodes if isinstance(node, ast.Attribute)),
        *(node.arg for node in nodes if isinstance(node, ast.arg | ast.keyword) and node.arg),
    }


def test_each_guard_in_the_source_has_a_mutant_and_each_mutant_its_guard() -> None:
    assert sorted(guards()) == sorted(mutant.guard for mutant in MUTANTS)


def test_each_mutant_changes_the_code_as_it_is() -> None:
    edited = set()
    for mutant in MUTANTS:
        source = mutant.path().read_text()
        before, after = ast.parse(source), ast.parse(text := mutant.applied_to(source))
        assert ast.dump(after) != ast.dump(before), mutant.guard
        # A name that was changed in the source would fail each seed, and prove nothing.
        assert identifiers(after) <= identifiers(before) | NAMES | {"other"}, mutant.guard
        edited.add(text)
    assert len(edited) == len(MUTANTS)


def test_a_guard_that_has_moved_is_said() -> None:
    nowhere = replace(CAUGHT, guard="this one is nowhere")
    with pytest.raises(MovedError, match="0 files have the comment '# guard: this one is nowhere'"):
        nowhere.path()
    mark = f"# guard: {CAUGHT.guard}\n"
    for text, found in (("a = 1\n", "is there 0 times"), (mark * 2, "is there 2 times"), (mark, "statements should")):
        with pytest.raises(MovedError, match=found):
            CAUGHT.applied_to(text)


def test_what_is_replaced() -> None:
    source = "if a:\n    # guard: first\n    # guard: one\n    if b:\n        c = (\n            1)\n    d = 2\n"
    one = Mutant("one", "", "")
    assert one.applied_to(source).endswith("# guard: one\n    pass\n    d = 2\n")
    assert replace(one, guard="first", statements=2, instead="x\ny").applied_to(source).endswith("    x\n    y\n")
    kept = replace(one, instead="if False:").applied_to(source)
    assert kept == source.replace("if b:", "if False:")


def test_the_page_is_that_of_the_list_and_the_recorded_run() -> None:
    assert PATH.read_text() == page(GROUPS, results.read().get("mutants"))


def test_a_run_says_what_was_caught_and_what_was_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "CALM_SEEDS", 1)
    source = CAUGHT.path().read_text()
    same = replace(CAUGHT, instead="return (None if entry.commit_id == commit_id else entry), attempt")
    monkeypatch.setattr("tests.mutants.mutant.SEEDS", 3)
    assert main(["--processes", "2"], mutants=[CAUGHT, same, replace(CAUGHT, guard="moved")]) == 1
    shown = capsys.readouterr().out
    assert f"{CAUGHT.guard}: caught by seed 0: " in shown
    assert f"{CAUGHT.guard}: SURVIVED seeds 0 to 2" in shown
    assert "moved: 0 files have the comment" in shown
    assert "3 safeguards taken away" in shown
    assert CAUGHT.path().read_text() == source


def test_a_simulation_that_fails_without_a_mutant_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "play", lambda *_: "seed 0: lost")
    assert main([], mutants=[CAUGHT]) == 2
    assert "Without any mutant the simulation fails, too: seed 0: lost" in capsys.readouterr().out


def test_what_cannot_be_run_is_no_catch() -> None:
    with pytest.raises(suite.NoAnswerError, match="SyntaxError"):
        suite.play(replace(CAUGHT, instead="return ("), [0])
