"""The grid itself: its cells strike and are survived, and its verdict fails where a safeguard is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokerless.clock import SYSTEM
from brokerless.testing.faults import KINDS, can_meet
from tests.grid.__main__ import main
from tests.grid.cells import REQUEST_FAULTS, ROLES, Cell, Step, all_cells, chosen, rota, settled
from tests.grid.run import play, play_in_worlds
from tests.grid.strike import rules_of
from tests.grid.world import Plan

if TYPE_CHECKING:
    from pathlib import Path

    from tests.proof.results import Attack


pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


def test_a_run_survives_kills_zombies_cuts_and_lost_answers(tmp_path: Path) -> None:
    cells = [
        "producer/kill/entry:late",
        "producer/zombie/entry:before",
        "consumer/cut/entry:before",
        "maintenance/pause/hint:before",
        "producer/stale-absence/entry:after",
        "server/kill/producer.entry:after",
    ]
    plan = Plan(spark=False, retention_s=20.0, pause_s=0.5)
    result = play(plan, chosen(all_cells(), cells), tmp_path, clock=SYSTEM)
    assert result.failures == []
    assert [str(cell) for cell, _ in result.played] == cells
    assert {
        name: result.counts[name] for name in ("kills", "zombies fenced", "cuts", "pauses", "faults of requests")
    } == {
        "kills": 2,
        "zombies fenced": 1,
        "cuts": 1,
        "pauses": 1,
        "faults of requests": 1,
    }
    assert result.counts["messages acknowledged"] > 100


@pytest.mark.parametrize(
    ("sabotage", "cell", "finding"),
    [
        ("outcome", "producer/lost-request/entry:before", "history: lost: "),
        ("fence", "producer/zombie/entry:before", "history: duplicate: "),
        ("sequence", "producer/kill/entry:after", "history: duplicate: "),
    ],
)
def test_a_missing_safeguard_is_found(tmp_path: Path, sabotage: str, cell: str, finding: str) -> None:
    plan = Plan(spark=False, struck=("producer",), sabotage=sabotage)
    failures = play(plan, chosen(all_cells(), [cell]), tmp_path, clock=SYSTEM).failures
    assert any(line.startswith(finding) for line in failures), failures


def test_a_cell_that_strikes_nothing_fails_and_ends_its_world_but_not_the_run(tmp_path: Path) -> None:
    never = Cell("producer", "kill", Step("nowhere", "PUT", "no/such/key"), "before")
    after = chosen(all_cells(), ["producer/lost-answer/entry:after"])
    plan = Plan(spark=False, struck=("producer",), moment_s=2.0)
    first, second = play_in_worlds(plan, [never, *after], tmp_path, clock=SYSTEM)
    assert (first.tried, first.played) == ([never], [])
    assert first.failures == [f"{never}: a request for {never} did not come within 2 s; last errors: none"]
    assert (second.failures, second.tried, [cell for cell, _ in second.played]) == ([], after, after)


def test_a_world_ends_after_some_cells(tmp_path: Path) -> None:
    cells = chosen(all_cells(), ["producer/lost-answer/entry:after", "producer/lost-answer/object:after"])
    plan = Plan(spark=False, struck=("producer",))
    worlds = list(play_in_worlds(plan, cells, tmp_path, clock=SYSTEM, size=1))
    assert [(world.failures, world.tried) for world in worlds] == [([], cells[:1]), ([], cells[1:])]


# The choice of cells


def test_a_seed_names_one_order_of_all_cells() -> None:
    cells = all_cells()
    assert rota(cells, 7) == rota(cells, 7)
    assert rota(cells, 7) != rota(cells, 8)
    assert sorted(map(str, rota(cells, 7))) == sorted(map(str, cells))


@pytest.mark.parametrize("seed", range(5))
def test_the_beginning_of_a_rota_is_mixed(seed: int) -> None:
    first = rota(all_cells(), seed)[:32]
    assert {cell.role for cell in first} == set(ROLES)
    assert len({cell.fault for cell in first}) >= 8
    assert sum(cell.restarts_spark for cell in first) == 4


def test_cells_that_need_an_old_world_come_after_others() -> None:
    cells = [cell for cell in all_cells() if cell.role == "maintenance"]
    order = settled(cells)
    assert sorted(map(str, order)) == sorted(map(str, cells))
    assert not any(cell.step.settles for cell in order[:12])
    assert settled(order) == order


def test_every_fault_of_the_proxy_is_in_the_grid() -> None:
    played = {fault.kind for by_side in REQUEST_FAULTS.values() for fault in by_side.values()}
    assert played == set(KINDS)
    assert {cell.fault for cell in all_cells()} >= set(REQUEST_FAULTS)


def test_every_fault_of_a_request_can_meet_its_step() -> None:
    for cell in all_cells():
        if cell.fault in REQUEST_FAULTS:
            rules = rules_of(cell)
            assert can_meet(rules[0].fault, cell.step.op), cell


def test_the_command_lists_cells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--cells", "producer/kill/entry:*"]) == 0
    assert capsys.readouterr().out.split() == [f"producer/kill/entry:{side}" for side in ("before", "late", "after")]


def test_the_command_says_how_to_repeat_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.grid import __main__ as command
    from tests.grid.run import Result

    def failing(plan: Plan, cells: list[Cell], folder: Path, **options: object) -> list[Result]:
        return [Result(folder, tried=cells[:2], played=[(cells[0], 1.0)], failures=["history: lost: '1'"])]

    monkeypatch.setattr(command, "play_in_worlds", failing)
    code = main(["--without-spark", "--seed", "3", "--folder", str(tmp_path / "kept")])
    printed = capsys.readouterr().out
    order = rota([cell for cell in all_cells() if not cell.needs_spark], 3)
    assert code == 1
    assert f"kept in {tmp_path / 'kept'}" in printed
    assert f"python -m tests.grid --seed 3 --rate 100 --without-spark --cells {order[0]},{order[1]}\n" in printed


def test_a_run_that_is_resumed_leaves_out_what_was_survived_and_adds_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.grid import __main__ as command
    from tests.grid.run import Result

    kill = "producer/kill/entry:late"
    recorded = {"details": [{"cell": kill, "seconds": 1.0}], "counts": {"cells": 1}, "seconds": 9.0, "commit": "abc"}
    written: list[Attack] = []

    def surviving(plan: Plan, cells: list[Cell], folder: Path, **options: object) -> list[Result]:
        return [Result(folder, tried=cells, played=[(cell, 2.0) for cell in cells], seconds=4.0)]

    monkeypatch.setattr(command, "read", lambda: {"grid": recorded})
    monkeypatch.setattr(command, "write", written.append)
    monkeypatch.setattr(command, "play_in_worlds", surviving)
    globs = ["--cells", "producer/kill/entry:*", "--resume", "--record", "--seed", "3", "--folder", str(tmp_path)]
    assert main(globs) == 0
    assert [detail["cell"] for detail in written[0].details] == [
        kill,
        kill.replace("late", "before"),
        kill.replace("late", "after"),
    ]
    assert [detail["commit"] for detail in written[0].details][:1] == ["abc"]
    assert (written[0].counts["cells"], written[0].seconds) == (3, 13.0)
