"""Who gets which partition: the strategies as tables, and what holds for every group."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerless.groups.assignment import STRATEGIES, Partition, Strategy, assign

Subscriptions = dict[str, dict[str, int]]


def text(assigned: dict[Partition, str]) -> dict[str, str]:
    """``{"a": "t0 t1"}``"""
    found: dict[str, list[str]] = {}
    for (topic, number), member in sorted(assigned.items()):
        found.setdefault(member, []).append(f"{topic}{number}")
    return {member: " ".join(partitions) for member, partitions in found.items()}


def owned(**members: str) -> dict[Partition, str]:
    return {(p[:-1], int(p[-1])): member for member, partitions in members.items() for p in partitions.split()}


@pytest.mark.parametrize(
    ("subscriptions", "expected"),
    [
        ({}, {}),
        ({"a": {"t": 3}}, {"a": "t0 t1 t2"}),
        # Whoever comes first gets what is left over, of each topic.
        ({"b": {"t": 3}, "a": {"t": 3}}, {"a": "t0 t1", "b": "t2"}),
        ({"a": {"t": 3, "u": 3}, "b": {"t": 3, "u": 3}}, {"a": "t0 t1 u0 u1", "b": "t2 u2"}),
        ({"a": {"t": 1}, "b": {"t": 1}}, {"a": "t0"}),
        # Only who reads a topic gets of it.
        ({"a": {"t": 2}, "b": {"t": 2, "u": 2}}, {"a": "t0", "b": "t1 u0 u1"}),
        # Who opened the topic when it had one partition cannot read the others.
        ({"a": {"t": 1}, "b": {"t": 3}}, {"a": "t0", "b": "t1 t2"}),
    ],
)
def test_range_gives_consecutive_partitions(subscriptions: Subscriptions, expected: dict[str, str]) -> None:
    assert text(assign("range", subscriptions, owned(b="t0 t1 t2"))) == expected


@pytest.mark.parametrize(
    ("subscriptions", "owners", "expected"),
    [
        ({}, {}, {}),
        ({"a": {"t": 4}, "b": {"t": 4}}, {}, {"a": "t0 t2", "b": "t1 t3"}),
        # One that joins gets its share, and nothing else moves.
        (
            {"a": {"t": 4}, "b": {"t": 4}, "c": {"t": 4}},
            owned(a="t0 t2", b="t1 t3"),
            {"a": "t0", "b": "t1 t3", "c": "t2"},
        ),
        # What one that leaves had goes to who has least.
        ({"a": {"t": 4}, "b": {"t": 4}}, owned(a="t0", b="t1 t3", c="t2"), {"a": "t0 t2", "b": "t1 t3"}),
        ({"a": {"t": 2}, "b": {"t": 2}, "c": {"t": 2}}, owned(c="t0", b="t1"), {"b": "t1", "c": "t0"}),
        # It looks at all topics together.
        ({"a": {"t": 1, "u": 1}, "b": {"t": 1, "u": 1}}, {}, {"a": "t0", "b": "u0"}),
        # Who does not read a topic any more loses it.
        ({"a": {"u": 1}, "b": {"t": 1}}, owned(a="t0", b="u0"), {"a": "u0", "b": "t0"}),
        ({"a": {"t": 1}, "b": {"t": 3}}, owned(a="t0 t1 t2"), {"a": "t0", "b": "t1 t2"}),
    ],
)
def test_sticky_moves_little(
    subscriptions: Subscriptions, owners: dict[Partition, str], expected: dict[str, str]
) -> None:
    assert text(assign("cooperative-sticky", subscriptions, owners)) == expected


names = st.sampled_from("abcdefgh")
topics = st.sampled_from("tuv")
any_owners = st.dictionaries(st.tuples(topics, st.integers(0, 9)), st.sampled_from("abcdefghxyz"))
# Members that know the topics alike, and members that do not.
alike = st.tuples(st.sets(names, min_size=1), st.dictionaries(topics, st.integers(1, 9), min_size=1)).map(
    lambda drawn: {name: dict(drawn[1]) for name in drawn[0]}
)
mixed = st.dictionaries(names, st.dictionaries(topics, st.integers(1, 9)), min_size=1)


@given(strategy=st.sampled_from(STRATEGIES), subscriptions=mixed, owners=any_owners)
def test_each_partition_has_one_owner_that_can_read_it(
    strategy: Strategy, subscriptions: Subscriptions, owners: dict[Partition, str]
) -> None:
    assigned = assign(strategy, subscriptions, owners)
    most = {topic: max(s.get(topic, 0) for s in subscriptions.values()) for topic in "tuv"}
    assert set(assigned) == {(topic, number) for topic, count in most.items() for number in range(count)}
    for (topic, number), member in assigned.items():
        assert number < subscriptions[member][topic]
    again = assign(strategy, dict(reversed(list(subscriptions.items()))), owners)
    assert again == assigned, "the order of the members must not matter"


@given(strategy=st.sampled_from(STRATEGIES), subscriptions=alike, owners=any_owners)
def test_shares_differ_by_one_at_most(
    strategy: Strategy, subscriptions: Subscriptions, owners: dict[Partition, str]
) -> None:
    assigned = assign(strategy, subscriptions, owners)
    for topic in [*"tuv"] if strategy == "range" else [None]:
        counts = Counter({member: 0 for member in subscriptions})
        counts.update(member for key, member in assigned.items() if topic in (None, key[0]))
        assert max(counts.values()) - min(counts.values()) <= 1


@settings(max_examples=200)
@given(subscriptions=alike, owners=any_owners)
def test_sticky_moves_as_few_as_a_fair_division_allows(
    subscriptions: Subscriptions, owners: dict[Partition, str]
) -> None:
    assigned = assign("cooperative-sticky", subscriptions, owners)
    before = {key: owner for key, owner in owners.items() if key in assigned and owner in subscriptions}
    moved = sum(assigned[key] != owner for key, owner in before.items())
    held = sorted((list(before.values()).count(member) for member in subscriptions), reverse=True)
    share, rest = divmod(len(assigned), len(subscriptions))
    # Who has most keeps the larger shares.
    fewest = sum(max(0, count - share - (number < rest)) for number, count in enumerate(held))
    assert moved == fewest
    assert assign("cooperative-sticky", subscriptions, assigned) == assigned
