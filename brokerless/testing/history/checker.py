"""Judge a history: find what a correct log with its producers and readers can never show. Pure; no I/O.

The faults are those of Jepsen's Kafka workload; ``docs/verify.md`` lists them. A message whose outcome is unknown may
be there once or not at all. A message that no reader has reached is only counted (``unread``). Messages are identified
by their ids. Order between a producer's calls is judged where it is promised: for a call that ended before another
began, and for calls that were queued one after the other; not for a message that several calls sent.

A duplicate is acknowledged without an offset, but it was in the log before the next commit of the same process there:
it is lost if readers read everything up to that commit and nothing of it. Time is in proportion to events and messages,
apart from sorting; evidence is computed for findings only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from brokerless.testing.history.events import without_gc
from brokerless.testing.history.observed import Observed
from brokerless.testing.history.state import BITS, INDEX, Call, at, key_of, name_of, offset_text, range_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from brokerless.testing.history.events import Event, Id
    from brokerless.testing.history.state import GroupState, Incarnation, PartitionState, TopicState
    from brokerless.testing.history.verdict import Verdict

Span = tuple[str, int, int, int]  # topic, partition, first offset, rows
_FIRST: Final = 1 << BITS  # no message is before it: entry 0 creates the topic


def check(events: Iterable[Event]) -> Verdict:
    """Return the verdict on a history.

    Args:
        events: in the order in which they happened, as ``read_history`` gives them. If a topic's sends are recorded
            at all, all of them must be, or the others' messages look like phantoms.
    """
    judge = _Judge()
    with without_gc():
        for number, event in enumerate(events, start=1):
            judge.add(number, event)
        return judge.verdict()


def log_order(events: Iterable[Event], topic: str) -> dict[int, list[Id]]:
    """Return the messages of each partition in the order of their offsets, as far as any reader received them."""
    partitions: dict[int, dict[int, Id]] = {}
    for event in events:
        if event.op == "poll" and event.topic == topic and event.partition is not None and event.offset is not None:
            log = partitions.setdefault(event.partition, {})
            for key, one in enumerate(event.ids, key_of(event.offset)):
                log.setdefault(key, one)
    return {number: [log[key] for key in sorted(log)] for number, log in sorted(partitions.items())}


class _Judge(Observed):
    """Judges the whole history after its last event."""

    def verdict(self) -> Verdict:
        """Return the verdict on all events."""
        for topic in self._topics.values():
            self._judge_messages(topic)
        for partition in self._partitions.values():
            keys = sorted(partition.log)
            self._judge_order(partition, keys)
            for reader in partition.readers:
                self._judge_reader(reader, keys)
        covered = {key: _merged(partition.readers) for key, partition in self._partitions.items()}
        for commits in self._acknowledged.values():
            commits.sort()
        for topic in self._topics.values():
            for call in topic.calls:
                self._judge_acks(topic, call, covered)
        for group in self._groups.values():
            self._judge_tenures(group)
        self._judge_producers()
        return self._found.verdict(self._totals())

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
                # Once for each message, with its last attempt.
                if one in topic.seen and attempts[-1] is call and all(a.of(one) == "fail" for a in attempts):
                    text = f"{one!r} was reported as failed, but is at {self._where(topic, one)}"
                    self._found.add("failed-but-seen", text, call.begun, int(call.ended), self._saw(topic, one))

    def _judge_order(self, partition: PartitionState, keys: Sequence[int]) -> None:
        sent, log = partition.topic.sent, partition.log
        unclear = partition.topic.again.keys() | partition.topic.doubled
        # For each process: the last call among those whose messages were read, and likewise of queued calls.
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
            return  # it received every message once, all between its start and its position
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
        # A message in one of several positions is lost only if readers have passed all of them.
        positions = spans if complete else [*spans, *self._earlier(topic, call)]
        passed = 0 < len(positions) == len(call.acks) and all(
            _covers(covered.get((n, p)), first, first + rows) for n, p, first, rows in positions
        )
        for one in strays:
            if one in topic.seen:
                if complete and one not in topic.doubled:  # reported as a duplicate already
                    text = f"{one!r} was acknowledged at {self._spans_text(spans)}, but is at {self._where(topic, one)}"
                    self._found.add("inconsistent-offset", text, int(call.ended), self._saw(topic, one))
            elif passed:
                text = f"{one!r} was acknowledged at {self._spans_text(positions)}, and readers went past it without it"
                self._found.add("lost", text, call.begun, int(call.ended), *self._past(positions))
            else:
                self._unread += 1

    def _earlier(self, topic: TopicState, call: Call) -> Iterator[Span]:
        """Yield the possible positions of duplicates: before the next commit of their process."""
        for number, version, *_ in call.acks:
            commits = self._acknowledged[topic.name, call.process, number] if version < 0 else []
            # Of the same process: the clocks that order the events of other processes may be wrong.
            following = bisect_right(commits, (call.ended, 0))
            if following < len(commits):
                yield topic.name, number, _FIRST, max(0, (commits[following][1] << BITS) - _FIRST)

    def _past(self, spans: Sequence[Span]) -> list[int]:
        """Return events of a few readers that have passed all spans."""
        readers = ((r, first) for n, p, first, _ in spans for r in self._partition(n, p).readers)
        return list(islice((reader.event for reader, first in readers if reader.next > first), 3))

    def _stand_together(self, topic: TopicState, call: Call, ids: Sequence[Id]) -> bool:
        """Whether all were read exactly at the acknowledged offsets, as nearly always."""
        if len(call.acks) != 1:
            return False
        number, version, index, rows = call.acks[0]
        if version < 0 or rows != len(ids):
            return False
        position = self._partition(topic.name, number).base | version << BITS | index
        seen = topic.seen
        for one in ids:
            if seen.get(one) != position:
                return False
            position += 1
        return True

    def _is_in(self, topic: TopicState, one: Id, span: Span) -> bool:
        name, number, first, rows = span
        position = topic.seen.get(one)
        base = self._partition(name, number).base
        return position is not None and base | first <= position < (base | first) + rows

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

    def _spans_text(self, spans: Sequence[Span]) -> str:
        return " or ".join(
            range_text(self._partition(n, p), first, first + rows)
            if 0 < rows <= INDEX
            else f"{name_of(n, p)} before {offset_text(first + rows)}"  # no commit is as long
            for n, p, first, rows in spans
        )


def _merged(readers: Sequence[Incarnation]) -> tuple[list[int], list[int]]:
    """Return what readers have read as ascending starts and ends that neither touch nor overlap."""
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
    """Yield ranges of neighbouring offsets, as (first, end)."""
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
