"""Divide partitions among the members of a group. Pure; the same arguments give the same result everywhere.

The strategies are Kafka's (``RangeAssignor``, ``CooperativeStickyAssignor``): ``range`` gives each member consecutive
partitions of each topic; ``cooperative-sticky`` moves as few partitions as a fair division allows.
"""

from __future__ import annotations

from collections import defaultdict
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
    for topic, members in _subscribers(subscriptions).items():
        count = max(subscriptions[member][topic] for member in members)
        share, rest = divmod(count, len(members))
        begin = 0
        for number, member in enumerate(members):
            end = begin + share + (number < rest)
            result.update({(topic, partition): member for partition in range(begin, end)})
            begin = end
    return result


def _sticky(subscriptions: Mapping[str, Mapping[str, int]], owners: Mapping[Partition, str]) -> dict[Partition, str]:
    subscribers = _subscribers(subscriptions)
    todo = [
        (topic, number)
        for topic, members in subscribers.items()
        for number in range(max(subscriptions[member][topic] for member in members))
    ]
    result: dict[Partition, str] = {}
    held: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition in todo:
        owner = owners.get(partition)
        if owner in subscribers[partition[0]]:
            held[owner].append(partition)
            result[partition] = owner
    for partition in todo:
        if partition not in result:
            member = min(subscribers[partition[0]], key=lambda one: (len(held[one]), one))
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
    result: Mapping[Partition, str], held: Mapping[str, list[Partition]], subscribers: Mapping[str, list[str]]
) -> tuple[Partition, str] | None:
    for member in sorted(held, key=lambda one: (-len(held[one]), one)):
        for partition in reversed(held[member]):
            least = min(subscribers[partition[0]], key=lambda one: (len(held.get(one, ())), one))
            if len(held.get(least, ())) + 1 < len(held[result[partition]]):
                return partition, least
    return None


def _subscribers(subscriptions: Mapping[str, Mapping[str, int]]) -> dict[str, list[str]]:
    topics: defaultdict[str, list[str]] = defaultdict(list)
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            topics[topic].append(member)
    return dict(sorted(topics.items()))
