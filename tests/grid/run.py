"""A run: a world under load, cell after cell, and the verdict on everything that was recorded; then the next world."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokerless.log.log import DeltaLog
from brokerless.schema import partition_table
from brokerless.store import open_store
from brokerless.testing.history import check, check_pipeline, log_order, read_history
from brokerless.verify.table import verify_topic
from tests.grid.cells import OUTPUTS, PIPELINES, TOPIC, settled
from tests.grid.strike import strike
from tests.grid.world import BYSTANDER, WITNESS, GridError, Plan, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from brokerless.clock import Clock
    from brokerless.store import Store
    from tests.grid.cells import Cell


CELLS_A_WORLD: Final = 60
"""After so many cells the verdict is due, and a new world begins: what one finds does not hide what others would."""


@dataclass(slots=True)
class Result:
    """What was done and found in one world, or in all together.

    Attributes:
        tried: the cells in their order; only the last one may have failed.
        played: those that struck and were survived, with the seconds that each took; none of a world whose verdict
            is bad, because nobody knows which of them it was.
        failures: a line each; empty if all is well.
        counts: kills, pauses, messages and so on.
        folder: histories, what the roles said on standard error, and the server's data.
    """

    folder: Path
    tried: list[Cell] = field(default_factory=list)
    played: list[tuple[Cell, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __iadd__(self, other: Result) -> Self:
        """Adds what another world did and found."""
        self.tried += other.tried
        self.played += other.played
        self.failures += other.failures
        self.counts += other.counts
        self.seconds += other.seconds
        return self


def play_in_worlds(
    plan: Plan,
    cells: Sequence[Cell],
    folder: Path,
    *,
    clock: Clock,
    seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    size: int = CELLS_A_WORLD,
) -> Iterator[Result]:
    """Plays all cells, in one world after the other; a cell that is not survived ends its world only.

    Args:
        plan: what each world is like.
        cells: in this order, but for those that need an older world.
        folder: gets a folder for each world.
        clock: time and sleeping.
        seconds: no cell begins later than this; all are played if None.
        say: gets a line for each cell.
        size: cells in a world.
    """
    left, spent = list(cells), 0.0
    while left and (seconds is None or spent < seconds):
        world = settled(left[:size])
        remaining = None if seconds is None else seconds - spent
        place = folder / f"world-{len(cells) - len(left)}"
        result = play(plan, world, place, clock=clock, seconds=remaining, say=say)
        yield result
        spent += result.seconds
        left = [cell for cell in left if cell not in result.tried]
        if not result.tried:
            return  # this world did not even begin to move


def play(
    plan: Plan,
    cells: Sequence[Cell],
    folder: Path,
    *,
    clock: Clock,
    seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Plays the cells in one world, one after the other, and judges what was recorded.

    Args:
        plan: what the world is like.
        cells: in this order.
        folder: for everything that is left; must be empty or missing.
        clock: time and sleeping.
        seconds: no cell begins later than this; all are played if None. The verdict comes after that.
        say: gets a line for each cell.
    """
    result = Result(folder)
    begun = clock.monotonic()
    try:
        with World(plan, folder, clock) as world:
            result.counts = world.counts
            world.settle()
            world.settle()
            say(f"  the world moves after {clock.monotonic() - begun:.1f} s")
            for cell in cells:
                at = clock.monotonic() - begun
                if seconds is not None and at >= seconds:
                    break
                result.tried.append(cell)
                try:
                    strike(world, cell)
                except GridError as error:
                    result.failures.append(f"{cell}: {error}")
                    say(f"  {at:6.1f} s  {cell}  FAILED: {error}")
                    break  # the world is not what the next cell expects
                took = clock.monotonic() - begun - at
                result.played.append((cell, took))
                say(f"  {at:6.1f} s  {cell}  ok after {took:.1f} s")
            _bring_in(world, result)
            for line in _verdicts(world):
                result.failures.append(line)
                result.played.clear()
                say(f"  FAILED: {line}")
    except GridError as error:
        result.failures.append(str(error))
    result.seconds = clock.monotonic() - begun
    return result


def _bring_in(world: World, result: Result) -> None:
    """Ends the producers, waits until everything is read, and ends the rest."""
    for left in world.ended:  # a zombie that nothing stopped
        left.close()
    _end(world, BYSTANDER, "producer", "maintenance")
    store = open_store(world.settings)
    sent = sum(report.rows for report in verify_topic(store, TOPIC))

    def all_processed() -> bool:
        seen = world.current[WITNESS].rows
        outputs = [OUTPUTS[role] for role in world.plan.pipelines]
        return all(seen.get(topic, 0) + seen.get(f"{topic}.dead_letters", 0) >= sent for topic in outputs)

    def all_read() -> bool:
        return all(
            _is_at_end(store, world.folder / f"{reader}.json")
            for reader in (WITNESS, "consumer")
            if reader in world.current
        )

    with contextlib.suppress(GridError):  # what is missing is the verdict's to say
        if world.plan.spark:
            world.wait("the end of the pipelines' work", all_processed)
        world.wait("the end of reading", all_read)
    _end(world, *PIPELINES, "consumer", WITNESS)


def _end(world: World, *roles: str) -> None:
    for role in roles:
        if role in world.current:
            world.current.pop(role).end()


def _is_at_end(store: Store, place: Path) -> bool:
    """Whether a reader has noted down that it is behind the last entry of each of its tables."""
    found: dict[str, tuple[int, int]] = json.loads(place.read_text()) if place.exists() else {}
    heads = {where: DeltaLog(store, partition_table(*_split(where))).head() for where in found}
    return bool(found) and all(found[where][0] > head for where, head in heads.items())


def _split(where: str) -> tuple[str, int]:
    topic, _, partition = where.rpartition("/")
    return topic, int(partition)


def _verdicts(world: World) -> list[str]:
    """What is wrong, a line each."""
    lines: list[str] = []
    paths = sorted(world.folder.glob("*.jsonl"))
    recorded = read_history(*paths)
    verdict = check(recorded.events)
    lines += [f"history: {finding.kind}: {finding.text}" for finding in verdict.findings]
    world.counts["messages acknowledged"] = verdict.counts.get("messages_acknowledged", 0)
    world.counts["events"] = len(recorded.events)
    if unread := verdict.counts.get("unread", 0):
        lines.append(f"history: {unread} messages were acknowledged and read by nobody")
    for role in world.plan.pipelines if world.plan.spark else ():
        inputs = {(TOPIC, number): ids for number, ids in log_order(recorded.events, TOPIC).items()}
        good, letters = (
            log_order(recorded.events, topic) for topic in (OUTPUTS[role], f"{OUTPUTS[role]}.dead_letters")
        )
        pipeline = check_pipeline(inputs, good, letters)
        lines += [f"{role}: {finding.kind}: {finding.text}" for finding in pipeline.findings]
        world.counts.update({name.replace("_", " "): count for name, count in pipeline.counts.items()})
    store = open_store(world.settings)
    for topic in world.plan.topics:
        for report in verify_topic(store, topic):
            lines += [f"{report.table}: {finding.kind}: {finding.text}" for finding in report.findings]
            world.counts["entries"] += report.entries
    return lines
