"""The soak's judge finds what is planted, and its memory rule finds a rise. No Spark, no server."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import messages
from benchmarks.judge import DEAD_LETTERS, OUTPUT, Seen
from brokerless.consumer import Batch
from brokerless.testing.faults import fits_key
from tests.soak import reader
from tests.soak.faults import STORMS, Strike, storm, strikes
from tests.soak.judge import judge
from tests.soak.load import (
    BAD_EVERY,
    MALFORMED,
    Journal,
    Plan,
    Sent,
    due_ms,
    is_bad,
    is_damaged,
    merged,
    read_journal,
    rows,
)
from tests.soak.memory import Sample, growth
from tests.soak.roles import Role, last_words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

pytestmark = pytest.mark.faults

TOTALS = [2500, 2500]
EVERYTHING = Sent(np.array([[0, 2500]]), np.array([[0, 2500]]))


def delivered(seen: Seen, producer: int, numbers: np.ndarray, *, size: int = 300) -> None:
    """Add what a pipeline makes of these messages: commits of ``size``, malformed ones among the dead letters."""
    for first in range(0, len(numbers), size):
        batch = numbers[first : first + size]
        for outlet, mine in ((OUTPUT, ~is_bad(batch)), (DEAD_LETTERS, is_bad(batch))):
            seen.add(np.full(np.count_nonzero(mine), producer), batch[mine], outlet)


def seen_with(numbers: np.ndarray) -> Seen:
    """A reader that saw all of producer 0, and these of producer 1."""
    seen = Seen(TOTALS)
    delivered(seen, 0, np.arange(2500))
    delivered(seen, 1, numbers)
    return seen


def found(seen: Seen, journals: list[Sent] | None = None) -> dict[str, int]:
    """What the judge finds, by kind."""
    verdict = judge(seen, journals or [EVERYTHING, EVERYTHING])
    kinds = {"lost": verdict.lost, "phantom": verdict.phantom, **verdict.counts}
    return {name: count for name, count in kinds.items() if count and name not in {"rows", "dead_letters"}}


def test_a_clean_run_has_no_failures() -> None:
    verdict = judge(seen_with(np.arange(2500)), [EVERYTHING, EVERYTHING])
    assert verdict.failures == []
    assert (verdict.sent, verdict.acknowledged, verdict.counts["rows"]) == (5000, 5000, 5000)
    assert verdict.counts["dead_letters"] == 4


def test_losses_are_counted_and_named() -> None:
    seen = seen_with(np.delete(np.arange(2500), [7, 8, 2499]))
    assert found(seen) == {"lost": 3}
    failures = judge(seen, [EVERYTHING, EVERYTHING]).failures
    assert "lost: messages 7 to 8 of producer 1" in failures
    assert "lost: messages 2499 to 2499 of producer 1" in failures


def test_a_message_in_both_outlets_is_there_twice() -> None:
    seen = seen_with(np.arange(2500))
    seen.add(np.array([1]), np.array([BAD_EVERY - 1]), misplaced=np.array([True]))
    assert found(seen) == {"duplicated": 1, "disordered": 1, "misplaced": 1}


def test_a_message_that_was_not_sent_is_a_phantom() -> None:
    short = Sent(np.array([[0, 2400]]), np.array([[0, 2400]]))
    assert found(seen_with(np.arange(2401)), [EVERYTHING, short]) == {"phantom": 1}


@pytest.mark.parametrize("there", [2300, 2350, 2400])
def test_what_was_not_acknowledged_may_be_there_or_not(there: int) -> None:
    journal = Sent(np.array([[0, 2400]]), np.array([[0, 2300]]))
    verdict = judge(seen_with(np.arange(there)), [EVERYTHING, journal])
    assert verdict.failures == []
    assert verdict.unacknowledged_seen == there - 2300


def test_a_damaged_date_is_found() -> None:
    plan = Plan(rate=1000, seconds=5.0, producers=2, seed=1, begin=1.7e9, retention_s=300.0)
    numbers = np.arange(4)
    sent_ms = due_ms(plan.spec, plan.begin, numbers)
    assert not is_damaged(sent_ms, sent_ms).any()
    assert is_damaged(sent_ms + np.array([0, 0.01, np.nan, 3_600_000]), sent_ms).tolist() == [False, True, True, True]
    seen = Seen(TOTALS)
    seen.add(np.zeros(4, int), numbers, damaged=is_damaged(sent_ms + np.array([0, 1, 0, 0]), sent_ms))
    assert seen.counts["damaged"] == 1


def test_the_reader_finds_what_is_damaged_or_in_the_wrong_outlet() -> None:
    plan = Plan(rate=1000, seconds=5.0, producers=2, seed=1, begin=1.7e9, retention_s=300.0)
    numbers = np.arange(BAD_EVERY - 3, BAD_EVERY)  # of the last one, the date is malformed
    sent = rows(plan.spec, plan.begin, 0, BAD_EVERY - 3, BAD_EVERY)
    seen = Seen(TOTALS)
    parsed = pa.table({"timestamp": due_ms(plan.spec, plan.begin, numbers), "message": sent["message"]})
    reader._add(seen, Batch(reader.TOPICS[OUTPUT], 0, 1, 0, parsed), plan, plan.begin)
    rejected = sent.append_column("_topic", [[plan.spec.topic(1)] * 3])
    reader._add(seen, Batch(reader.TOPICS[DEAD_LETTERS], 0, 1, 0, rejected), plan, plan.begin)
    assert (seen.counts["misplaced"], seen.counts["damaged"], seen.counts["duplicated"]) == (1 + 2, 3, 3)


def test_a_reader_that_is_killed_goes_on_with_what_it_saved(tmp_path: Path) -> None:
    state = tmp_path / "reader.npz"
    seen, positions = Seen.load(state, TOTALS)
    assert positions == {}
    delivered(seen, 0, np.arange(600))
    seen.add(np.array([1]), np.array([5]))
    seen.add(np.array([1]), np.array([4]))
    seen.save(state, {"out": 12, "out.dead_letters": 3})
    delivered(seen, 0, np.arange(600, 900))  # read and not saved: it is killed here
    again, positions = Seen.load(state, TOTALS)
    assert positions == {"out": 12, "out.dead_letters": 3}
    assert again.counts["disordered"] == 1
    again.add(np.array([1]), np.array([3]))
    assert again.counts["disordered"] == 2  # what is late is so against what was seen before it was killed, too
    assert again.examples[:1] == ["disordered: message 4 of producer 1"]
    delivered(again, 0, np.arange(600, 2500))
    assert again.counts["duplicated"] == 0
    assert again.is_there(0).all()
    again.add(np.array([0]), np.array([599]))
    assert again.counts["duplicated"] == 1


def test_a_journal_survives_a_torn_record(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert read_journal(path).count == 0
    one, other = Journal(path), Journal(path)
    one.sent(0, 10)
    one.acknowledged(0, 10)
    other.sent(10, 30)
    other.sent(10, 20)
    other.acknowledged(10, 20)
    with path.open("ab") as file:
        file.write(b"torn")
    journal = read_journal(path)
    assert journal.sent.tolist() == [[0, 30]]
    assert journal.acknowledged.tolist() == [[0, 20]]
    assert journal.count == 20


def test_ranges_are_merged_and_gaps_stay() -> None:
    ranges = np.array([[20, 30], [0, 5], [5, 8], [22, 25], [9, 10]])
    assert merged(ranges).tolist() == [[0, 8], [9, 10], [20, 30]]


def test_malformed_messages_keep_their_ids() -> None:
    plan = Plan(rate=1000, seconds=5.0, producers=2, seed=1, begin=1.7e9, retention_s=300.0)
    table = rows(plan.spec, plan.begin, 1, 990, 1010)
    assert [n for n, date in enumerate(table["date"].to_pylist(), start=990) if date == MALFORMED] == [999]
    producers, numbers = messages.ids(table["message"].chunk(0))
    assert set(producers.tolist()) == {1}
    assert numbers.tolist() == list(range(990, 1010))


def life(mb: list[float], *, incarnation: int = 1, born_s: float = 0.0) -> list[Sample]:
    return [Sample(born_s + 5.0 * n, incarnation, 5.0 * n, size) for n, size in enumerate(mb)]


def test_memory_that_rises_over_a_life_is_not_flat() -> None:
    (rising,) = growth(life([200 + 4 * n for n in range(120)]))
    assert rising.compared == "life"
    assert not rising.is_flat
    (warm,) = growth(life([100 + 10 * min(n, 40) for n in range(120)]))
    assert warm.is_flat


def test_each_life_that_begins_higher_is_not_flat() -> None:
    lives = [life([300 + 100 * n] * 12, incarnation=n + 1, born_s=60.0 * n) for n in range(6)]
    (rising,) = growth([sample for one in lives for sample in one])
    assert rising.compared == "equal ages"
    assert (rising.early_mb, rising.late_mb) == (400, 700)
    assert not rising.is_flat


def test_equal_ages_are_compared_not_short_lives_with_long_ones() -> None:
    aging: list[float] = [100 + 20 * n for n in range(16)]
    lives = [*life(aging[:4]), *life(aging, incarnation=2, born_s=20.0), *life(aging, incarnation=3, born_s=100.0)]
    assert [one.is_flat for one in growth(lives) if one.compared == "equal ages"] == [True]


def test_too_little_is_not_judged() -> None:
    assert [one.compared for one in growth(life([100.0, 900.0]))] == ["not judged"]
    assert [one.compared for one in growth([])] == ["not judged"]


def test_a_seed_gives_the_same_faults_and_a_deck_has_all_of_them() -> None:
    deck = list(islice(strikes(7, 2), 36))
    assert deck == list(islice(strikes(7, 2), 36))
    assert deck != list(islice(strikes(8, 2), 36))
    names = {strike.name for strike in islice(strikes(7, 2), 100)}
    assert set(STORMS) < names
    assert {
        "kill pipeline",
        "replace producer-0",
        "kill JVM pipeline",
        "kill reader",
        "pause producer-1",
        "kill server",
    } < names
    assert "kill worker pipeline" not in names  # in real-time mode there is none
    assert "kill worker pipeline" in {strike.name for strike in islice(strikes(7, 2, workers=True), 100)}


def test_every_storm_can_be_played() -> None:
    for name in STORMS:
        played = storm(Strike("storm", name, 1.0, 3))
        assert played.rates == STORMS[name]
        # Log entries bear no checksum: to damage them would be to attack what is not claimed.
        assert fits_key(played.key, ["root/t/_delta_log/00000000000000000007.json"]) == (name != "Corrupted")
        assert fits_key(played.key, ["root/t/part-1.5bd1ff71.snappy.parquet"])


@pytest.fixture
def role(tmp_path: Path) -> Iterator[Role]:
    """A role whose first process waits to be struck, whose second fails, and whose third is done."""
    acts = ["input()", "import sys; sys.exit('StoreError: gone after 7 s')", "print('{}')"]

    def start(incarnation: int, log: IO[bytes]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-S", "-c", acts[incarnation - 1]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,
        )

    role = Role("reader", start, tmp_path, lambda event: None)
    yield role
    role.stop(0.1)


def test_a_role_starts_anew_until_it_is_done(role: Role) -> None:
    role.tend()
    assert role.incarnation == 1
    role.kill()
    assert role.process.poll() == -signal.SIGKILL
    while not role.is_done:
        role.tend()
    assert role.incarnation == 3
    # What the attack killed is no finding; what ended by itself is.
    assert role.exits == ["StoreError: gone after * s (exit code 1)"]


def test_a_part_of_a_role_can_be_killed(role: Role) -> None:
    assert not role.kill_part(7, lambda one: one.name() == "java")
    assert role.process.poll() is None
    assert role.kill_part(7, lambda one: one.pid == role.process.pid)
    assert role.process.wait(10) == -signal.SIGKILL


def test_the_same_end_has_the_same_name() -> None:
    said = "Traceback\nStoreError: part-{}.5bd1ff71.parquet is gone after {} s\nThread State: RUNNABLE\n"
    one, other = (said.format(f"{n:08x}-0000-4000-8000-00000000abcd", n) for n in (1, 22))
    assert last_words(one) == last_words(other) == "StoreError: part-*.parquet is gone after * s"
    assert last_words("killed\nwithout a word\n") == "without a word"
    assert last_words("") == ""
