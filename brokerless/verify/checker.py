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

A message whose outcome is unknown may be there once or not at all. What no reader has reached is not judged, only
counted (``unread``). Messages are known by their ids, so two that are sent with one id count as one message.

Order among a producer's calls is judged where it is promised: a call that had ended before another began, and calls
that were queued one after the other. A message that was sent by several calls (a resend) is left out there.

Time is in proportion to events and messages, but for sorting; evidence is worked out for findings only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from brokerless.verify.history import garbage_left

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from brokerless.verify.history import Event, Id, Outcome

Kind = Literal[
    "lost",
    "duplicate",
    "duplicate-delivery",
    "phantom",
    "failed-but-seen",
    "gap",
    "reordered",
    "non-monotonic-poll",
    "two-owners",
    "zombie-write",
    "inconsistent-offset",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

SHOWN: Final = 100
"""How many findings of a kind a verdict describes; it counts all of them."""

_BITS: Final = 32  # an offset as one number: version << 32 | index; an index is below a million in this kit's commits
_INDEX: Final = 2**_BITS - 1
_PLACE: Final = 96  # a place among all partitions: partition number << 96 | offset
_NEVER: Final = float("inf")
_Span = tuple[str, int, int, int]  # topic, partition, first offset, rows
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must not be.

    Attributes:
        events: numbers of the events that show it, from 1: the line in the file, if the history is one file.
    """

    kind: Kind
    text: str
    events: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        findings: at most ``SHOWN`` of each kind, in the order of ``KINDS``.
        found: how many there are, by kind; kinds without any are left out.
        counts: what was looked at.
    """

    findings: tuple[Finding, ...]
    found: Mapping[Kind, int]
    counts: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.found

    def to_json(self) -> dict[str, Any]:
        """All of it, as ``json.dumps`` takes it."""
        return {
            "ok": self.ok,
            "found": dict(self.found),
            "counts": dict(self.counts),
            "findings": [{"kind": f.kind, "text": f.text, "events": list(f.events)} for f in self.findings],
        }

    def text(self, *, shown: int = 10) -> str:
        """For people: a line of counts, then at most ``shown`` findings of each kind."""
        looked = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in self.counts.items() if count)
        lines = [f"{'OK' if self.ok else 'FAILED'}: {looked or 'nothing to judge'}."]
        for kind, count in self.found.items():
            lines.append(f"{kind}: {count:,}")
            some = [finding for finding in self.findings if finding.kind == kind][:shown]
            for finding in some:
                numbers = ", ".join(map(str, finding.events))
                lines.append(f"  {finding.text}{f' (events {numbers})' if numbers else ''}")
            if count > len(some):
                lines.append(f"  ... and {count - len(some):,} more")
        return "\n".join(lines)


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
            for key, one in enumerate(event.ids, _key(event.offset)):
                log.setdefault(key, one)
    return {number: [log[key] for key in sorted(log)] for number, log in sorted(partitions.items())}


def check_pipeline(
    inputs: Mapping[tuple[str, int], Sequence[Id]],
    output: Mapping[int, Sequence[Id]],
    dead_letters: Mapping[int, Sequence[Id]],
) -> Verdict:
    """Whether a pipeline that makes one row of each did so: rows in = rows out + dead letters, each exactly once.

    Rows keep their ids through the pipeline. Within each partition of the output (and of the dead letters), rows of
    one input partition stand in their order.

    Args:
        inputs: what is in the inputs, by topic and partition, in log order.
        output: what is in the output, by partition, in log order (see ``log_order``).
        dead_letters: likewise.
    """
    found = _Findings()
    source: dict[Id, tuple[tuple[str, int], int]] = {}
    for where, ids in inputs.items():
        for row, one in enumerate(ids):
            if source.setdefault(one, (where, row)) != (where, row):
                found.add("duplicate", f"{one!r} is twice in the inputs, so nobody can tell where its row came from")
    seen: dict[Id, str] = {}
    for name, partitions in (("output", output), ("dead letters", dead_letters)):
        for number, ids in partitions.items():
            last: dict[tuple[str, int], int] = {}
            for one in ids:
                here = f"{name}, partition {number}"
                if one not in source:
                    found.add("phantom", f"{one!r} is in {here}, but in no input")
                    continue
                if one in seen:
                    found.add("duplicate", f"{one!r} is in {seen[one]} and (again) in {here}")
                    continue
                seen[one] = here
                where, row = source[one]
                if row < last.get(where, -1):
                    found.add("reordered", f"{one!r} stands in {here} behind a later row of {_name(*where)}")
                last[where] = max(row, last.get(where, -1))
    for one, (where, row) in source.items():
        if one not in seen:
            found.add("lost", f"{one!r}, row {row} of {_name(*where)}, is neither in the output nor a dead letter")
    counts = {
        "rows_in": sum(map(len, inputs.values())),
        "rows_out": sum(map(len, output.values())),
        "dead_letters": sum(map(len, dead_letters.values())),
    }
    return found.verdict(counts)


class _Findings:
    def __init__(self) -> None:
        self._shown: dict[Kind, list[Finding]] = {kind: [] for kind in KINDS}
        self._found: Counter[Kind] = Counter()

    def add(self, kind: Kind, text: str, *events: int) -> None:
        self._found[kind] += 1
        if len(self._shown[kind]) < SHOWN:
            self._shown[kind].append(Finding(kind, text, tuple(sorted({number for number in events if number}))))

    def verdict(self, counts: Mapping[str, int]) -> Verdict:
        findings = tuple(finding for kind in KINDS for finding in self._shown[kind])
        return Verdict(findings, {kind: self._found[kind] for kind in KINDS if self._found[kind]}, counts)


@dataclass(slots=True, eq=False)
class _Call:
    """One call of ``send``: what it tried, and what it learned."""

    process: str
    begun: int
    ids: Sequence[Id]
    queued: bool
    ended: float = _NEVER
    outcome: Outcome = "unknown"
    partial: dict[Id, Outcome] | None = None  # where it differs between its messages
    acks: Sequence[Sequence[int]] = ()

    def of(self, one: Id) -> Outcome:
        return self.partial.get(one, self.outcome) if self.partial else self.outcome

    def acknowledged(self) -> Sequence[Id]:
        if not self.partial:
            return self.ids if self.outcome == "ok" else ()
        return [one for one in self.ids if self.of(one) == "ok"]


@dataclass(slots=True, eq=False)
class _Topic:
    name: str
    sent: dict[Id, tuple[_Call, int]] = field(default_factory=dict)  # the first call with it, and the row there
    again: dict[Id, list[_Call]] = field(default_factory=dict)  # the others
    calls: list[_Call] = field(default_factory=list)
    seen: dict[Id, int] = field(default_factory=dict)  # its place
    doubled: set[Id] = field(default_factory=set)  # seen at two offsets, so their order says nothing
    has_sends: bool = False


@dataclass(slots=True, eq=False)
class _Partition:
    topic: _Topic
    number: int
    base: int  # of its places
    log: dict[int, Id] = field(default_factory=dict)
    spans: dict[int, Sequence[Id]] = field(default_factory=dict)  # the messages from an offset on, as first seen
    shown: dict[int, int] = field(default_factory=dict)  # version -> the first event with something of it
    readers: list[_Reader] = field(default_factory=list)

    def __str__(self) -> str:
        return _name(self.topic.name, self.number)

    def event(self, key: int) -> int:
        """The event that first showed something of this offset's commit; 0 if none did."""
        return self.shown.get(key >> _BITS, 0)


@dataclass(slots=True, eq=False)
class _Reader:
    """One incarnation: from where a process began to read a partition until it is told to read elsewhere."""

    process: str
    partition: _Partition
    start: int
    last: int  # the last offset that it got
    next: int  # its position
    event: int
    call: int = -1
    spans: list[tuple[int, int]] = field(default_factory=list)  # (first offset, messages)
    rows: int = 0
    delivered: set[int] | None = None  # made when it goes back for the first time
    holes: list[tuple[int, int]] = field(default_factory=list)
    tenure: _Tenure | None = None

    def keys(self) -> set[int]:
        if self.delivered is None:
            self.delivered = {key for first, rows in self.spans for key in range(first, first + rows)}
        return self.delivered


@dataclass(slots=True, eq=False)
class _Tenure:
    """A process's time as the owner of a partition. Of one that never gave it up, until it was last heard of."""

    process: str
    begun: int
    last: int
    released: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    """What a group did in one partition."""

    name: str
    partition: _Partition
    tenures: list[_Tenure] = field(default_factory=list)
    present: dict[str, _Tenure] = field(default_factory=dict)  # process -> the one that it has not given up
    committed: int = -1  # the furthest that was ever tried
    committed_by: int = 0
    holder: str | None = None
    succeeded: dict[str, int] = field(default_factory=dict)  # process -> its successor's first commit


class _Judge:
    """Takes the events one by one, and then says what it found."""

    def __init__(self) -> None:
        self._found = _Findings()
        self._topics: dict[str, _Topic] = {}
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._numbered: list[_Partition] = []
        self._calls: dict[tuple[str, int], _Call] = {}
        self._readers: dict[tuple[str, str, int], _Reader] = {}
        self._groups: dict[tuple[str, str, int], _Group] = {}
        self._commits: dict[tuple[str, int], int] = {}
        # Producers' acknowledgements: topic, producer id, partition -> version, process, event.
        self._owners: defaultdict[tuple[str, str, int], list[tuple[int, str, int]]] = defaultdict(list)
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
            call = _Call(event.process, number, event.ids, event.queued)
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
        if event.producer is not None:
            for partition, version, _, rows in event.acks:
                if version >= 0 and rows:
                    self._owners[event.topic, event.producer, partition].append((version, event.process, number))

    def _poll(self, number: int, event: Event) -> None:
        who = (event.process, event.topic, event.partition or 0)
        reader = self._readers.get(who)
        partition = self._partition(event.topic, who[2]) if reader is None else reader.partition
        if event.ids and event.offset is not None:
            version, index = event.offset
            first = version << _BITS | index
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
                reader.next = max(reader.next, _key(event.next))
            reader.event = number
            if reader.tenure is not None and not reader.tenure.released:
                reader.tenure.last = number

    def _remember(self, partition: _Partition, first: int, ids: Sequence[Id], number: int) -> None:
        known = partition.spans.get(first)
        if known is None:
            partition.spans[first] = ids
            partition.shown.setdefault(first >> _BITS, number)
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
                text = f"{one!r} was seen at {_at(partition, key)}, where {before!r} was seen before"
                self._found.add("inconsistent-offset", text, partition.event(key), number)
                seen.setdefault(one, place)

    def _duplicate(self, topic: _Topic, one: Id, other: int, place: int, number: int) -> None:
        topic.doubled.add(one)
        places = [self._placed(at) for at in (other, place)]
        where = " and ".join(_at(partition, key) for partition, key in places)
        sends = [call.begun for call in self._attempts(topic, one)]
        self._found.add("duplicate", f"{one!r} is at {where}", places[0][0].event(places[0][1]), number, *sends)

    def _went_back(self, reader: _Reader, first: int, number: int, *, within: bool) -> None:
        kind: Kind = "reordered" if within else "non-monotonic-poll"
        what = "within one poll" if within else "in its next poll"
        text = f"{reader.process} got {_at(reader.partition, first)} {what}, after {_offset(reader.last)}"
        self._found.add(kind, text, reader.event, number)
        reader.keys()  # from now on each offset has to be looked up

    def _deliver_again(self, reader: _Reader, delivered: set[int], keys: range, number: int) -> None:
        for key in keys:
            if key in delivered:
                text = f"{reader.process} got {_at(reader.partition, key)} twice"
                self._found.add("duplicate-delivery", text, reader.partition.event(key), number)
        delivered.update(keys)

    def _skipped(self, reader: _Reader, first: int, number: int) -> None:
        """The beginning of a commit, or its middle, is missing: there can be no index without those below it."""
        version = first >> _BITS << _BITS
        begin = max(version, reader.last + 1, reader.start)
        reader.holes.append((begin, first))
        text = f"{reader.process} passed over {_range(reader.partition, begin, first)}"
        self._found.add("gap", text, reader.event, number)

    def _assign(self, number: int, event: Event) -> None:
        partition = self._partition(event.topic, event.partition or 0)
        who = (event.process, event.topic, partition.number)
        self._readers.pop(who, None)
        start = None if event.offset is None else _key(event.offset)
        reader = None if start is None else self._open(who, partition, start, number)
        if event.group is None:
            return
        group = self._group(event.group, partition)
        tenure = group.present.get(event.process)
        if tenure is None:
            tenure = group.present[event.process] = _Tenure(event.process, number, number)
            group.tenures.append(tenure)
            group.succeeded.pop(event.process, None)
        tenure.last = number
        if reader is not None:
            reader.tenure = tenure
        if start is not None and start > group.committed >= 0:
            text = (
                f"group {group.name} goes on at {_at(partition, start)}, though it was committed only up to "
                f"{_offset(group.committed)}"
            )
            self._found.add("gap", text, group.committed_by, number)

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
            if _key(event.offset) > group.committed:
                group.committed, group.committed_by = _key(event.offset), number
            return
        begun = self._commits.pop(key, 0)
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

    def _judge_messages(self, topic: _Topic) -> None:
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

    def _judge_order(self, partition: _Partition, keys: Sequence[int]) -> None:
        sent, log = partition.topic.sent, partition.log
        unclear = partition.topic.again.keys() | partition.topic.doubled
        # Of each process: the call that began last among those whose messages we met, and likewise of queued ones.
        begun: dict[str, _Call] = {}
        queued: dict[str, _Call] = {}
        rows: dict[int, int] = {}
        before: _Call | None = None
        for key in keys:
            one = log[key]
            if (known := sent.get(one)) is None or one in unclear:
                continue
            call, row = known
            if row < rows.get(call.begun, -1):
                text = f"{one!r}, at {_at(partition, key)}, stands behind a later row of the same call"
                self._found.add("reordered", text, call.begun, partition.event(key))
            rows[call.begun] = row
            if call is before:
                continue
            before = call
            late = begun.setdefault(call.process, call)
            in_turn = queued.setdefault(call.process, call) if call.queued else call
            rival = late if call.ended < late.begun else in_turn if call.begun < in_turn.begun else None
            if rival is not None:
                text = f"{one!r}, at {_at(partition, key)}, stands behind what {call.process} sent later"
                self._found.add("reordered", text, call.begun, rival.begun, partition.event(key))
            if call.begun > late.begun:
                begun[call.process] = call
            if call.queued and call.begun > in_turn.begun:
                queued[call.process] = call

    def _judge_reader(self, reader: _Reader, keys: Sequence[int]) -> None:
        low, high = bisect_left(keys, reader.start), bisect_left(keys, reader.next)
        if reader.delivered is None and high - low == reader.rows:
            return  # it got as many as there are, none twice, all between its start and its position
        got = reader.keys()
        missing = [
            key for key in keys[low:high] if key not in got and not any(a <= key < b for a, b in reader.holes)
        ]  # fmt: skip
        for first, end in _runs(missing):
            text = f"{reader.process} passed over {_range(reader.partition, first, end)}, which others saw"
            self._found.add("gap", text, reader.partition.event(first), reader.event)

    def _judge_acks(
        self, topic: _Topic, call: _Call, covered: Mapping[tuple[str, int], tuple[list[int], list[int]]]
    ) -> None:
        ids = call.acknowledged()
        if not ids or self._stand_together(topic, call, ids):
            return
        spans = [(topic.name, ack[0], ack[1] << _BITS | ack[2], ack[3]) for ack in call.acks if ack[1] >= 0]
        strays = [one for one in ids if not any(self._is_in(topic, one, span) for span in spans)]
        if len(spans) == len(call.acks) == 1 and spans[0][3] == len(ids):
            base = self._partition(*spans[0][:2]).base
            strays = [one for key, one in enumerate(ids, spans[0][2]) if topic.seen.get(one) != base | key]
        if not strays:
            return
        complete = bool(spans) and len(spans) == len(call.acks)
        # What is in one of several places is lost only if readers have been past all of them.
        passed = complete and all(_covers(covered.get((n, p)), first, first + rows) for n, p, first, rows in spans)
        for one in strays:
            if one in topic.seen:
                if complete and one not in topic.doubled:  # reported as a duplicate already
                    text = f"{one!r} was acknowledged at {self._spans_text(spans)}, but is at {self._where(topic, one)}"
                    self._found.add("inconsistent-offset", text, int(call.ended), self._saw(topic, one))
            elif passed:
                text = f"{one!r} was acknowledged at {self._spans_text(spans)}, and readers went past it without it"
                self._found.add("lost", text, call.begun, int(call.ended), *self._past(spans))
            else:
                self._unread += 1

    def _past(self, spans: Sequence[_Span]) -> list[int]:
        """Events of a few readers that were beyond."""
        readers = ((r, first) for n, p, first, _ in spans for r in self._partition(n, p).readers)
        return list(islice((reader.event for reader, first in readers if reader.next > first), 3))

    def _stand_together(self, topic: _Topic, call: _Call, ids: Sequence[Id]) -> bool:
        """Whether all were seen exactly where one acknowledgement said, as nearly always."""
        if len(call.acks) != 1:
            return False
        number, version, index, rows = call.acks[0]
        if version < 0 or rows != len(ids):
            return False
        place = self._partition(topic.name, number).base | version << _BITS | index
        seen = topic.seen
        for one in ids:
            if seen.get(one) != place:
                return False
            place += 1
        return True

    def _is_in(self, topic: _Topic, one: Id, span: _Span) -> bool:
        name, number, first, rows = span
        place = topic.seen.get(one)
        base = self._partition(name, number).base
        return place is not None and base | first <= place < (base | first) + rows

    def _judge_tenures(self, group: _Group) -> None:
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
                            f"{process} wrote as {producer} to {_name(topic, number)} in version {version}, after "
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

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name)
        return topic

    def _partition(self, name: str, number: int) -> _Partition:
        partition = self._partitions.get((name, number))
        if partition is None:
            partition = _Partition(self._topic(name), number, len(self._numbered) << _PLACE)
            self._partitions[name, number] = partition
            self._numbered.append(partition)
        return partition

    def _group(self, name: str, partition: _Partition) -> _Group:
        key = (name, partition.topic.name, partition.number)
        if key not in self._groups:
            self._groups[key] = _Group(name, partition)
        return self._groups[key]

    def _open(self, who: tuple[str, str, int], partition: _Partition, start: int, number: int) -> _Reader:
        reader = _Reader(who[0], partition, start, start - 1, start, number)
        partition.readers.append(reader)
        self._readers[who] = reader
        return reader

    def _attempts(self, topic: _Topic, one: Id) -> list[_Call]:
        first = topic.sent.get(one)
        return [] if first is None else [first[0], *topic.again.get(one, ())]

    def _placed(self, place: int) -> tuple[_Partition, int]:
        return self._numbered[place >> _PLACE], place & (1 << _PLACE) - 1

    def _where(self, topic: _Topic, one: Id) -> str:
        return _at(*self._placed(topic.seen[one]))

    def _saw(self, topic: _Topic, one: Id) -> int:
        partition, key = self._placed(topic.seen[one])
        return partition.event(key)

    def _spans_text(self, spans: Sequence[_Span]) -> str:
        return " or ".join(_range(self._partition(n, p), first, first + rows) for n, p, first, rows in spans)


def _merged(readers: Sequence[_Reader]) -> tuple[list[int], list[int]]:
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


def _key(offset: Sequence[int]) -> int:
    return offset[0] << _BITS | offset[1]


def _offset(key: int) -> str:
    return f"{key >> _BITS}:{key & _INDEX}"


def _name(topic: str, number: int) -> str:
    return f"{topic}/{number}"


def _at(partition: _Partition, key: int) -> str:
    return f"{partition} {_offset(key)}"


def _range(partition: _Partition, first: int, end: int) -> str:
    return _at(partition, first) if end == first + 1 else f"{_at(partition, first)} to {_offset(end - 1)}"
