"""Collect the events of a history into calls, logs, readers and groups; report faults that show at once."""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from brokerless.testing.history.state import (
    BITS,
    Call,
    GroupState,
    Incarnation,
    PartitionState,
    Tenure,
    TopicState,
    at,
    key_of,
    offset_text,
    range_text,
)
from brokerless.testing.history.verdict import Findings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.testing.history.events import Event, Id
    from brokerless.testing.history.verdict import Kind

_POSITION_BITS: Final = 96  # a position in all partitions: partition number << 96 | offset
_ABSENT: Final = object()


class Observed:
    """The state of a history after some of its events, and the faults that show at once."""

    def __init__(self) -> None:
        self._found = Findings()
        self._topics: dict[str, TopicState] = {}
        self._partitions: dict[tuple[str, int], PartitionState] = {}
        self._numbered: list[PartitionState] = []
        self._calls: dict[tuple[str, int], Call] = {}
        self._readers: dict[tuple[str, str, int], Incarnation] = {}
        self._groups: dict[tuple[str, str, int], GroupState] = {}
        self._commits: dict[tuple[str, int], int] = {}
        # Producers' acknowledgements: topic, producer id, partition -> version, process, event.
        self._owners: defaultdict[tuple[str, str, int], list[tuple[int, str, int]]] = defaultdict(list)
        # Their commits: topic, process, partition -> when the call began, version.
        self._acknowledged: defaultdict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
        self._events = self._unread = 0

    def add(self, number: int, event: Event) -> None:
        """Add the next event; the first has number 1."""
        self._events = number
        if event.op == "poll":
            if event.type == "ok" and event.partition is not None:
                self._poll(number, event)
        elif event.op == "send":
            self._send(number, event)
        elif event.partition is not None:
            if event.op == "commit":
                self._commit(number, event)
            elif event.type == "ok":
                if event.op == "assign":
                    self._assign(number, event)
                else:
                    self._release(number, event)

    # Events

    def _send(self, number: int, event: Event) -> None:
        topic = self._topic(event.topic)
        if event.type == "invoke":
            call = Call(event.process, number, event.ids, event.queued)
            self._calls[event.process, event.call] = call
            topic.calls.append(call)
            topic.has_sends = True
            entry = topic.sent
            for row, one in enumerate(event.ids):
                if entry.setdefault(one, (call, row))[0] is not call:
                    topic.again.setdefault(one, []).append(call)
            return
        known = self._calls.get((event.process, event.call))
        if known is None:
            return  # its beginning was torn off, so nothing of it can be judged
        known.ended = number
        if event.ids:
            known.partial = {**(known.partial or {}), **dict.fromkeys(event.ids, event.type)}
        else:
            known.outcome = event.type
        known.acks = [*known.acks, *event.acks] if known.acks else event.acks
        for partition, version, _, rows in event.acks:
            if version >= 0 and rows:
                self._acknowledged[event.topic, event.process, partition].append((known.begun, version))
                if event.producer is not None:
                    self._owners[event.topic, event.producer, partition].append((version, event.process, number))

    def _poll(self, number: int, event: Event) -> None:
        who = (event.process, event.topic, event.partition or 0)
        reader = self._readers.get(who)
        partition = self._partition(event.topic, who[2]) if reader is None else reader.partition
        if event.ids and event.offset is not None:
            version, index = event.offset
            first = version << BITS | index
            count = len(event.ids)
            self._remember(partition, first, event.ids, number)
            if reader is None:
                reader = self._open(who, partition, first, number)
            if first <= reader.last:
                self._went_back(reader, first, number, within=0 != event.call == reader.call)
            elif index and first not in (reader.last + 1, reader.start):
                self._skipped(reader, first, number)
            reader.last = first + count - 1
            reader.rows += count
            if reader.delivered is not None:
                self._deliver_again(reader, reader.delivered, range(first, first + count), number)
            reader.spans.append((first, count))
            reader.call = event.call
            reader.next = max(reader.next, first + count)
        if reader is not None:
            if event.next is not None:
                reader.next = max(reader.next, key_of(event.next))
            reader.event = number
            if reader.tenure is not None and not reader.tenure.released:
                reader.tenure.last = number

    def _remember(self, partition: PartitionState, first: int, ids: Sequence[Id], number: int) -> None:
        known = partition.spans.get(first)
        if known is None:
            partition.spans[first] = ids
            partition.shown.setdefault(first >> BITS, number)
        elif known == ids:
            return  # as another reader saw it
        log, seen, base = partition.log, partition.topic.seen, partition.base
        for key, one in enumerate(ids, first):
            before = log.get(key, _ABSENT)
            position = base | key
            if before is _ABSENT:
                log[key] = one
                other = seen.setdefault(one, position)
                if other != position:
                    self._duplicate(partition.topic, one, other, position, number)
            elif before != one:
                text = f"{one!r} was seen at {at(partition, key)}, where {before!r} was seen before"
                self._found.add("inconsistent-offset", text, partition.event(key), number)
                seen.setdefault(one, position)

    def _duplicate(self, topic: TopicState, one: Id, other: int, position: int, number: int) -> None:
        topic.doubled.add(one)
        positions = [self._located(at) for at in (other, position)]
        where = " and ".join(at(partition, key) for partition, key in positions)
        sends = [call.begun for call in self._attempts(topic, one)]
        self._found.add("duplicate", f"{one!r} is at {where}", positions[0][0].event(positions[0][1]), number, *sends)

    def _went_back(self, reader: Incarnation, first: int, number: int, *, within: bool) -> None:
        kind: Kind = "reordered" if within else "non-monotonic-poll"
        what = "within one poll" if within else "in its next poll"
        text = f"{reader.process} got {at(reader.partition, first)} {what}, after {offset_text(reader.last)}"
        self._found.add(kind, text, reader.event, number)
        reader.keys()  # from now on each offset has to be looked up

    def _deliver_again(self, reader: Incarnation, delivered: set[int], keys: range, number: int) -> None:
        for key in keys:
            if key in delivered:
                text = f"{reader.process} got {at(reader.partition, key)} twice"
                self._found.add("duplicate-delivery", text, reader.partition.event(key), number)
        delivered.update(keys)

    def _skipped(self, reader: Incarnation, first: int, number: int) -> None:
        """The beginning of a commit, or its middle, is missing: there can be no index without those below it."""
        version = first >> BITS << BITS
        begin = max(version, reader.last + 1, reader.start)
        reader.holes.append((begin, first))
        text = f"{reader.process} passed over {range_text(reader.partition, begin, first)}"
        self._found.add("gap", text, reader.event, number)

    def _assign(self, number: int, event: Event) -> None:
        partition = self._partition(event.topic, event.partition or 0)
        who = (event.process, event.topic, partition.number)
        self._readers.pop(who, None)
        start = None if event.offset is None else key_of(event.offset)
        reader = None if start is None else self._open(who, partition, start, number)
        if event.group is None:
            return
        group = self._group(event.group, partition)
        tenure = group.present.get(event.process)
        if tenure is None:
            tenure = group.present[event.process] = Tenure(event.process, number, number)
            group.tenures.append(tenure)
            group.succeeded.pop(event.process, None)
        tenure.last = number
        if reader is not None:
            reader.tenure = tenure
        committed, by = max(((group.committed, group.committed_by), *group.trying.values()), key=itemgetter(0))
        if start is not None and start > committed >= 0:
            text = (
                f"group {group.name} goes on at {at(partition, start)}, though it was committed only up to "
                f"{offset_text(committed)}"
            )
            self._found.add("gap", text, by, number)

    def _release(self, number: int, event: Event) -> None:
        if event.group is None:
            return
        group = self._group(event.group, self._partition(event.topic, event.partition or 0))
        tenure = group.present.pop(event.process, None)
        if tenure is not None:
            tenure.last, tenure.released = number, True

    def _commit(self, number: int, event: Event) -> None:
        if event.group is None or event.offset is None:
            return
        group = self._group(event.group, self._partition(event.topic, event.partition or 0))
        key = (event.process, event.call)
        if event.type == "invoke":
            self._commits[key] = number
            group.trying[key] = (key_of(event.offset), number)
            return
        begun = self._commits.pop(key, 0)
        group.trying.pop(key, None)
        if event.type != "fail" and key_of(event.offset) > group.committed:
            group.committed, group.committed_by = key_of(event.offset), begun or number
        if event.type != "ok":
            return
        if event.process in group.present:
            group.present[event.process].last = number
        if event.process == group.holder:
            return
        successor = group.succeeded.get(event.process)
        if successor is None:
            if 0 < begun < group.held_since:
                return  # accepted before, and answered late
            if group.holder is not None:
                group.succeeded[group.holder] = number
            group.holder, group.held_since = event.process, number
        elif begun > successor:
            text = f"{event.process} committed for group {group.name} in {group.partition} after its successor had"
            self._found.add("zombie-write", text, successor, begun, number)

    # Look-ups

    def _topic(self, name: str) -> TopicState:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = TopicState(name)
        return topic

    def _partition(self, name: str, number: int) -> PartitionState:
        partition = self._partitions.get((name, number))
        if partition is None:
            partition = PartitionState(self._topic(name), number, len(self._numbered) << _POSITION_BITS)
            self._partitions[name, number] = partition
            self._numbered.append(partition)
        return partition

    def _group(self, name: str, partition: PartitionState) -> GroupState:
        key = (name, partition.topic.name, partition.number)
        if key not in self._groups:
            self._groups[key] = GroupState(name, partition)
        return self._groups[key]

    def _open(self, who: tuple[str, str, int], partition: PartitionState, start: int, number: int) -> Incarnation:
        reader = Incarnation(who[0], partition, start, start - 1, start, number)
        partition.readers.append(reader)
        self._readers[who] = reader
        return reader

    def _attempts(self, topic: TopicState, one: Id) -> list[Call]:
        first = topic.sent.get(one)
        return [] if first is None else [first[0], *topic.again.get(one, ())]

    def _located(self, position: int) -> tuple[PartitionState, int]:
        return self._numbered[position >> _POSITION_BITS], position & (1 << _POSITION_BITS) - 1

    def _where(self, topic: TopicState, one: Id) -> str:
        return at(*self._located(topic.seen[one]))

    def _saw(self, topic: TopicState, one: Id) -> int:
        partition, key = self._located(topic.seen[one])
        return partition.event(key)
