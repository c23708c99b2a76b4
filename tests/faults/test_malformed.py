"""Some malformed inputs of every kind, and proof that the runner notices what it is there for."""

from __future__ import annotations

import pytest

from tests.malformed.__main__ import attack_of, jobs_of, table
from tests.malformed.kinds import KINDS, kind_of
from tests.malformed.planted import FAULTS
from tests.malformed.runner import Job, Result, run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

WITHOUT_SPARK = tuple(kind for kind in KINDS if kind != "transform")
INPUTS = 20


def number_of(fault: str) -> int:
    """The number of a planted input that has this fault."""
    generate = kind_of("planted").generate
    return next(n for n in range(1000) if generate(Job("planted", 0, n).rng) == fault)


def planted(*faults: str) -> Result:
    return run([Job("planted", 0, number_of(fault)) for fault in faults], processes=1)


def test_no_malformed_input_crashes_hangs_or_takes_a_neighbour_with_it() -> None:
    result = run(jobs_of(WITHOUT_SPARK, inputs=INPUTS * len(WITHOUT_SPARK), seed=1))
    assert result.failures == []
    assert result.inputs == dict.fromkeys(WITHOUT_SPARK, INPUTS)
    for kind in WITHOUT_SPARK:  # attacks that are all harmless would prove nothing
        assert result.outcomes[kind].total() > result.outcomes[kind]["valid after all"]


@pytest.mark.spark
@pytest.mark.slow
def test_malformed_rows_are_dead_letters_one_for_one() -> None:
    result = run(jobs_of(("transform",), inputs=1, seed=1))
    assert result.failures == []
    assert result.outcomes["transform"]["dead letter"] > 200


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("abort", "died (SIGABRT)"),
        ("exit", "died (exit code 3)"),
        ("hang", "hangs"),
        ("exception", "KeyError at planted.py"),
        ("panic", "Panic"),
        ("memory", "MemoryError"),
        ("lost", "neighbours [1, 2] were delivered as [1]"),
        ("twice", "neighbours [1, 2] were delivered as [1, 2, 2]"),
    ],
)
def test_the_runner_notices_what_is_planted_and_goes_on(fault: str, words: str) -> None:
    result = planted("none", fault, "none")
    assert len(result.failures) == 1
    assert words in result.failures[0]
    assert f"--kind planted --seed 0 --number {number_of(fault)}" in result.failures[0]
    assert result.outcomes["planted"]["SchemaError"] == 2


def test_every_fault_that_can_be_planted_is_noticed_by_a_test() -> None:
    assert len({number_of(fault) for fault in FAULTS}) == len(FAULTS) == 9


def test_a_seed_and_a_number_give_the_same_input_again() -> None:
    for kind in WITHOUT_SPARK:
        first, again, other = (kind_of(kind).generate(Job(kind, seed, 3).rng) for seed in (1, 1, 2))
        assert repr(first) == repr(again) or kind in {"send", "checkpoints"}, kind  # these hold objects and functions
        assert repr(first) != repr(other), kind


def test_the_result_is_kept_with_its_counts_by_kind_and_outcome() -> None:
    result = planted("none", "lost")
    attack = attack_of(result, ("planted",), seed=0, seconds=1.5)
    assert attack.counts["inputs"] == attack.counts["planted"] == 2
    assert attack.counts["outcome SchemaError"] == 1
    assert attack.details[0]["outcomes"] == {"SchemaError": 1}
    assert attack.failures == result.failures
    assert "SchemaError" in table(result, ("planted",))
