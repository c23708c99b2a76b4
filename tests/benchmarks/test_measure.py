"""The arithmetic of the benchmark: what is sent when, and what figures are made of what arrived."""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import measure
from benchmarks.measure import Arrivals, Latencies, cdf, latencies, percentiles, published_csv, verdict, windows
from benchmarks.spec import BURST, Spec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BEGIN = 1_795_261_405.25
SPEC = Spec(peer="kafka", rate=100, seconds=10.0, warm_up_s=2.0, producers=2)


def arrivals_of(batches: Sequence[tuple[float, int, Sequence[int]]]) -> Arrivals:
    """From (seconds after the begin, producer, numbers)."""
    arrivals = Arrivals()
    for after, producer, numbers in batches:
        arrivals.add(BEGIN + after, np.full(len(numbers), producer), np.array(numbers, np.int64))
    return arrivals


def judged(batches: Sequence[tuple[float, int, Sequence[int]]], sent: list[int]) -> measure.Verdict:
    spec = dataclasses.replace(SPEC, producers=len(sent))
    return verdict(spec, arrivals_of(batches), sent, sent)


# Pacing

specs = st.builds(
    Spec,
    peer=st.just("kafka"),
    rate=st.integers(1, 60_000),
    pacing=st.sampled_from(["smooth", "bursty"]),
    seconds=st.floats(0.1, 4.0),
    producers=st.integers(1, 7),
)


@given(specs)
def test_producers_together_send_the_rate_times_the_seconds(spec: Spec) -> None:
    counts = [spec.count(p) for p in range(spec.producers)]
    assert sum(counts) == round(spec.rate * spec.seconds)
    assert max(counts) - min(counts) <= 1


@given(specs, st.integers(0, 6), st.floats(0.0, 5.0))
def test_due_is_the_number_of_messages_that_are_meant_to_be_sent_by_then(
    spec: Spec, who: int, elapsed_s: float
) -> None:
    producer = who % spec.producers
    intended = spec.intended(0, spec.count(producer))
    assert np.all(np.diff(intended) >= 0)
    # Half a message's time away from any message's own time, where floating point has no say.
    elapsed_s = (math.floor(elapsed_s * spec.rate) + 0.5) / spec.rate
    assert spec.due(elapsed_s, producer) == np.count_nonzero(intended <= elapsed_s)


@given(specs, st.integers(0, 6), st.integers(0, 200_000))
def test_a_message_is_due_at_its_own_time(spec: Spec, who: int, which: int) -> None:
    producer = who % spec.producers
    if not (count := spec.count(producer)):
        return
    number = which % count
    at = float(spec.intended(number, number + 1)[0])
    intended = spec.intended(0, count)
    assert spec.due(at, producer) == np.count_nonzero(intended <= at) > number


@pytest.mark.parametrize("pacing", ["smooth", "bursty"])
def test_nothing_is_due_before_the_begin(pacing: str) -> None:
    assert dataclasses.replace(SPEC, pacing=pacing).due(-0.001, 0) == 0


def test_smooth_messages_are_evenly_spaced() -> None:
    assert SPEC.intended(0, 4).tolist() == [0.0, 0.02, 0.04, 0.06]  # two producers of 50 a second each
    assert SPEC.intended(100, 101).tolist() == [2.0]


def test_bursts_follow_each_message_whose_number_is_a_multiple_of_10_000() -> None:
    spec = Spec(peer="kafka", rate=20_000, pacing="bursty", seconds=2.0, producers=1)
    intended = spec.intended(0, spec.count(0))
    times, sizes = np.unique(intended, return_counts=True)
    assert times.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert sizes.tolist() == [BURST + 1, BURST, BURST, BURST - 1]


# What the reader records


def test_arrivals_survive_being_saved(tmp_path: Path) -> None:
    arrivals = arrivals_of([(0.5, 0, [0, 1]), (0.75, 1, [0]), (0.8, 1, [])])
    arrivals.save(tmp_path / "arrivals.npz")
    again = Arrivals.load(tmp_path / "arrivals.npz")
    assert len(again) == 3
    assert again.at.tolist() == [BEGIN + 0.5, BEGIN + 0.75]
    assert again.counts.tolist() == [2, 1]
    assert again.producer.tolist() == [0, 0, 1]
    assert again.number.tolist() == [0, 1, 0]
    assert (again.producer.dtype, again.number.dtype) == (np.uint8, np.uint32)
    again.add(BEGIN + 1, np.array([1]), np.array([1]))
    assert again.number.tolist() == [0, 1, 0, 1]


def test_arrivals_of_nothing_survive_being_saved(tmp_path: Path) -> None:
    Arrivals().save(tmp_path / "arrivals.npz")
    assert len(Arrivals.load(tmp_path / "arrivals.npz")) == 0


def test_each_row_has_a_producer_and_a_number() -> None:
    with pytest.raises(ValueError, match="got 2 and 1"):
        Arrivals().add(BEGIN, np.array([0, 0]), np.array([0]))


# Verdict


def test_a_clean_run_has_no_problems() -> None:
    found = judged([(1.0, 0, range(5)), (1.1, 1, range(4)), (1.2, 0, range(5, 10))], [10, 4])
    assert (found.sent, found.acknowledged, found.seen) == (14, 14, 14)
    assert found.problems == []


def test_loss_is_counted_also_at_the_end() -> None:
    found = judged([(1.0, 0, [0, 1, 3]), (1.0, 1, [0])], [5, 3])
    assert found.lost == 4  # 2 and 4 of the one, 1 and 2 of the other
    assert (found.duplicated, found.out_of_order, found.unknown) == (0, 0, 0)
    assert found.problems == ["4 messages lost"]


def test_a_repeated_batch_is_both_duplicated_and_out_of_order() -> None:
    found = judged([(1.0, 0, [0, 1, 2]), (1.1, 0, [0, 1, 2]), (1.2, 0, [3])], [4])
    assert (found.duplicated, found.out_of_order, found.lost) == (3, 2, 0)


@pytest.mark.parametrize(
    ("producer", "number"), [(0, 3), (0, -1), (2, 0), (-1, 0), (300, 0), (0, 2**32 + 1), (0, 2**40)]
)
def test_ids_that_were_never_sent_are_unknown_and_disturb_nothing_else(producer: int, number: int) -> None:
    found = judged([(1.0, 0, [0, 1]), (1.0, producer, [number]), (1.0, 0, [2]), (1.1, 1, [0])], [3, 1])
    assert (found.unknown, found.seen) == (1, 5)
    assert (found.lost, found.duplicated, found.out_of_order) == (0, 0, 0)
    assert found.problems == ["1 message with an id that was never sent"]


def test_missing_acknowledgements_are_a_problem() -> None:
    found = verdict(SPEC, arrivals_of([(1.0, 0, [0, 1]), (1.0, 1, [0])]), [2, 1], [1, 0])
    assert found.problems == ["2 messages not acknowledged"]


def test_counts_must_be_of_all_producers() -> None:
    with pytest.raises(ValueError, match="2 producers need as many counts, got 1"):
        verdict(SPEC, Arrivals(), [1], [1])


@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 12), max_size=8)), max_size=12),
    st.lists(st.integers(0, 10), min_size=2, max_size=2),
)
def test_the_verdict_is_that_of_a_loop_over_the_rows(batches: list[tuple[int, list[int]]], sent: list[int]) -> None:
    lost = sum(sent)
    duplicated = out_of_order = unknown = 0
    before: dict[int, set[int]] = {0: set(), 1: set()}
    for producer, numbers in batches:
        for number in numbers:
            if producer >= len(sent) or number >= sent[producer]:
                unknown += 1
                continue
            seen = before[producer]
            duplicated += number in seen
            lost -= number not in seen
            out_of_order += any(other > number for other in seen)
            seen.add(number)
    found = judged([(1.0, producer, numbers) for producer, numbers in batches], sent)
    assert (found.lost, found.duplicated, found.out_of_order, found.unknown) == (
        lost, duplicated, out_of_order, unknown,
    )  # fmt: skip


# Latencies


def test_latency_counts_from_the_intended_send_time() -> None:
    found = latencies(SPEC, arrivals_of([(0.5, 0, [0, 1, 2]), (3.0, 1, [100, 101])]), BEGIN)
    assert found.intended_s.tolist() == [0.0, 0.02, 0.04, 2.0, 2.02]
    assert found.latency_s.tolist() == pytest.approx([0.5, 0.48, 0.46, 1.0, 0.98], abs=1e-6)


def test_messages_of_the_warm_up_do_not_count_and_the_first_one_after_it_does() -> None:
    found = latencies(SPEC, arrivals_of([(2.5, 0, [98, 99, 100, 101])]), BEGIN)
    assert found.intended_s.tolist() == [1.96, 1.98, 2.0, 2.02]
    assert found.after_warm_up.tolist() == [False, False, True, True]
    assert found.measured_s.tolist() == pytest.approx([0.5, 0.48], abs=1e-6)


def test_only_the_first_arrival_of_a_message_has_a_latency() -> None:
    found = latencies(SPEC, arrivals_of([(3.0, 0, [101, 100, 101]), (4.0, 0, [100, 102])]), BEGIN)
    assert found.intended_s.tolist() == [2.02, 2.0, 2.04]
    assert found.latency_s.tolist() == pytest.approx([0.98, 1.0, 1.96], abs=1e-6)


def test_messages_that_were_never_sent_have_no_latency() -> None:
    assert len(latencies(SPEC, arrivals_of([(3.0, 0, [500]), (3.0, 7, [1])]), BEGIN).latency_s) == 0


def test_negative_latencies_are_kept_and_counted() -> None:
    found = latencies(SPEC, arrivals_of([(2.1, 0, [100, 110])]), BEGIN)
    assert found.negative == 1
    assert found.measured_s.tolist() == pytest.approx([0.1, -0.1], abs=1e-6)


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_latencies_do_not_depend_on_the_size_of_a_block(seed: int, block: int) -> None:
    chance = np.random.default_rng(seed)
    arrivals = Arrivals()
    for after in np.sort(chance.uniform(0, 12, 8)):
        size = chance.integers(1, 9)
        arrivals.add(BEGIN + after, chance.integers(0, 3, size), chance.integers(0, 510, size))
    whole = latencies(SPEC, arrivals, BEGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "BLOCK", block)
        again = latencies(SPEC, arrivals, BEGIN)
        assert windows(again, 10.0) == windows(whole, 10.0)
    for name in ("latency_s", "intended_s", "after_warm_up"):
        assert np.array_equal(getattr(whole, name), getattr(again, name))


# Percentiles


def test_percentiles_are_values_of_the_nearest_rank() -> None:
    thousand = np.random.default_rng(1).permutation(np.arange(1, 1001)) / 1000
    assert percentiles(thousand) == {50: 0.5, 75: 0.75, 85: 0.85, 95: 0.95, 99: 0.99, 99.9: 0.999, 100: 1.0}
    assert percentiles(np.array([1.0, 2.0, 4.0]), (50, 66, 67, 100)) == {50: 2.0, 66: 2.0, 67: 4.0, 100: 4.0}
    assert percentiles(np.array([7.0])) == dict.fromkeys(measure.PERCENTILES, 7.0)


def test_percentiles_of_nothing_are_none() -> None:
    assert percentiles(np.empty(0)) == dict.fromkeys(measure.PERCENTILES)


@given(st.lists(st.integers(-5_000, 5_000), min_size=1, max_size=300), st.sampled_from(measure.PERCENTILES))
def test_a_percentile_is_the_least_value_that_enough_are_at_or_below(millis: list[int], p: float) -> None:
    found = percentiles(np.array(millis) / 1000, (p,))[p]
    enough = [x for x in millis if sum(y <= x for y in millis) * 100 >= Fraction(str(p)) * len(millis)]
    assert found == min(enough) / 1000


def test_a_rank_is_not_moved_by_floating_point() -> None:
    values = np.arange(1, 41_001) / 1000  # 41,000 * 99.9 / 100 is a little more than 40,959 in floating point
    assert percentiles(values, (99.9,)) == {99.9: 40.959}


# Distribution


@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=400))
def test_the_distribution_rises_and_each_pair_is_true(millis: list[int]) -> None:
    values = np.array(millis) / 1000
    pairs = cdf(values, 40)
    assert len(pairs) <= 40
    assert pairs[-1] == (max(millis) / 1000, 1.0)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(pairs))
    for latency, part in pairs:
        assert part == pytest.approx(np.count_nonzero(values <= latency) / len(values), abs=1e-9)


def test_the_distribution_shows_the_tail() -> None:
    values = np.random.default_rng(2).lognormal(-1.5, 0.4, 1_000_000).astype(np.float32)
    parts = np.array([part for _, part in cdf(values)])
    for low, high in [(0, 0.5), (0.5, 0.9), (0.9, 0.99), (0.99, 0.999), (0.999, 0.9999), (0.9999, 0.99999)]:
        assert np.count_nonzero((parts > low) & (parts <= high)) >= 10
    assert cdf(np.empty(0)) == []


# Windows


def test_windows_are_stretches_of_intended_time() -> None:
    intended = np.array([0.0, 4.9, 5.0, 12.0, 13.0])
    found = windows(Latencies(np.array([1, 3, 2, 5, 4], np.float32), intended, intended >= 5), 13.5)
    assert [dataclasses.astuple(w) for w in found] == [
        (0.0, 5.0, 2, 1.0, 3.0, 3.0),
        (5.0, 10.0, 1, 2.0, 2.0, 2.0),
        (10.0, 13.5, 2, 4.0, 5.0, 5.0),
    ]


def test_windows_without_messages_are_left_out() -> None:
    nothing = np.empty(0)
    assert windows(Latencies(nothing, nothing, nothing.astype(bool)), 60.0) == []
    intended = np.array([1.0, 11.0])
    assert [w.from_s for w in windows(Latencies(np.ones(2), intended, intended > 0), 15.0)] == [0.0, 10.0]


@pytest.mark.parametrize(("seconds", "length", "count"), [(60, 5, 12), (600, 5, 120), (601, 10, 61), (7200, 60, 120)])
def test_there_are_not_too_many_windows(seconds: int, length: int, count: int) -> None:
    intended = np.arange(seconds, dtype=float)
    found = windows(Latencies(np.ones(seconds), intended, intended >= 0), float(seconds))
    assert len(found) == count
    assert found[0].to_s == length
    assert sum(w.messages for w in found) == seconds


# The published format


def published(values: Sequence[float], *, rate: int = 1_000_000, arrived: Sequence[float] | None = None) -> list[str]:
    at = np.full(len(values), 31.0) if arrived is None else np.array(arrived)
    return published_csv(np.array(values, float), at, rate).split("\n")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.005, 0.015, 0.025, 0.105], "0.01,0.02,0.02,0.02,0.02"),
        ([0.29] * 10, "0.28,0.28,0.28,0.28,0.28"),
        ([0.5], "0.00,0.00,0.00,0.00,0.00"),
        ([], "0.00,0.00,0.00,0.00,0.00"),
        ([0.10] * 99 + [2.0], "0.10,0.10,0.10,0.10,0.10"),
        ([0.10] * 98 + [2.0] * 2, "0.10,0.10,0.10,0.10,2.00"),
        ([i / 100 + 0.001 for i in range(100)], "0.49,0.74,0.84,0.94,0.98"),
        ([123.4] * 200, "100.00,100.00,100.00,100.00,100.00"),
        ([-0.5] * 10, "0.00,0.00,0.00,0.00,0.00"),
    ],
)
def test_published_percentiles(values: list[float], expected: str) -> None:
    lines = published(values)
    assert lines[0] == "time_from_start,p50,p75,p85,p95,p99"
    assert lines[1:] == [f"{31 if values else 0:.2f},{expected}"]


def test_published_lines_come_each_half_second_of_stream_and_at_the_end() -> None:
    arrived = [30.0, 30.5, 31.0, 31.5, 32.0, 32.5]  # the first is not after the warm-up
    assert published([9.0, 0.1, 0.1, 3.0, 3.0, 3.0], rate=4, arrived=arrived) == [
        "time_from_start,p50,p75,p85,p95,p99",
        "31.00,0.10,0.10,0.10,0.10,0.10",
        "32.00,0.10,3.00,3.00,3.00,3.00",
        "32.50,0.10,3.00,3.00,3.00,3.00",
    ]


def test_published_lines_end_with_the_result_even_if_it_repeats_one() -> None:
    lines = published([1.0] * 4, rate=4, arrived=[31.0, 32.0, 33.0, 34.0])
    assert lines[2:] == ["34.00,1.00,1.00,1.00,1.00,1.00"] * 2
    assert published_csv(np.ones(4), np.arange(31.0, 35.0), 4)[-1] != "\n"


def test_a_rate_of_one_has_a_published_line_for_each_row() -> None:
    assert len(published([1.0, 1.0, 1.0], rate=1, arrived=[31.0, 32.0, 33.0])) == 1 + 3 + 1


def test_published_rows_are_taken_in_order_of_arrival() -> None:
    lines = published([5.0, 5.0, 1.0, 1.0], rate=4, arrived=[33.0, 34.0, 31.0, 32.0])
    assert lines[1] == "32.00,1.00,1.00,1.00,1.00,1.00"


@given(st.integers(0, 2**32), st.integers(1, 50))
def test_published_csv_is_that_of_a_loop_over_the_rows(seed: int, rate: int) -> None:
    chance = np.random.default_rng(seed)
    size = int(chance.integers(0, 120))
    arrived = np.sort(chance.uniform(28, 34, size))
    values = np.maximum(0.0, chance.lognormal(-1, 2, size))
    histogram = [0] * 10_001
    kept = 0
    lines = ["time_from_start,p50,p75,p85,p95,p99"]

    def line(at: float) -> str:
        cells = [f"{at:.2f}"]
        for p in (50, 75, 85, 95, 99):
            reached = bucket = 0
            while (reached := reached + histogram[bucket]) < math.floor(kept * p / 100):
                bucket += 1
            cells.append(f"{bucket / 100:.2f}")
        return ",".join(cells)

    for at, value in zip(arrived, values, strict=True):
        if at <= 30:
            continue
        histogram[int(min(value, 100.0) * 100)] += 1
        kept += 1
        if kept % max(1, rate // 2) == 0:
            lines.append(line(at))
    lines.append(line(arrived[-1] if size else 0.0))
    assert published_csv(values, arrived, rate) == "\n".join(lines)


def test_the_ends_of_a_long_run_are_told_apart() -> None:
    spec = Spec("x", 1, seconds=1_000.0, warm_up_s=100.0)
    due = np.arange(1_000.0)
    latency = np.where(due < 100, 9.0, np.where(due < 400, 0.1, np.where(due < 700, 5.0, 0.2))).astype(np.float32)
    assert measure.ends(Latencies(latency, due, due >= 100), spec) == (pytest.approx(0.1), pytest.approx(0.2))
