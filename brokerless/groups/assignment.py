"""Divide partitions among the members of a group. Pure; the same arguments give the same result everywhere.

The strategies are Kafka's (``RangeAssignor``, ``CooperativeStickyAssignor``): ``range`` gives each member consecutive
partitions of each topic; ``cooperative-sticky`` moves as few partitions as a fair division allows.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

Strategy = Literal["range", "cooperative-sticky"]
STRATEGIES: Final = get_args(Strategy)

Partition = tuple[str, int]
"""A topic's name and the number of a partition."""


def assign(
    strategy: Strategy, subscriptions: Mapping[str, Mapping[str, int]], owners: Mapping[Partition, str]
) -> dict[Partition, str]:
    """Return the owner of each partition.

    Args:
        strategy: how to divide.
        subscriptions: each member's topics, with the number of partitions of each.
        owners: who has what now.
    """
    return _range(subscriptions) if strategy == "range" else _sticky(subscriptions, owners)


def _range(subscriptions: Mapping[str, Mapping[str, int]]) -> dict[Partition, str]:
    result: dict[Partition, str] = {}
    subscribers = _subscribers(subscriptions)
    # All of a topic's partitions have the same subscribers, if all know how many there are.
    for (_, members), found in groupby(subscribers, key=lambda one: (one[0], subscribers[one])):
        partitions = list(found)
        share, rest = divmod(len(partitions), len(members))
        begin = 0
        for number, member in enumerate(members):
            end = begin + share + (number < rest)
            result.update(dict.fromkeys(partitions[begin:end], member))
            begin = end
    return result


def _sticky(subscriptions: Mapping[str, Mapping[str, int]], owners: Mapping[Partition, str]) -> dict[Partition, str]:
    subscribers = _subscribers(subscriptions)
    result: dict[Partition, str] = {}
    held: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition in subscribers:
        owner = owners.get(partition)
        if owner in subscribers[partition]:
            held[owner].append(partition)
            result[partition] = owner
    for partition in subscribers:
        if partition not in result:
            member = min(subscribers[partition], key=lambda one: (len(held[one]), one))
            held[member].append(partition)
            result[partition] = member
    # One at a time from who has most to who has least, until no move makes the division fairer.
    while move := _fairer(result, held, subscribers):
        partition, member = move
        held[result[partition]].remove(partition)
        held[member].append(partition)
        result[partition] = member
    return result


def _fairer(
    result: Mapping[Partition, str],
    held: Mapping[str, list[Partition]],
    subscribers: Mapping[Partition, tuple[str, ...]],
) -> tuple[Partition, str] | None:
    for member in sorted(held, key=lambda one: (-len(held[one]), one)):
        for partition in reversed(held[member]):
            least = min(subscribers[partition], key=lambda one: (len(held.get(one, ())), one))
            if len(held.get(least, ())) + 1 < len(held[result[partition]]):
                return partition, least
    return None


def _subscribers(subscriptions: Mapping[str, Mapping[str, int]]) -> dict[Partition, tuple[str, ...]]:
    """Return who may read each partition, in order: a member that opened the topic earlier may know fewer of them."""
    found: defaultdict[Partition, list[str]] = defaultdict(list)
    for member in sorted(subscriptions):
        for topic, count in subscriptions[member].items():
            for number in range(count):
                found[topic, number].append(member)
    return {partition: tuple(found[partition]) for partition in sorted(found)}
