"""One seed: who lives in its world, what the weather is like there, and what came of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, get_args

from brokerless.groups.assignment import Strategy
from brokerless.schema import dead_letters
from brokerless.topics import create_topic
from tests.sim.bucket import FAULTS, Bucket, Connection, Weather
from tests.sim.groups import Member, Truth
from tests.sim.roles import (
    OUTPUT,
    SCHEMA,
    TOPIC,
    AnonymousProducer,
    CountingProducer,
    Eraser,
    Function,
    Hand,
    Maintenance,
    NamedProducer,
    Owner,
    Pipeline,
    Poster,
    Reading,
    RealtimePipeline,
    Slip,
    Stage,
)
from tests.sim.verdict import Judge
from tests.sim.world import SECOND, Process, World

if TYPE_CHECKING:
    from collections import Counter

    from tests.sim.bucket import Written
    from tests.sim.machine import Host

REALTIME: Final = 0.4
"""How many of the pipelines run by the real-time engine."""

GROUPS: Final = 1_000_000
"""From this seed on, the worlds have a consumer group; so those below stay as they are."""

REWRITING: Final = 0.7
"""In how many of the worlds with maintenance it merges objects, expires messages and meets erasures."""

_CALM: Final = Weather({}, 0, long_pauses=False)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one seed.

    Attributes:
        failures: what was found that never may be; empty if all is well.
        counts: faults and events that this seed had.
        digest: of the trace.
        trace: its lines, if they were asked for or something was found.
    """

    seed: int
    failures: tuple[str, ...]
    counts: Counter[str]
    digest: str
    trace: tuple[str, ...] = ()

    def text(self) -> str:
        """What failed, and how to see it again."""
        found = "\n".join(self.failures)
        return f"seed {self.seed}: {found}\nReplay: python -m tests.sim --seed {self.seed} --trace"


def run_seed(host: Host, seed: int, *, trace: bool = False) -> Result:
    """Lets one world live to its end and judges it."""
    world = World(seed)
    truth = None
    if seed < GROUPS:
        stage = _stage(host, world)
    else:
        stage, truth = _group_stage(host, world)
    for role in stage.roles:
        role.start(world.rng.randrange(2 * SECOND))
    world.run()
    if waiting := [role.name for role in stage.roles if role.live or not role.done]:
        world.fail(f"these have not ended: {', '.join(waiting)}; {stage.bucket.under_way} requests are under way")
    counts = world.counts
    if not world.failures:
        if truth is not None:
            truth.judge()
        Judge(stage).judge(history=truth is None)
    counts["requests"] += stage.bucket.requests
    counts["messages"] += sum(len(event.ids) for event in stage.events if event.type == "invoke")
    counts["virtual hours"] += int(max(0, world.trace.events[-1][0] - world.trace.events[0][0]) / 3.6e9)
    lines = tuple(world.trace.lines()) if trace or world.failures else ()
    return Result(seed, tuple(world.failures), counts, world.trace.digest() if trace else "", lines)


def _stage(host: Host, world: World) -> Stage:
    """Draws the cast: few roles in each world, so that a seed is short, and others in each."""
    rng = world.rng
    partitions = 2 if rng.random() < 0.3 else 1
    image = _image(host, partitions)
    kind = rng.randrange(14)
    maintained, by_hand = kind < 4, kind == 6
    recreated = kind in {4, 5, 6}
    holes = kind == 7 or (maintained and rng.random() < 0.3)
    stage = Stage(
        world,
        Bucket(world, _weather(world, maintained)),
        partitions,
        leaps=rng.choice((0.1, 0.3)) if maintained else 0.0,
        recreated=recreated,
        by_hand=by_hand,
    )
    # By generators of their own, so that the other seeds stay as they were.
    stage.rewriting = maintained and random.Random(f"rewriting of {world.seed}").random() < REWRITING
    host.begin(world, stage.bucket)
    for written in image:
        stage.bucket.write(written.path, written.data, None)
    writers = (NamedProducer, NamedProducer, CountingProducer, AnonymousProducer, Function, Poster)
    for number in range(rng.randrange(1, 4)):
        writer = writers[rng.randrange(len(writers))]
        writer(stage, number, batches=rng.randrange(2, 9))
    if rng.random() < 0.6:
        # By a generator of its own, so that the other seeds stay as they were.
        realtime = random.Random(f"engine of {world.seed}").random() < REALTIME
        (RealtimePipeline if realtime else Pipeline)(stage, 0)
        if rng.random() < 0.4:
            Reading(stage, 5, topic=OUTPUT)
    for number in range(rng.randrange(0 if recreated else 1, 3)):
        Reading(stage, 6 + number, topic=TOPIC)
    if maintained:
        Maintenance(stage, 8, runs=rng.randrange(2, 7))
    if stage.rewriting:
        Eraser(stage, 3, random.Random(f"erasure of {world.seed}"))
    if recreated:
        (Hand if by_hand else Owner)(stage, 9, times=rng.randrange(1, 3))
    if holes:
        Slip(stage, 4, times=rng.randrange(1, 4))
    return stage


def _group_stage(host: Host, world: World) -> tuple[Stage, Truth]:
    """Draws the cast of a world with a consumer group."""
    rng = world.rng
    world.most_steps *= 4  # members that wait send heartbeats
    partitions = rng.randrange(1, 4)
    image = _image(host, partitions)
    stage = Stage(world, Bucket(world, _weather(world, maintained=rng.random() < 0.4)), partitions, leaps=0.0)
    host.begin(world, stage.bucket)
    for written in image:
        stage.bucket.write(written.path, written.data, None)
    writers = (NamedProducer, CountingProducer, AnonymousProducer)
    for number in range(rng.randrange(1, 3)):
        writers[rng.randrange(len(writers))](stage, number, batches=rng.randrange(4, 20))
    strategies = get_args(Strategy)
    truth = Truth(
        stage,
        auto_commit=rng.random() < 0.5,
        strategy=strategies[rng.randrange(len(strategies))],
        start="latest" if rng.random() < 0.3 else "beginning",
    )
    for number in range(rng.randrange(1, 5)):
        Member(stage, 10 + number, truth)
    return stage, truth


def _weather(world: World, maintained: bool) -> Weather:
    """Draws the faults: some kinds in each seed, so that each gets its chance to do harm undisturbed."""
    rng = world.rng
    odds = {kind: rng.choice((0.01, 0.03, 0.1)) for kind in FAULTS if rng.random() < 0.5}
    if not maintained:
        odds.pop("sleep", None)
        odds.pop("suspend", None)
    if "refused" in odds:
        odds["refused"] /= 5
    if maintained and rng.random() < 0.25:
        odds = {"suspend": rng.choice((0.01, 0.03, 0.1))}  # which other faults would only end too soon
    return Weather(odds, rng.randrange(20, 600), long_pauses=maintained or rng.random() < 0.2)


@lru_cache(maxsize=4)
def _image(host: Host, partitions: int) -> tuple[Written, ...]:
    """The topics as they are when a seed begins: always the same, so they are created once."""
    world = World(partitions)
    bucket = Bucket(world, _CALM)

    def create(process: Process) -> None:
        process.clock.wall_offset_us = 0
        store = Connection(bucket, process)
        create_topic(store, TOPIC, SCHEMA, partitions=partitions, clock=process.clock)
        create_topic(store, OUTPUT, SCHEMA, clock=process.clock)
        create_topic(store, dead_letters(OUTPUT), SCHEMA, clock=process.clock)

    host.begin(world, bucket)
    world.spawn("setup", create)
    world.run()
    if world.failures:
        raise RuntimeError(world.failures[0])
    return tuple(bucket.entries)
