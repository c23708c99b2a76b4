"""Members of one consumer group, who poll, commit, sleep, die and come back; and the truth about their group.

The truth is told by the bucket: each write of a member's object that it accepted. So what is committed, by whom, and
whether it was delivered before, is known at once, whatever answer the member heard.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

from brokerless.columns import records
from brokerless.consumer import Consumer
from brokerless.errors import BrokerlessError, GroupDamaged, MemberFenced, StoreError
from brokerless.groups.state import FOLDER, MemberState
from brokerless.log.entries import parse_entry
from brokerless.offsets import Offset
from brokerless.schema import partition_table
from brokerless.testing.history import check
from brokerless.testing.history.events import Event
from tests.sim.roles import TOPIC, Role, Sender
from tests.sim.world import SECOND

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from brokerless.consumer import Batch
    from brokerless.groups.assignment import Partition, Strategy
    from brokerless.groups.state import Committed
    from tests.sim.roles import Stage
    from tests.sim.world import Process

GROUP: Final = "g"
_REPLACED: Final = "another member joined as"  # why a static member was fenced
_MEMBER: Final = re.compile(rf"{FOLDER}/{GROUP}/members/(.+)\.json")


class Truth:
    """What the bucket knows of the group, and what is wrong about it."""

    def __init__(
        self, stage: Stage, *, auto_commit: bool, strategy: Strategy, start: Literal["beginning", "latest"]
    ) -> None:
        self.stage = stage
        self.auto_commit = auto_commit
        self.strategy: Strategy = strategy
        self.start: Literal["beginning", "latest"] = start
        self.delivered: set[int] = set()
        self.opened: dict[tuple[str, Partition], Offset] = {}
        """Where each member began to read."""
        self._present: set[tuple[str, Partition]] = set()
        self.incarnations: dict[str, set[str]] = {}
        """The processes that joined under each name."""
        self._names: dict[str, Process] = {}  # of the processes of the history
        self._states: dict[str, MemberState] = {}
        self._newest: dict[Partition, Committed] = {}
        self._begin: dict[Partition, Offset] = {}  # where the group began
        self._claims: dict[tuple[Partition, int], str] = {}
        self._rows: dict[Partition, list[tuple[Offset, int]]] = {}
        self._seen = 0
        stage.bucket.on_write = self._written

    def all_delivered(self) -> bool:
        """Whether every message was, and no more are to come."""
        if self.stage.working(Sender) or self.stage.bucket.under_way:
            return False
        return not self._missing() and all(key in self._begin for key in self.rows())

    def _missing(self) -> list[int]:
        """Return what was not delivered of what stands behind the group's beginning."""
        return [
            one
            for key, rows in self.rows().items()
            for at, one in rows
            if one not in self.delivered and (self.start == "beginning" or at >= self._begin.get(key, at))
        ]

    def rows(self) -> dict[Partition, list[tuple[Offset, int]]]:
        """Return the messages of each partition, as its log was written."""
        for written in self.stage.bucket.entries[self._seen :]:
            table, _, name = written.path.partition("/_delta_log/")
            for number in range(self.stage.partitions):
                if table == partition_table(TOPIC, number):
                    entry = parse_entry(int(name[:20]), written.data, table=table)
                    index = 0
                    for add in entry.messages:
                        ids = records.decode(self.stage.bucket.data[f"{table}/{add.path}"]).column("n").to_pylist()
                        found = self._rows.setdefault((TOPIC, number), [])
                        found += [(Offset(entry.version, index + row), one) for row, one in enumerate(ids)]
                        index += len(ids)
        self._seen = len(self.stage.bucket.entries)
        return self._rows

    def record(self, process: Process, member: str, op: Any, outcome: Any, **fields: Any) -> None:
        """Add to the history; each time that a process joins it is another one."""
        name = f"{process.name}/{member}"
        self._names[name] = process
        self.stage.events.append(Event(self.stage.world.now_us, name, op, outcome, topic=TOPIC, group=GROUP, **fields))
        self.stage.opened_us[name] = None

    def assign(self, process: Process, member: str, key: Partition) -> None:
        """Record that a member has a partition, once: as late as possible, when it is sure that it has."""
        if (member, key) not in self._present:
            self._present.add((member, key))
            start = self.opened[member, key]
            where: dict[str, Any] = {"partition": key[1], "offset": (start.version, start.index)}
            self.record(process, member, "assign", "ok", **where)

    def release(self, process: Process, member: str, key: Partition) -> None:
        """Record that a member does not read a partition any more; who was removed had lost it before."""
        if (member, key) in self.opened and self._states[member].fenced is None:
            self.assign(process, member, key)
            self.record(process, member, "release", "ok", partition=key[1])
        self.opened.pop((member, key), None)
        self._present.discard((member, key))

    def check_accepted(self, member: str, offsets: dict[Partition, Offset]) -> None:
        """Check that a commit that was said to be the group's is."""
        known = {key: one.offset for key, one in self._states[member].committed.items()}
        if offsets.items() - known.items():
            self._fail(f"{member} was told that {offsets} are committed; they are {known}")

    def _written(self, path: str, data: bytes, process: Process | None) -> None:
        match = _MEMBER.fullmatch(path)
        if match is None or process is None:
            return
        name, new = match[1], MemberState.parse(data, path=path)
        if name not in self._states:
            self.incarnations.setdefault(name.rpartition("-")[0], set()).add(process.name)
        old = self._states.get(name, MemberState(name))
        self._states[name] = new
        if old.fenced is not None:
            self._fail(f"{name} was written by {process.name} after it had been fenced")
        changes = {key: one for key, one in new.committed.items() if old.committed.get(key) != one}
        for key, one in changes.items():
            if new.fenced is not None and new.beat == old.beat:
                self._fail(f"{process.name} changed what {name} has committed when it fenced it")
            self._judge(key, one, name)
            if self.auto_commit and old.committed.get(key, one).epoch == one.epoch and key in old.committed:
                if (name, key) in self.opened:
                    self.assign(process, name, key)
                call = len(self.stage.events) + 1
                where: dict[str, Any] = {"partition": key[1], "offset": (one.offset.version, one.offset.index)}
                for outcome in ("invoke", "ok"):
                    self.record(process, name, "commit", outcome, call=call, **where)

    def _judge(self, key: Partition, one: Committed, name: str) -> None:
        """Whether a commit that was accepted is its owner's, continues the group's, and is of what was delivered."""
        before = self._newest.get(key)
        owner = self._claims.setdefault((key, one.epoch), name)
        if owner != name:
            self._fail(f"{name} committed {key} in epoch {one.epoch}, which is {owner}'s")
        elif before is not None and one.epoch < before.epoch:
            self._fail(f"{name} committed {key} at {one.offset} in epoch {one.epoch}; {before.epoch} had begun")
        elif before is not None and one.epoch > before.epoch and one.offset != before.offset:
            self._fail(f"{name} began {key} at {one.offset}; the group had committed {before.offset}")
        self._newest[key] = before if before is not None and before.epoch > one.epoch else one
        begin = Offset(0) if self.start == "beginning" else self._begin.setdefault(key, one.offset)
        self._begin.setdefault(key, begin)
        rows = self.rows().get(key, [])
        missing = [row for at, row in rows if begin <= at < one.offset and row not in self.delivered]
        if missing:
            self._fail(f"{name} committed {key} at {one.offset}; {missing} were never delivered")

    def _fail(self, text: str) -> None:
        self.stage.world.fail(f"the group: {text}")

    def judge(self) -> None:
        """Judge the end: the history, and that nothing is missing."""
        if missing := self._missing():
            self._fail(f"{missing} were never delivered")
        verdict = check(self.stage.events)
        for finding in verdict.findings:
            names = {self.stage.events[number - 1].process for number in finding.events}
            # Of who owns a partition only running clocks can tell: docs/guarantees.md, "Consumer groups".
            stood_still = any(name in self._names and self._names[name].clock.stood_still_us for name in names)
            # Nor of a static member that still runs when another one takes its place, and perhaps hands it on.
            members = [self._states.get(name.partition("/")[2]) for name in names]
            replaced = any(one is not None and (one.fenced or "").startswith(_REPLACED) for one in members)
            if finding.kind == "two-owners" and (stood_still or replaced):
                self.stage.world.counts["sleepers that gave messages out beside their successor"] += 1
            else:
                self._fail(f"the history's checker: {finding.kind}: {finding.text}")


class GroupConsumer(Consumer):
    """A consumer that says where it begins and when it lets partitions go."""

    recorder: _Recorder | None = None

    def _open_partition(self, partition: Partition, committed: Committed | None) -> Committed:
        begun = super()._open_partition(partition, committed)
        if self.recorder is not None:
            self.recorder.opened(partition, begun.offset)
        return begun

    def _drop(self, partitions: Collection[Partition]) -> None:
        super()._drop(partitions)
        if self.recorder is not None:
            self.recorder.release(partitions)

    @property
    def member(self) -> str:
        """The name of the member that it is now."""
        return self._group.membership.name if self._group is not None else ""

    def beat(self) -> None:
        """Do what the thread of the heartbeats would, between two polls."""
        if self._group is not None:
            self._group._pulse.beat()

    @property
    def fenced(self) -> bool:
        """Whether it knows that it was removed."""
        return self._group is not None and self._group.membership.lost


class _Recorder:
    """What one consumer does, in the history."""

    def __init__(self, truth: Truth, process: Process, consumer: GroupConsumer) -> None:
        self._truth, self._process, self._consumer = truth, process, consumer
        self._members: dict[Partition, str] = {}  # as which member it reads each partition

    def opened(self, key: Partition, start: Offset) -> None:
        """Note where it begins."""
        self._members[key] = self._consumer.member
        self._truth.opened[self._consumer.member, key] = start

    def polled(self, batches: Sequence[Batch]) -> None:
        """Record what a poll returned; who gets the first messages of a partition has it from then on."""
        call = len(self._truth.stage.events) + 1
        for batch in batches:
            member = self._consumer.member
            self._truth.assign(self._process, member, (batch.topic, batch.partition))
            ids: list[int] = list(batch.data.column("n").to_pylist())
            self._truth.delivered.update(ids)
            about: dict[str, Any] = {"partition": batch.partition, "ids": ids}
            about["offset"] = batch.version, batch.first_index
            about["next"] = batch.next.version, batch.next.index
            self._truth.record(self._process, member, "poll", "ok", call=call, **about)

    def release(self, partitions: Collection[Partition]) -> None:
        """Record that these partitions are not read any more."""
        for key in partitions:
            if (member := self._members.pop(key, None)) is not None:
                self._truth.release(self._process, member, key)

    def commit(self, offsets: dict[Partition, Offset]) -> bool:
        """Commit by hand; return whether the member is still in the group, as far as it knows."""
        events = self._truth.stage.events
        calls = {key: len(events) + 1 + number for number, key in enumerate(offsets)}
        member = self._consumer.member

        def record(outcome: str) -> None:
            for key, one in offsets.items():
                where: dict[str, Any] = {"partition": key[1], "offset": (one.version, one.index)}
                self._truth.record(self._process, member, "commit", outcome, call=calls[key], **where)

        record("invoke")
        try:
            self._consumer.commit(offsets)
        except MemberFenced:
            record("fail")
            self._truth.stage.world.counts["commits that were refused"] += 1
            return False
        except BaseException:
            record("unknown")
            raise
        record("ok")
        self._truth.check_accepted(member, offsets)
        return True


class Member(Role):
    """A member of the group. It polls, commits, sleeps for too long, dies without a word, or leaves and comes back."""

    name = "member"
    failover = True

    def __init__(self, stage: Stage, number: int, truth: Truth) -> None:
        super().__init__(stage, number)
        rng = stage.world.rng
        self.truth = truth
        self.instance = self.name if rng.random() < 0.3 else None
        self.mischief = (0.0, 0.02, 0.1)[rng.randrange(3)]
        self.patience = rng.randrange(5, 40)

    def body(self, process: Process) -> None:
        truth, rng = self.truth, self.world.rng
        consumer = GroupConsumer(
            TOPIC,
            start=truth.start,
            store=process.connection,
            clock=process.clock,
            batch_bytes=(1, 2000, 2**20)[rng.randrange(3)],
            group=GROUP,
            auto_commit=truth.auto_commit,
            instance=self.instance,
            strategy=truth.strategy,
        )
        consumer.recorder = recorder = _Recorder(truth, process, consumer)
        idle = 0
        offsets: dict[Partition, Offset] = {}
        begun_us = self.world.now_us
        # Whoever goes too soon never learns that the others are dead.
        while not truth.all_delivered() and (idle < self.patience or self.world.now_us < begun_us + 30 * SECOND):
            if rng.random() < self.mischief:
                self.world.counts["members that slept"] += 1
                process.wait(rng.randrange((6, 30, 200)[rng.randrange(3)] * SECOND))
                if offsets and not truth.auto_commit and rng.random() < 0.5:
                    recorder.commit(offsets)  # what it did before
            if rng.random() < self.mischief / 4:
                self.world.counts["members that died"] += 1
                process.die()
            if rng.random() < self.mischief / 4:
                break
            try:
                batches = consumer.poll(0.0 if rng.random() < 0.8 else 0.5)
                recorder.polled(batches)
                offsets |= {(batch.topic, batch.partition): batch.next for batch in batches}
                idle = 0 if batches else idle + 1
                while batches and rng.random() < 0.3:  # work that takes time
                    process.wait(rng.randrange(3 * SECOND))
                    consumer.beat()
                if offsets and not truth.auto_commit and rng.random() < 0.6:
                    recorder.commit(offsets)
                    offsets = {}
            except StoreError:
                if rng.random() < 0.4:
                    raise
                self.world.counts["members that tried again"] += 1
                idle += 1
            process.wait(rng.randrange(SECOND // 10) if rng.random() < 0.5 else rng.randrange(2 * SECOND))
        if not truth.auto_commit and offsets and not consumer.fenced:
            recorder.commit(offsets)
        consumer.close()
        self.world.counts["members that left"] += 1
        self.done = truth.all_delivered()

    def judge(self, process: Process, error: BrokerlessError) -> None:
        if isinstance(error, GroupDamaged):
            self.world.fail(f"{process.name} ended by {type(error).__name__}: {error}")
        if isinstance(error, MemberFenced):
            if self.instance is None or len(self.truth.incarnations[self.instance]) < 2:
                self.world.fail(f"{process.name} was told that it was replaced, and nobody took its place: {error}")
            self.world.counts["static members that were replaced"] += 1
        else:
            super().judge(process, error)
