"""Judges a history: finds what a correct log, its producers and its readers can never show. Pure; no I/O.

What is looked for is what Jepsen's Kafka workload looks for, in the terms of this kit:

===================  ===============================================================================================
kind                 a finding of this kind says
===================  ===============================================================================================
lost                 acknowledged, and a reader read past its offset, but no reader ever saw it
duplicate            one message at two offsets
duplicate-delivery   one offset given twice to one incarnation of a reader that did not go back on purpose
phantom              seen, but nobody sent it
failed-but-seen      every attempt to send it was reported as failed, which means "never will be", and yet it is there
gap                  a reader passed over an offset that holds a message, or a group went on behind its committed one
reordered            within one poll offsets went back, or one producer's messages stand in another order than sent
non-monotonic-poll   a poll began before the end of the one before it
two-owners           two processes of a group read one partition at the same time
zombie-write         a process wrote (as a producer, or committed for a group) after its successor had begun to
inconsistent-offset  two readers saw different messages at one offset, or one is not where its acknowledgement said
===================  ===============================================================================================

A duplicate is acknowledged without an offset. But its message was in the log before the same process's next commit
there: it is lost if readers saw all from the topic's first entry up to that one, and nothing of it.

A message whose outcome is unknown may be there once or not at all. What no reader has reached is not judged, only
counted (``unread``). Messages are known by their ids, so two that are sent with one id count as one message.

Order among a producer's calls is judged where it is promised: a call that had ended before another began, and calls
that were queued one after the other. A message that was sent by several calls (a resend) is left out there.

Time is in proportion to events and messages, but for sorting; evidence is worked out for findings only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from brokerless.verify.history import garbage_left
from brokerless.verify.state import (
    BITS,
    INDEX,
    Call,
    GroupState,
    Incarnation,
    PartitionState,
    Tenure,
    TopicState,
    at,
    key_of,
    name_of,
    offset_text,
    range_text,
)
from brokerless.verify.verdict import Findings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from brokerless.verify.history import Event, Id
    from brokerless.verify.verdict import Kind, Verdict

_PLACE: Final = 96  # a place among all partitions: partition number << 96 | offset
_Span = tuple[str, int, int, int]  # topic, partition, first offset, rows
_ABSENT: Final = object()
_FIRST: Final = 1 << BITS  # no message stands before it: entry 0 creates the topic


def check(events: Iterable[Event]) -> Verdict:
    """The verdict on a history.

    Args:
        events: in the order in which they happened, as ``read_history`` gives them. If a topic's sends are recorded
            at all, all of them must be, or the others' messages look like phantoms.
    """
    judge = _Judge()
    with garbage_left():
        for number, event in enumerate(events, start=1):
            judge.take(number, event)
        return judge.verdict()


def log_order(events: Iterable[Event], topic: str) -> dict[int, list[Id]]:
    """The messages of each partition of a topic in the order of their offsets, as far as any reader saw them."""
    partitions: dict[int, dict[int, Id]] = {}
    for event in events:
        if event.op == "poll" and event.topic == topic and event.partition is not None and event.offset is not None:
            log = partitions.setdefault(event.partition, {})
            for key, one in enumerate(event.ids, key_of(event.offset)):
                log.setdefault(key, one)
    return {number: [log[key] for key in sorted(log)] for number, log in sorted(partitions.items())}


class _Judge:
    """Takes the events one by one, and then says what it found."""

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
        self._told: defaultdict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
        self._events = self._unread = 0

    def take(self, number: int, event: Event) -> None:
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

    def verdict(self) -> Verdict:
        for topic in self._topics.values():
            self._judge_messages(topic)
        for partition in self._partitions.values():
            keys = sorted(partition.log)
            self._judge_order(partition, keys)
            for reader in partition.readers:
                self._judge_reader(reader, keys)
        covered = {key: _merged(partition.readers) for key, partition in self._partitions.items()}
        for commits in self._told.values():
            commits.sort()
        for topic in self._topics.values():
            for call in topic.calls:
                self._judge_acks(topic, call, covered)
        for group in self._groups.values():
            self._judge_tenures(group)
        self._judge_producers()
        return self._found.verdict(self._totals())

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
                self._told[event.topic, event.process, partition].append((known.begun, version))
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
            place = base | key
            if before is _ABSENT:
                log[key] = one
                other = seen.setdefault(one, place)
                if other != place:
                    self._duplicate(partition.topic, one, other, place, number)
            elif before != one:
                text = f"{one!r} was seen at {at(partition, key)}, where {before!r} was seen before"
                self._found.add("inconsistent-offset", text, partition.event(key), number)
                seen.setdefault(one, place)

    def _duplicate(self, topic: TopicState, one: Id, other: int, place: int, number: int) -> None:
        topic.doubled.add(one)
        places = [self._placed(at) for at in (other, place)]
        where = " and ".join(at(partition, key) for partition, key in places)
        sends = [call.begun for call in self._attempts(topic, one)]
        self._found.add("duplicate", f"{one!r} is at {where}", places[0][0].event(places[0][1]), number, *sends)

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
            if group.holder is not None:
                group.succeeded[group.holder] = number
            group.holder = event.process
        elif begun > successor:
            text = f"{event.process} committed for group {group.name} in {group.partition} after its successor had"
            self._found.add("zombie-write", text, successor, begun, number)

    # Judgement

    def _judge_messages(self, topic: TopicState) -> None:
        if not topic.has_sends:
            return
        for one in sorted(topic.seen.keys() - topic.sent.keys(), key=topic.seen.__getitem__):
            text = f"{one!r} is at {self._where(topic, one)}, but nobody sent it"
            self._found.add("phantom", text, self._saw(topic, one))
        for call in topic.calls:
            if call.outcome != "fail" and "fail" not in (call.partial or {}).values():
                continue
            for one in call.ids:
                attempts = self._attempts(topic, one)
                # Once a message, with its last attempt.
                if one in topic.seen and attempts[-1] is call and all(a.of(one) == "fail" for a in attempts):
                    text = f"{one!r} was reported as failed, but is at {self._where(topic, one)}"
                    self._found.add("failed-but-seen", text, call.begun, int(call.ended), self._saw(topic, one))

    def _judge_order(self, partition: PartitionState, keys: Sequence[int]) -> None:
        sent, log = partition.topic.sent, partition.log
        unclear = partition.topic.again.keys() | partition.topic.doubled
        # Of each process: the call that began last among those whose messages we met, and likewise of queued ones.
        begun: dict[str, Call] = {}
        queued: dict[str, Call] = {}
        rows: dict[int, int] = {}
        before: Call | None = None
        for key in keys:
            one = log[key]
            if (known := sent.get(one)) is None or one in unclear:
                continue
            call, row = known
            if row < rows.get(call.begun, -1):
                text = f"{one!r}, at {at(partition, key)}, stands behind a later row of the same call"
                self._found.add("reordered", text, call.begun, partition.event(key))
            rows[call.begun] = row
            if call is before:
                continue
            before = call
            late = begun.setdefault(call.process, call)
            in_turn = queued.setdefault(call.process, call) if call.queued else call
            rival = late if call.ended < late.begun else in_turn if call.begun < in_turn.begun else None
            if rival is not None:
                text = f"{one!r}, at {at(partition, key)}, stands behind what {call.process} sent later"
                self._found.add("reordered", text, call.begun, rival.begun, partition.event(key))
            if call.begun > late.begun:
                begun[call.process] = call
            if call.queued and call.begun > in_turn.begun:
                queued[call.process] = call

    def _judge_reader(self, reader: Incarnation, keys: Sequence[int]) -> None:
        low, high = bisect_left(keys, reader.start), bisect_left(keys, reader.next)
        if reader.delivered is None and high - low == reader.rows:
            return  # it got as many as there are, none twice, all between its start and its position
        got = reader.keys()
        missing = [
            key for key in keys[low:high] if key not in got and not any(a <= key < b for a, b in reader.holes)
        ]  # fmt: skip
        for first, end in _runs(missing):
            text = f"{reader.process} passed over {range_text(reader.partition, first, end)}, which others saw"
            self._found.add("gap", text, reader.partition.event(first), reader.event)

    def _judge_acks(
        self, topic: TopicState, call: Call, covered: Mapping[tuple[str, int], tuple[list[int], list[int]]]
    ) -> None:
        ids = call.acknowledged()
        if not ids or self._stand_together(topic, call, ids):
            return
        spans = [(topic.name, ack[0], ack[1] << BITS | ack[2], ack[3]) for ack in call.acks if ack[1] >= 0]
        strays = [one for one in ids if not any(self._is_in(topic, one, span) for span in spans)]
        if len(spans) == len(call.acks) == 1 and spans[0][3] == len(ids):
            base = self._partition(*spans[0][:2]).base
            strays = [one for key, one in enumerate(ids, spans[0][2]) if topic.seen.get(one) != base | key]
        if not strays:
            return
        complete = bool(spans) and len(spans) == len(call.acks)
        # What is in one of several places is lost only if readers have been past all of them.
        places = spans if complete else [*spans, *self._earlier(topic, call)]
        passed = 0 < len(places) == len(call.acks) and all(
            _covers(covered.get((n, p)), first, first + rows) for n, p, first, rows in places
        )
        for one in strays:
            if one in topic.seen:
                if complete and one not in topic.doubled:  # reported as a duplicate already
                    text = f"{one!r} was acknowledged at {self._spans_text(spans)}, but is at {self._where(topic, one)}"
                    self._found.add("inconsistent-offset", text, int(call.ended), self._saw(topic, one))
            elif passed:
                text = f"{one!r} was acknowledged at {self._spans_text(places)}, and readers went past it without it"
                self._found.add("lost", text, call.begun, int(call.ended), *self._past(places))
            else:
                self._unread += 1

    def _earlier(self, topic: TopicState, call: Call) -> Iterator[_Span]:
        """Where duplicates are, as far as it can be told: before what their process committed there next."""
        for number, version, *_ in call.acks:
            commits = self._told[topic.name, call.process, number] if version < 0 else []
            # Of the same process: clocks, which put the others' events in order, may be wrong.
            following = bisect_right(commits, (call.ended, 0))
            if following < len(commits):
                yield topic.name, number, _FIRST, max(0, (commits[following][1] << BITS) - _FIRST)

    def _past(self, spans: Sequence[_Span]) -> list[int]:
        """Events of a few readers that were beyond."""
        readers = ((r, first) for n, p, first, _ in spans for r in self._partition(n, p).readers)
        return list(islice((reader.event for reader, first in readers if reader.next > first), 3))

    def _stand_together(self, topic: TopicState, call: Call, ids: Sequence[Id]) -> bool:
        """Whether all were seen exactly where one acknowledgement said, as nearly always."""
        if len(call.acks) != 1:
            return False
        number, version, index, rows = call.acks[0]
        if version < 0 or rows != len(ids):
            return False
        place = self._partition(topic.name, number).base | version << BITS | index
        seen = topic.seen
        for one in ids:
            if seen.get(one) != place:
                return False
            place += 1
        return True

    def _is_in(self, topic: TopicState, one: Id, span: _Span) -> bool:
        name, number, first, rows = span
        place = topic.seen.get(one)
        base = self._partition(name, number).base
        return place is not None and base | first <= place < (base | first) + rows

    def _judge_tenures(self, group: GroupState) -> None:
        tenures = sorted(group.tenures, key=lambda tenure: tenure.begun)
        before = tenures[0] if tenures else None
        for after in tenures[1:]:
            if before is not None and after.begun < before.last and after.process != before.process:
                text = (
                    f"{after.process} got {group.partition} for group {group.name} while {before.process} "
                    f"{'had it' if before.released else 'was still at work in it'}"
                )
                self._found.add("two-owners", text, before.begun, after.begun, before.last)
            if before is None or after.last > before.last:
                before = after

    def _judge_producers(self) -> None:
        for (topic, producer, number), acks in self._owners.items():
            succeeded: dict[str, tuple[int, str, int]] = {}
            holder: tuple[int, str, int] | None = None
            for ack in sorted(acks):
                version, process, event = ack
                if holder is not None and process != holder[1]:
                    if process in succeeded:
                        successor = succeeded[process]
                        text = (
                            f"{process} wrote as {producer} to {name_of(topic, number)} in version {version}, after "
                            f"{successor[1]} had taken over and written in version {successor[0]}"
                        )
                        self._found.add("zombie-write", text, successor[2], event)
                        continue
                    succeeded[holder[1]] = ack
                if holder is None or process != holder[1]:
                    holder = ack

    def _totals(self) -> dict[str, int]:
        totals = Counter[str]()
        for topic in self._topics.values():
            for call in topic.calls:
                outcomes = Counter(map(call.of, call.ids)) if call.partial else {call.outcome: len(call.ids)}
                for outcome, count in outcomes.items():
                    totals[outcome] += count
            totals["seen"] += len(topic.seen)
        return {
            "events": self._events,
            "messages_acknowledged": totals["ok"],
            "failed": totals["fail"],
            "of_unknown_outcome": totals["unknown"],
            "seen": totals["seen"],
            "unread": self._unread,
            "readers": sum(len(partition.readers) for partition in self._partitions.values()),
        }

    # Look-ups

    def _topic(self, name: str) -> TopicState:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = TopicState(name)
        return topic

    def _partition(self, name: str, number: int) -> PartitionState:
        partition = self._partitions.get((name, number))
        if partition is None:
            partition = PartitionState(self._topic(name), number, len(self._numbered) << _PLACE)
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

    def _placed(self, place: int) -> tuple[PartitionState, int]:
        return self._numbered[place >> _PLACE], place & (1 << _PLACE) - 1

    def _where(self, topic: TopicState, one: Id) -> str:
        return at(*self._placed(topic.seen[one]))

    def _saw(self, topic: TopicState, one: Id) -> int:
        partition, key = self._placed(topic.seen[one])
        return partition.event(key)

    def _spans_text(self, spans: Sequence[_Span]) -> str:
        return " or ".join(
            range_text(self._partition(n, p), first, first + rows)
            if 0 < rows <= INDEX
            else f"{name_of(n, p)} before {offset_text(first + rows)}"  # no commit is as long
            for n, p, first, rows in spans
        )


def _merged(readers: Sequence[Incarnation]) -> tuple[list[int], list[int]]:
    """What the readers went through, as ascending starts and ends that neither touch nor overlap."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted((reader.start, reader.next) for reader in readers):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def _covers(merged: tuple[list[int], list[int]] | None, first: int, end: int) -> bool:
    if merged is None:
        return False
    starts, ends = merged
    at = bisect_right(starts, first) - 1
    return at >= 0 and end <= ends[at]


def _runs(keys: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring offsets together, as (first, end)."""
    first = end = None
    for key in keys:
        if end is not None and first is not None and key == end:
            end = key + 1
            continue
        if first is not None and end is not None:
            yield first, end
        first, end = key, key + 1
    if first is not None and end is not None:
        yield first, end
