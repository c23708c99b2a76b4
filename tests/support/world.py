"""Random histories with a fault of each kind on request; one file because all steps share one world."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from brokerless.testing.history.events import Event


@dataclass
class Call:
    """A send on its way: which rows go where, what will be said about each partition, and where they landed."""

    number: int
    ids: list[int]
    parts: dict[int, list[int]]
    plan: dict[int, str]
    landed: dict[int, int] = field(default_factory=dict)
    done: bool = False  # nothing more lands


@dataclass
class Sender:
    name: str
    queued: bool
    incarnation: int = 0
    calls: list[Call] = field(default_factory=list)
    resend: Call | None = None

    @property
    def process(self) -> str:
        return f"{self.name}-{self.incarnation}"


@dataclass
class Reader:
    process: str
    at: dict[int, tuple[int, int]]


class World:
    """Partitions, producers, readers and a group that behave as they should, in a random order of steps."""

    def __init__(self, seed: int, fault: str | None = None) -> None:
        self.rng = random.Random(seed)
        self.events: list[Event] = []
        self.numbers = iter(range(1, 10**9))
        self.logs: list[list[list[int]]] = [[[]] for _ in range(self.rng.randint(1, 3))]  # version 0 has no messages
        self.senders = [Sender(f"p{n}", self.rng.random() < 0.4) for n in range(self.rng.randint(1, 3))]
        self.readers: list[Reader] = []
        self.owners: dict[int, Reader] = {}
        self.committed: dict[int, tuple[int, int]] = {}
        steps = self.rng.randint(15, 60)
        planted_at = self.rng.randrange(steps)
        for step in range(steps):
            if fault and step == planted_at:
                getattr(self, f"plant_{fault.replace('-', '_')}")()
            self.rng.choice([self.produce, self.produce, self.read, self.read, self.work, self.upset])()
        for sender in self.senders:
            while sender.calls:
                self.advance(sender, sender.calls[0])
        last = self.open_reader(dict.fromkeys(range(len(self.logs)), (0, 0)))
        for partition in range(len(self.logs)):
            self.deliver(last, partition, 1000)

    def emit(self, process: str, op: Any, outcome: Any, **fields: Any) -> None:
        self.events.append(Event(len(self.events), process, op, outcome, topic="t", **fields))

    def number(self) -> int:
        return next(self.numbers)

    # Producers

    def produce(self) -> None:
        sender = self.rng.choice(self.senders)
        if sender.calls and (not sender.queued or self.rng.random() < 0.6):
            self.advance(sender, sender.calls[0])
        else:
            self.begin(sender)

    def begin(self, sender: Sender) -> Call:
        again, sender.resend = sender.resend, None
        if again is not None:
            call = Call(self.number(), again.ids, again.parts, dict.fromkeys(again.parts, "ok"), dict(again.landed))
        else:
            ids = [self.number() for _ in range(self.rng.randint(1, 4))]
            chosen = self.rng.sample(range(len(self.logs)), self.rng.randint(1, min(2, len(self.logs))))
            parts: dict[int, list[int]] = {}
            for one in ids:
                parts.setdefault(self.rng.choice(chosen), []).append(one)
            plan = {p: self.rng.choices(["ok", "fail", "unknown"], [8, 1, 1])[0] for p in parts}
            if "unknown" in plan.values():  # then nothing that is not acknowledged may be called failed
                plan = {p: "unknown" if said == "fail" else said for p, said in plan.items()}
            call = Call(self.number(), ids, parts, plan)
        sender.calls.append(call)
        self.emit(
            sender.process, "send", "invoke", call=call.number, ids=call.ids, queued=sender.queued, producer=sender.name
        )
        return call

    def advance(self, sender: Sender, call: Call) -> None:
        """Lands the call if that is still to be done, otherwise reports it."""
        if not call.done:
            known = set(call.landed)
            for partition, said in call.plan.items():
                if partition not in known and (said == "ok" or (said == "unknown" and self.rng.random() < 0.5)):
                    call.landed[partition] = self.append(partition, call.parts[partition])
            call.done = True
            call.plan = {p: "duplicate" if p in known else said for p, said in call.plan.items()}
            return
        sender.calls.remove(call)
        self.report(sender, call)
        if "unknown" in call.plan.values() and self.rng.random() < 0.5:
            sender.resend = call

    def report(self, sender: Sender, call: Call) -> None:
        good = [p for p, said in call.plan.items() if said in ("ok", "duplicate")]
        acks = [[p, -1 if call.plan[p] == "duplicate" else call.landed[p], 0, len(call.parts[p])] for p in good]
        fields = {"call": call.number, "producer": sender.name}
        if len(good) == len(call.parts):
            self.emit(sender.process, "send", "ok", acks=acks, **fields)
            return
        acknowledged = {one for p in good for one in call.parts[p]}
        if good:
            ids = [one for one in call.ids if one in acknowledged]
            self.emit(sender.process, "send", "ok", acks=acks, ids=ids, **fields)
        rest = [one for one in call.ids if one not in acknowledged]
        outcome = "unknown" if "unknown" in call.plan.values() else "fail"
        self.emit(sender.process, "send", outcome, ids=rest, **fields)

    def append(self, partition: int, ids: list[int]) -> int:
        if self.rng.random() < 0.1:
            self.logs[partition].append([])  # a claim, or a rewrite: no messages
        self.logs[partition].append(list(ids))
        return len(self.logs[partition]) - 1

    def kill(self, sender: Sender) -> None:
        """Its calls end nowhere; what is on its way lands before its successor begins, or never."""
        for call in sender.calls:
            if not call.done:
                for partition in call.parts:
                    if partition not in call.landed and self.rng.random() < 0.5:
                        call.landed[partition] = self.append(partition, call.parts[partition])
                if self.rng.random() < 0.5:
                    break
        if sender.calls and not sender.queued:
            sender.resend = sender.calls[-1]
        sender.calls = []
        sender.incarnation += 1

    # Readers

    def open_reader(self, at: dict[int, tuple[int, int]], group: str | None = None) -> Reader:
        reader = Reader(f"r{self.number()}", at)
        for partition, offset in at.items():
            self.emit(reader.process, "assign", "ok", partition=partition, offset=offset, group=group)
        return reader

    def offset_in(self, partition: int) -> tuple[int, int]:
        """Somewhere in a log, now and then within a commit."""
        version = self.rng.randint(0, len(self.logs[partition]))
        rows = len(self.logs[partition][version]) if version < len(self.logs[partition]) else 0
        return version, self.rng.randrange(rows) if rows and self.rng.random() < 0.3 else 0

    def read(self) -> None:
        if not self.readers or self.rng.random() < 0.2:
            self.readers.append(self.open_reader({p: self.offset_in(p) for p in range(len(self.logs))}))
        reader = self.rng.choice(self.readers)
        call = self.number()
        for partition in reader.at:
            self.deliver(reader, partition, self.rng.randint(0, 4), call=call)

    def deliver(self, reader: Reader, partition: int, commits: int, *, call: int | None = None) -> None:
        call = call or self.number()
        version, index = reader.at[partition]
        for _ in range(commits):
            if version >= len(self.logs[partition]):
                break
            ids = self.logs[partition][version][index:]
            fields: dict[str, Any] = {"ids": ids, "offset": (version, index)} if ids else {}
            self.emit(reader.process, "poll", "ok", call=call, partition=partition, next=(version + 1, 0), **fields)
            version, index = version + 1, 0
        reader.at[partition] = (version, index)

    # The group

    def work(self) -> None:
        partition = self.rng.randrange(len(self.logs))
        owner = self.owners.get(partition) or self.hand_over(partition)
        self.deliver(owner, partition, self.rng.randint(0, 3))
        if self.rng.random() < 0.7:
            self.commit(owner, partition)

    def hand_over(self, partition: int, *, crashed: bool = False) -> Reader:
        owner = self.owners.pop(partition, None)
        if owner is not None and not crashed:
            self.emit(owner.process, "release", "ok", partition=partition, group="g")
        start = self.committed.get(partition) or (0, 0)
        self.owners[partition] = self.open_reader({partition: start}, "g")
        return self.owners[partition]

    def commit(self, owner: Reader, partition: int, outcome: str | None = None) -> None:
        outcome = outcome or self.rng.choices(["ok", "fail", "unknown", "none"], [8, 1, 1, 1])[0]
        fields = {"call": self.number(), "partition": partition, "group": "g", "offset": owner.at[partition]}
        self.emit(owner.process, "commit", "invoke", **fields)
        if outcome == "ok" or (outcome != "fail" and self.rng.random() < 0.5):
            self.committed[partition] = owner.at[partition]
        if outcome != "none":
            self.emit(owner.process, "commit", outcome, **fields)

    def upset(self) -> None:
        """What happens to programs: kills, seeks, restarts and handovers."""
        partition = self.rng.randrange(len(self.logs))
        kind = self.rng.randrange(5)
        if kind == 0:
            self.kill(self.rng.choice(self.senders))
        elif kind == 1 and self.readers:
            reader = self.rng.choice(self.readers)
            reader.at[partition] = self.offset_in(partition)
            self.emit(reader.process, "assign", "ok", partition=partition, offset=reader.at[partition])
        elif kind == 2 and self.readers:
            reader = self.rng.choice(self.readers)
            reader.process = f"r{self.number()}"  # goes on where it was, and does not say so
        elif kind == 3:
            self.hand_over(partition, crashed=self.rng.random() < 0.5)
        elif partition in self.owners:
            # The same process may get it again after it gave it up.
            owner = self.owners[partition]
            self.emit(owner.process, "release", "ok", partition=partition, group="g")
            owner.at[partition] = self.committed.get(partition) or (0, 0)
            self.emit(owner.process, "assign", "ok", partition=partition, group="g", offset=owner.at[partition])

    # Faults

    def sure_call(
        self, *, rows: int = 0, sender: Sender | None = None, partition: int | None = None
    ) -> tuple[Sender, Call, int]:
        """A call of its own producer, to one partition, that ends well if it is landed and reported."""
        sender = sender or Sender(f"x{self.number()}", queued=False)
        partition = self.rng.randrange(len(self.logs)) if partition is None else partition
        ids = [self.number() for _ in range(rows or self.rng.randint(1, 4))]
        call = Call(self.number(), ids, {partition: ids}, {partition: "ok"})
        self.emit(sender.process, "send", "invoke", call=call.number, ids=ids, producer=sender.name)
        return sender, call, partition

    def sure_commit(self, **more: Any) -> tuple[int, int]:
        sender, call, partition = self.sure_call(**more)
        call.landed[partition] = self.append(partition, call.ids)
        self.report(sender, call)
        return partition, call.landed[partition]

    def others_between(self) -> None:
        for _ in range(self.rng.randrange(3)):
            self.rng.choice([self.produce, self.read])()

    def plant_lost(self) -> None:
        sender, call, partition = self.sure_call()
        if self.rng.random() < 0.3:  # called a duplicate, and not there
            call.plan[partition] = "duplicate"
            self.others_between()
            self.report(sender, call)
            self.sure_commit(sender=sender, partition=partition)
            return
        call.landed[partition] = self.append(partition, call.ids[: self.rng.randrange(len(call.ids))])
        self.others_between()
        self.report(sender, call)

    def plant_duplicate(self) -> None:
        sender, call, partition = self.sure_call()
        call.landed[partition] = self.append(partition, call.ids)
        self.others_between()
        again = self.rng.randrange(len(self.logs))
        self.append(again, [self.rng.choice(call.ids)] if self.rng.random() < 0.5 else call.ids)
        self.report(sender, call)

    def plant_duplicate_delivery(self) -> None:
        partition, version = self.sure_commit()
        reader = self.open_reader({partition: (self.rng.randint(0, version), 0)})
        number = self.number()
        self.deliver(reader, partition, 1000, call=number)
        reader.at[partition] = (version, self.rng.randrange(len(self.logs[partition][version])))
        self.deliver(reader, partition, 1, call=self.rng.choice([number, None]))

    def plant_phantom(self) -> None:
        self.append(self.rng.randrange(len(self.logs)), [-self.number()])

    def plant_failed_but_seen(self) -> None:
        sender, call, partition = self.sure_call()
        if self.rng.random() < 0.5:
            call.landed[partition] = self.append(partition, call.ids)
        call.plan[partition] = "fail"
        self.report(sender, call)
        self.others_between()
        if partition not in call.landed:
            self.append(partition, call.ids)

    def plant_gap(self) -> None:
        if self.rng.random() < 0.3:
            partition, version = self.sure_commit()
            owner = self.hand_over(partition)
            self.deliver(owner, partition, 1000)
            self.commit(owner, partition, "ok")
            self.sure_commit()
            self.committed[partition] = (self.committed[partition][0] + self.rng.randint(1, 3), 0)
            self.hand_over(partition)
            self.owners.pop(partition)
            self.committed[partition] = (0, 0)
            return
        partition, version = self.sure_commit(rows=3)
        reader = self.open_reader({partition: (self.rng.randint(0, version), 0)})
        self.deliver(reader, partition, version - reader.at[partition][0])
        self.others_between()
        reader.at[partition] = (version + 1, 0) if self.rng.random() < 0.5 else (version, self.rng.randint(1, 2))
        self.append(partition, [])
        self.deliver(reader, partition, 1)

    def plant_reordered(self) -> None:
        kind = self.rng.randrange(3)
        if kind == 0:  # a late first call, whose outcome was unknown
            sender, first, partition = self.sure_call()
            first.plan[partition] = "unknown"
            self.report(sender, first)
            _, second, other = self.sure_call(sender=sender)
            second.landed[other] = self.append(other, second.ids)
            self.report(sender, second)
            self.others_between()
            self.append(other, first.ids)
        elif kind == 1:  # rows of one call, whose end nobody heard of
            _, call, partition = self.sure_call(rows=3)
            self.append(partition, [call.ids[1], call.ids[0], call.ids[2]])
        else:  # two commits change places in a reader's poll
            partition, version = self.sure_commit()
            end = self.append(partition, [])
            self.emit("w-0", "send", "invoke", call=-1, ids=[-1], producer="w")
            last = self.append(partition, [-1])
            reader = self.open_reader({partition: (version, 0)})
            number = self.number()
            reader.at[partition] = (last, 0)
            self.deliver(reader, partition, 1, call=number)
            reader.at[partition] = (version, 0)
            self.deliver(reader, partition, end - version + 1, call=number)

    def plant_non_monotonic_poll(self) -> None:
        partition, version = self.sure_commit()
        self.emit("w-0", "send", "invoke", call=-1, ids=[-1], producer="w")
        last = self.append(partition, [-1])
        reader = self.open_reader({partition: (version, 0)})
        reader.at[partition] = (last, 0)
        self.deliver(reader, partition, 1)
        self.others_between()
        reader.at[partition] = (version, 0)
        self.deliver(reader, partition, last - version)

    def plant_two_owners(self) -> None:
        partition, _ = self.sure_commit()
        old = self.hand_over(partition)
        self.others_between()
        at = dict(old.at)
        if self.rng.random() < 0.5:  # still working
            self.hand_over(partition, crashed=True)
            self.others_between()
            old.at = at
            self.deliver(old, partition, 1)
        else:  # gave it up too late
            self.hand_over(partition, crashed=True)
            self.emit(old.process, "release", "ok", partition=partition, group="g")

    def plant_zombie_write(self) -> None:
        if self.rng.random() < 0.5:
            partition, _ = self.sure_commit()
            old = self.hand_over(partition)
            self.commit(old, partition, "ok")
            if self.rng.random() < 0.5:
                self.emit(old.process, "release", "ok", partition=partition, group="g")
            new = self.hand_over(partition, crashed=True)
            self.commit(new, partition, "ok")
            self.others_between()
            self.commit(old, partition, "ok")
            return
        name = f"x{self.number()}"
        partition = None
        for incarnation in (0, 1, 0):
            sender = Sender(name, queued=False, incarnation=incarnation)
            ids = [self.number()]
            partition = self.rng.randrange(len(self.logs)) if partition is None else partition
            call = Call(self.number(), ids, {partition: ids}, {partition: "ok"})
            self.emit(sender.process, "send", "invoke", call=call.number, ids=ids, producer=name)
            call.landed[partition] = self.append(partition, ids)
            self.others_between()
            self.report(sender, call)

    def plant_inconsistent_offset(self) -> None:
        if self.rng.random() < 0.5:  # the acknowledgement names another place
            sender, call, partition = self.sure_call()
            call.landed[partition] = self.append(partition, call.ids) + self.rng.choice([-1, 1])
            self.report(sender, call)
            return
        partition, version = self.sure_commit(rows=2)
        reader = self.open_reader({partition: (version, 0)})
        self.logs[partition][version].reverse()
        self.deliver(reader, partition, 1)
        self.logs[partition][version].reverse()
