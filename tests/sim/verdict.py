"""What must be true when a seed has ended, judged by the bucket's own memory of every entry that was ever created.

The log as it was written is the truth: what clean-up removed and what was retried counts as it first appeared.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from brokerless.columns import records
from brokerless.log.checkpoint import TableState, read_checkpoint, replayed
from brokerless.log.commit import REMOVALS
from brokerless.log.entries import START_TXN, Entry, parse_entry
from brokerless.log.log import RECHECK_S
from brokerless.maintenance.maintainer import SETTLE_S
from brokerless.schema import dead_letters, partition_table
from brokerless.testing.history import check, check_pipeline
from tests.sim.bucket import CLOCK_US, Written, before
from tests.sim.roles import (
    GRACE_S,
    MOST_PARTITIONS,
    OUTPUT,
    PIPELINE,
    RETENTION_S,
    TOPIC,
    Function,
    Maintenance,
    Pipeline,
    Reading,
    Run,
    Sender,
    Stage,
    is_bad,
)
from tests.sim.world import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ENTRY: Final = re.compile(r"(.+)/_delta_log/(\d{20})\.json")
_SET_US: Final = 60 * SECOND  # how far a process's clock can be from the store's when it starts
_CLOCKS_US: Final = CLOCK_US + _SET_US  # and later
_SLOW_S: Final = 4.0  # a commit that was begun meets rivals, and its requests take seconds at times
_R = TypeVar("_R", bound=Sender)


@dataclass(frozen=True, slots=True)
class Row:
    """A message where the log has it."""

    version: int
    index: int
    id: int
    path: str


@dataclass(slots=True)
class Table:
    """One table's log as it was written."""

    name: str
    entries: list[tuple[Entry, Written]] = field(default_factory=list)
    ghosts: list[tuple[Entry, Written]] = field(default_factory=list)
    """Entries under a name that clean-up had freed: their writer slept for longer than the retention."""
    id: str = ""
    rows: list[Row] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    """Where the table begins, and begins anew."""
    ends: list[tuple[int, float]] = field(default_factory=list)
    """Where it ends, and when."""
    start: int = 0
    """The first entry that retention has left."""
    gone_us: float = math.inf
    """When its folder was removed by hand."""

    def generation(self, version: int) -> int:
        """How often the topic had been created before this entry, less one."""
        return sum(version >= begin for begin in self.begins) - 1

    def until_us(self, version: int) -> float:
        """Until when what this entry says was the topic's."""
        return next((at_us for end, at_us in self.ends if end > version), self.gone_us)


class Judge:
    """Looks at one seed's end."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._fail = stage.world.fail
        self.tables: dict[str, Table] = {}
        self.former: list[Table] = []
        """Those whose folders were removed by hand; and what was written into such a folder by who could not know."""

    def judge(self, *, history: bool = True) -> None:
        """Every rule, one after the other; what is broken is reported to the world. Of a group, not the history."""
        self._read()
        for table in self.tables.values():
            self._versions(table)
            self._owners(table)
            self._strangers(table)
            self._objects(table)
            self._checkpoints(table)
            self._repeats(table)
            if self._stage.rewriting:
                self._contents(table)
        self._removals()
        self._sends()
        self._order()
        self._readers()
        self._pipelines()
        whole = history and not self._stage.recreated and not self._stage.erasures
        if whole and not self._stage.world.counts["readers that met an entry under a freed name"]:
            verdict = check(self._stage.events)
            if not verdict.ok:
                self._fail(f"the history's checker: {verdict.text()}")

    # The log

    def _read(self) -> None:
        for written in self._stage.bucket.entries:
            match = _ENTRY.fullmatch(written.path)
            if match is None:
                self._fail(f"{written.path} is no entry's name")
                continue
            table = self._table_of(written, match[1])
            entry = parse_entry(int(match[2]), written.data, table=match[1])
            known = any(entry.version == other.version for other, _ in table.entries)
            (table.ghosts if known else table.entries).append((entry, written))
        for written in (*self._stage.bucket.cleaned, *self._stage.bucket.strays.values()):
            self._stray(written)
        for table in [*self.tables.values(), *self.former]:
            if self._stage.by_hand:
                table.entries.sort(key=lambda known: known[0].version)
            for entry, written in table.entries:
                if entry.metadata is not None and not entry.metadata.deleted:
                    if entry.metadata.id != table.id:  # and no change of its limits
                        table.begins.append(entry.version)
                    table.id = entry.metadata.id
                elif entry.metadata is not None:
                    table.ends.append((entry.version, written.at_us))
                table.start = max(table.start, entry.txns.get(START_TXN, 0))
                index = 0
                for add in entry.messages:
                    path = f"{table.name}/{add.path}"
                    data = self._stage.bucket.data.get(path)
                    if data is None:
                        self._fail(f"entry {entry.version} of {table.name} names {path}, which was never uploaded")
                        continue
                    ids = _ids(data)
                    table.rows += [Row(entry.version, index + i, one, path) for i, one in enumerate(ids)]
                    index += len(ids)
                    if add.rows != len(ids):
                        self._fail(f"{path} has {len(ids)} rows, its entry says {add.rows}")

    def _table_of(self, written: Written, name: str) -> Table:
        """The table as it was when this was written."""
        for gone_us in self._stage.bucket.wiped_us.get(name, ()):
            if written.at_us <= gone_us:
                for table in self.former:
                    if (table.name, table.gone_us) == (name, gone_us):
                        return table
                self.former.append(Table(name, gone_us=gone_us))
                return self.former[-1]
        return self.tables.setdefault(name, Table(name))

    def _stray(self, written: Written) -> None:
        """Who writes behind no other entry had looked at the last one just before."""
        name, version = written.path.partition("/")[0], int(written.path[-25:-5])
        gone_us = max(us for us in self._stage.bucket.wiped_us[name] if us < written.at_us)
        if self._late(written, gone_us):
            self._fail(
                f"{written.process and written.process.name} wrote entry {version} of {name} behind no other, "
                f"{(written.at_us - gone_us) / 1e6:.1f} s after the folder had been removed"
            )
        self._stage.world.counts["entries behind no other"] += 1
        entry = parse_entry(version, written.data, table=name)
        self.former.append(Table(name, entries=[(entry, written)]))

    def _late(self, written: Written, gone_us: int) -> bool:
        """Whether its writer must have looked once more before, and seen that the folder was removed."""
        process = written.process
        if process is None or process.paused_us:
            return False
        return process.sent_us[written.data][0] > gone_us + (RECHECK_S + _SLOW_S) * SECOND

    def _versions(self, table: Table) -> None:
        found = [entry.version for entry, _ in table.entries]
        if found != list(range(len(found))):
            self._fail(f"{table.name}: versions appeared as {found}")
        ids = Counter(entry.commit_id for entry, _ in table.entries)
        for commit, count in ids.items():
            if count > 1:
                self._fail(f"{table.name}: commit {commit} stands in {count} entries")
        times = [entry.timestamp_ms for entry, _ in table.entries]
        if times != sorted(times) and not self._stage.by_hand:
            self._fail(f"{table.name}: times of entries go back: {times}")
        for entry, written in table.ghosts:
            self._stage.world.counts["entries under a freed name"] += 1
            slept_us = written.process.paused_us if written.process else 0
            if slept_us < (RETENTION_S * SECOND) - _CLOCKS_US:
                self._fail(
                    f"{table.name}: {written.process and written.process.name} wrote entry {entry.version} "
                    f"a second time, having slept {slept_us / 1e6:.0f} s"
                )

    def _owners(self, table: Table) -> None:
        """Who met somebody else's epoch writes nothing more."""
        if self._stage.by_hand:
            return  # the epochs went with the folder
        owners: dict[str, str] = {}
        for entry, written in table.entries:
            name = written.process.name if written.process else "-"
            if entry.operation == "CREATE TABLE":
                continue
            for app in entry.txns:
                if app.endswith("/epoch"):
                    owners[app.removesuffix("/epoch").removeprefix("pipeline/")] = name
            for app in entry.txns:
                owner = owners.get(app.partition(":")[0])
                if owner not in (None, name):
                    self._fail(f"{table.name}: {name} wrote entry {entry.version} as {app}, which is {owner}'s")

    def _strangers(self, table: Table) -> None:
        """Who opened a topic that was deleted since leaves nothing in the new one."""
        wiped_us = self._stage.bucket.wiped_us.get(table.name, [])
        dropped_us = max([0, *wiped_us])
        for entry, written in table.entries:
            if entry.metadata is not None and entry.metadata.deleted:
                dropped_us = written.at_us
            opened_us = written.process.opened_us if written.process else None
            if wiped_us and not self._late(written, dropped_us):
                continue
            if opened_us is not None and opened_us < dropped_us <= written.at_us:
                self._fail(
                    f"{written.process and written.process.name} opened the topic before it was deleted, and wrote "
                    f"entry {entry.version} of the new {table.name}"
                )

    def _objects(self, table: Table) -> None:
        """Whatever is live can be read."""
        bucket = self._stage.bucket
        live: dict[str, Written] = {}
        for entry, written in table.entries:
            live.update(dict.fromkeys((f"{table.name}/{add.path}" for add in entry.adds), written))
            for path in entry.removes:
                live.pop(f"{table.name}/{path}", None)
        for path, written in live.items():
            if path not in bucket.objects:
                removed = bucket.removed.get(path)
                if removed is None and path in bucket.data and table.name in bucket.wiped_us:
                    continue  # uploaded before the folder was removed, committed at the last moment behind it
                if removed is None:
                    self._fail(f"{path} is live but was never written")
                    continue
                # A sleeper that is killed between its commit and the second upload: docs/guarantees.md, "Sleepers".
                process = written.process
                if process and process.killed and process.paused_us > GRACE_S * SECOND - _CLOCKS_US:
                    bucket.world.counts["sleepers killed before they put their object back"] += 1
                    continue
                self._fail(
                    f"{path} is live but was removed by {removed.process.name}, {removed.age_us / 1e6:.0f} s old"
                )
        hint, head = self._hint(table), len(table.entries)
        for version in range(0 if hint is None else hint + 1, head):
            if f"{table.name}/_delta_log/{version:020d}.json" not in bucket.objects:
                self._fail(f"entry {version} of {table.name} is gone; the hint says {hint}")

    def _contents(self, table: Table) -> None:
        """What other engines find: each message once, but for what retention or an erasure has removed."""
        live: Counter[int] = Counter()
        files: dict[str, None] = {}
        for entry, _ in table.entries:
            files.update(dict.fromkeys(add.path for add in entry.adds))
            for path in entry.removes:
                files.pop(path, None)
        for path in files:
            live.update(_ids(self._stage.bucket.data[f"{table.name}/{path}"]))
        of_topic = table in self._topic_tables()
        erased = self._stage.erased() if of_topic else frozenset()
        at_us = {entry.version: written.at_us for entry, written in table.entries}
        for row in table.rows:
            if live[row.id] > 1:
                self._fail(f"{row.id} is in {live[row.id]} live files of {table.name}")
            if not live[row.id] and row.id not in erased and row.version >= table.start:
                self._fail(f"{row.id} of entry {row.version} is in no live file of {table.name}")
            for ids, begun_us, done_us in self._stage.erasures if of_topic else ():
                if live[row.id] and row.id in ids and done_us < math.inf and at_us[row.version] < begun_us:
                    self._fail(f"{row.id} of entry {row.version} was erased, and is in a live file of {table.name}")
        if strangers := set(live) - {row.id for row in table.rows}:
            self._fail(f"live files of {table.name} hold {sorted(strangers)}, which no entry brought")

    def _hint(self, table: Table) -> int | None:
        data = self._stage.bucket.objects.get(f"{table.name}/_delta_log/_last_checkpoint")
        found = re.search(rb'"version": (\d+)', data) if data else None
        return int(found[1]) if found else None

    def _checkpoints(self, table: Table) -> None:
        """A checkpoint says what the entries below it say."""
        mine = [c for c in self._stage.bucket.checkpoints if c.path.startswith(f"{table.name}/_delta_log/")]
        wanted = {int(c.path.rpartition("/")[2][:20]): c for c in mine}
        hint = self._hint(table)
        if hint is not None and f"{table.name}/_delta_log/{hint:020d}.checkpoint.parquet" not in (
            self._stage.bucket.objects
        ):
            self._fail(f"{table.name}: the hint names checkpoint {hint}, which is not there")
        state: TableState | None = None
        for entry, _ in table.entries if wanted else ():
            state = replayed(state, entry, uri=table.name, with_files=True)
            if (written := wanted.get(entry.version)) is None:
                continue
            found = read_checkpoint(_OneObject(written), table.name, entry.version, with_files=True)  # type: ignore[arg-type]
            if found is None or (found.txns, set(found.files), found.metadata.id) != (
                state.txns,
                set(state.files),
                state.metadata.id,
            ):
                self._fail(f"{table.name}: checkpoint {entry.version} differs from the log")

    def _removals(self) -> None:
        """Maintenance removes what is old, and nothing else."""
        named: dict[str, int] = {}
        for table in self.tables.values():
            for entry, written in table.entries:
                named.update((f"{table.name}/{add.path}", written.at_us) for add in entry.adds)
                for tombstone in entry.removes:
                    named.pop(f"{table.name}/{tombstone}", None)
        for path, removed in self._stage.bucket.removed.items():
            if not removed.process.name.startswith(Maintenance.name) or f"/{REMOVALS}/" in path:
                continue
            wrong_us = _CLOCKS_US if removed.process.clock_was_set else _SET_US
            least_us = (RETENTION_S if "/_delta_log/" in path else GRACE_S) * SECOND - wrong_us
            if removed.age_us < least_us:
                self._fail(f"{removed.process.name} removed {path} when it was {removed.age_us / 1e6:.0f} s old")
            named_us = named.get(path)
            if named_us is not None and named_us < removed.looked_us:
                self._fail(f"{removed.process.name} removed {path}, which it could have seen is live")
            if match := _ENTRY.fullmatch(path):
                settled_us = removed.at_us - int(SETTLE_S * SECOND) + wrong_us
                if not any(
                    checkpoint.path.startswith(f"{match[1]}/_delta_log/")
                    and checkpoint.path.rpartition("/")[2][:20] > match[2]
                    and checkpoint.at_us <= settled_us
                    for checkpoint in self._stage.bucket.checkpoints
                ):
                    self._fail(f"{removed.process.name} removed {path} above the last checkpoint that had settled")

    # Messages

    def _sends(self) -> None:
        """Acknowledged is in the log, at the offset that was told; unsent or failed is not."""
        attempts: dict[int, list[str]] = {}
        sent: dict[int, list[int]] = {}
        invoked_us: dict[int, int] = {}
        places: dict[tuple[str, int, int], set[int]] = {}
        until_us: dict[int, float] = {}
        """Until when each message was in the topic."""
        passed: dict[int, list[tuple[int, float]]] = {}
        """What warm functions wrote, by sender: after a message of a later call an earlier one is none that is new."""
        for table in [*self._topic_tables(), *self.former, *self._refused()]:
            for row in table.rows:
                end_us = table.until_us(row.version)
                places.setdefault((table.name, row.version, row.index), set()).add(row.id)
                until_us[row.id] = max(end_us, until_us.get(row.id, 0))
                passed.setdefault(row.id // 100_000, []).append((row.id, end_us))
        # Into a folder that was made anew by hand, a library's producer may have written at the last moment, too.
        senders = dict(self._numbered(Sender if self._stage.by_hand else Function))
        for event in self._stage.events:
            if event.op != "send":
                continue
            if event.type == "invoke":
                sent[event.call] = list(event.ids)  # type: ignore[arg-type]
                invoked_us[event.call] = event.at_us
                for one in sent[event.call]:
                    attempts.setdefault(one, []).append("invoke")
                continue
            ids: list[int] = list(event.ids or sent[event.call])  # type: ignore[arg-type]
            for one in ids:
                attempts[one][-1] = event.type
            if event.type == "ok":
                begun_us = invoked_us[event.call]
                gone = [one for one in ids if until_us.get(one, 0) < begun_us]
                if (role := senders.get(ids[0] // 100_000)) and self._stage.recreated:
                    # In flight when the topic was created anew, a later message came first: the rule of positions.
                    later = passed.get(ids[0] // 100_000, ())
                    gone = [
                        one
                        for one in gone
                        if not any(
                            other > one and end_us >= begun_us and role.source_of(other) == role.source_of(one)
                            for other, end_us in later
                        )
                    ]
                if lost := [one for one in gone if one not in until_us]:
                    self._fail(f"{lost} were acknowledged to {event.process} and are not in the log")
                elif gone:
                    self._fail(f"{gone} were acknowledged to {event.process}, but only a deleted topic has them")
                self._check_places(event.process, ids, event.acks, places)
        for table in self._topic_tables():
            for row in table.rows:
                if row.id not in attempts:
                    self._fail(f"{row.id} is in {table.name} at {row.version}:{row.index}, and nobody sent it")
                elif set(attempts[row.id]) == {"fail"}:
                    self._fail(f"{row.id} failed, and is in {table.name} at {row.version}:{row.index}")
        for role in self._stage.roles:
            if isinstance(role, Function) and self._stage.recreated:
                continue  # what was in flight when the topic was created anew may have passed what came before it
            if type(role).name in {"named", "function", "poster"} and isinstance(role, Sender):
                missing = [one for batch in role.batches for one in batch if one not in until_us]
                if missing:
                    self._fail(f"{role.name} ended, but {missing} are not in the log")

    def _check_places(
        self, process: str, ids: list[int], acks: object, places: dict[tuple[str, int, int], set[int]]
    ) -> None:
        told: list[set[int]] = []
        for number, version, first, rows in acks:  # type: ignore[attr-defined]
            if version < 0:
                return
            name = partition_table(TOPIC, number)
            told += [places.get((name, version, first + i), set()).intersection(ids) for i in range(rows)]
        if len(told) != len(ids) or set().union(*told) != set(ids):
            self._fail(f"{process} was told that {ids} are at {acks}, where the log has {told}")

    def _repeats(self, table: Table) -> None:
        """No message twice in one table (a topic that was created again may get once more what was unknown)."""
        if table.name in {OUTPUT, dead_letters(OUTPUT)} and self._stage.recreated:
            return  # judged with the pipeline
        seen: dict[tuple[int, int], Row] = {}
        for row in table.rows:
            other = seen.setdefault((table.generation(row.version), row.id), row)
            if other is not row:
                self._fail(
                    f"{row.id} is in {table.name} at {other.version}:{other.index} and at {row.version}:{row.index}"
                )

    def _order(self) -> None:
        """Each sender's messages stand in its order in each partition."""
        warm = dict(self._numbered(Function))
        for table in self._topic_tables():
            last: dict[tuple[int, int, int], int] = {}
            for row in table.rows:
                number = row.id // 100_000
                source = warm[number].source_of(row.id) if number in warm else 0
                sender = (table.generation(row.version), number, source)
                if row.id < last.get(sender, -1):
                    self._fail(f"{row.id} stands behind {last[sender]} in {table.name}")
                last[sender] = max(row.id, last.get(sender, -1))

    def _readers(self) -> None:
        """Each reader saw the log from where it began, without a gap and nothing twice."""
        strays = {row.id for table in self.former if not table.begins for row in table.rows}
        for role in self._stage.roles:
            if not isinstance(role, Reading):
                continue
            if role.confused > 20 and not any(table.ghosts for table in self.tables.values()):
                self._fail(f"{role.name} was sent back and forth by OffsetOutOfRange")
            for run in role.runs:
                if strays.intersection(one for _, _, one in run.rows):
                    continue  # it read what somebody wrote at the last moment into a removed folder
                if self._met_a_ghost(run):
                    self._stage.world.counts["readers that met an entry under a freed name"] += 1
                    continue
                tables = [table for table in (*self.former, *self.tables.values()) if table.begins]
                found = [self._misread(run, table) for table in tables if table.name == run.table]
                if None not in found:
                    self._fail(", or ".join(map(str, found)))

    def _met_a_ghost(self, run: Run) -> bool:
        """Whether it was given what a sleeper put right before the log's beginning: docs/guarantees.md, "Sleepers"."""
        return any(
            run.entries.get(written.path) == written.data
            for entry, written in self.tables.get(run.table, Table("")).ghosts
            if run.start[0] <= entry.version < run.next[0]
        )

    def _misread(self, run: Run, table: Table) -> str | None:
        """What is wrong about a run if it was of this table."""
        rows = [
            (row.version, row.index, row.id)
            for row in table.rows
            if (row.version, row.index) >= run.start and not self._hidden(run, table, row.version)
        ]
        read = run.rows
        if erased := self._stage.erased():
            rows = [row for row in rows if row[2] not in erased]
            read = [row for row in read if row[2] not in erased]
        if any(run.start[0] < begin < run.next[0] for begin in table.begins):
            return f"{run.process} read on from {run.start} to {run.next} in another {run.table}"
        if rows[: len(read)] != read:
            return f"{run.process} read {read} of {run.table}; the log has {rows}"
        if run.finished and (len(rows) != len(read) or table in self.former):
            return f"{run.process} has finished {run.table} without {rows[len(read) :]}"
        if rows[len(read) :] and rows[len(read)][:2] < run.next and not self._stage.by_hand:
            return f"{run.process} is at {run.next} of {run.table} and has not read {rows[len(read)]}"
        born = table.begins[table.generation(run.start[0])]
        for row in table.rows if not run.sought and (run.rows or run.finished) else ():
            path = f"{table.name}/_delta_log/{row.version:020d}.json"
            removed = self._stage.bucket.removed
            if (
                max(born, table.start) <= row.version < run.start[0]
                and path not in removed
                and before(path) not in removed
            ):
                return f"{run.process} began at {run.start} of {run.table}, behind {row}"
        return None

    def _hidden(self, run: Run, table: Table, version: int) -> bool:
        """Whether clean-up had removed this entry, and the reader never saw but what a sleeper put in its place."""
        given = run.entries.get(f"{table.name}/_delta_log/{version:020d}.json")
        true = [written.data for entry, written in table.entries if entry.version == version]
        return given not in true and any(
            entry.version == version and written.data == given for entry, written in table.ghosts
        )

    # Pipelines

    def _pipelines(self) -> None:
        """Rows in = rows out + dead letters, each once, in order, as far as the output's progress says."""
        pipelines = [role for role in self._stage.roles if isinstance(role, Pipeline)]
        if not pipelines:
            return
        role = pipelines[0]
        erased = self._stage.erased()
        out = [row.id for row in self.tables[OUTPUT].rows if row.id not in erased]
        letters = [row.id for row in self.tables[dead_letters(OUTPUT)].rows if row.id not in erased]
        inputs: dict[tuple[str, int], list[int]] = {}
        for number, table in enumerate(self._topic_tables()):
            done = self._position(number)
            overtaken = self._overtaken(role, table, done)
            # It may have met what a sleeper put in the place of the first that clean-up had removed.
            ghosts = {entry.version for entry, _ in table.ghosts}
            inputs[TOPIC, number] = [
                row.id
                for row in table.rows
                if row.version <= done
                and row.id not in erased
                and row.version not in overtaken
                and not (row.version in ghosts and row.id not in (*out, *letters))
            ]
            newest = max(done, table.begins[-1])
            here = [row for row in table.rows if table.until_us(row.version) == math.inf]
            if role.finished and (left := [row.id for row in here if row.version > newest]):
                self._fail(f"the pipeline has finished without {left} of {table.name}; it is at {done}")
        if self._stage.recreated:
            self._recreated(out, letters)
            return
        self._judge_pipeline(role, inputs, out, letters)

    def _judge_pipeline(
        self, role: Pipeline, inputs: dict[tuple[str, int], list[int]], out: list[int], letters: list[int]
    ) -> None:
        known = {one for ids in inputs.values() for one in ids}
        # The dead letters' commit comes first, so it may be ahead of a pipeline that never came to its end.
        # Likewise of one that was overtaken by clean-up before it first came as far as its output.
        overtaken = any(self._overtaken(role, table, 1 << 62).stop > 1 for table in self._topic_tables())
        ahead = [] if role.finished and not overtaken else [one for one in letters if one not in known]
        verdict = check_pipeline(inputs, {0: out}, {0: [one for one in letters if one not in ahead]})
        if not verdict.ok:
            self._fail(f"the pipeline: {verdict.text()}")
        wrong = [one for one in out if role.letters and is_bad(one)]
        wrong += [one for one in letters if not role.letters or not is_bad(one)]
        if wrong:
            self._fail(f"the pipeline put {wrong} into the wrong output")

    def _recreated(self, out: list[int], letters: list[int]) -> None:
        """Where the topic was created anew, what the old one held may be lost, and nothing more."""
        tables = list(self._topic_tables())
        for number, table in enumerate(tables):
            newest = len(table.begins) - 1
            done = self._position(number)
            for row in table.rows:
                if table.generation(row.version) == newest and row.version <= done:
                    count = out.count(row.id) + letters.count(row.id)
                    there = sum(other.id == row.id for one in (*tables, *self.former) for other in one.rows)
                    if not 1 <= count <= there:
                        self._fail(f"{row.id} is {there} times in the input and {count} times in the outputs")

    def _overtaken(self, role: Pipeline, table: Table, done: int) -> range:
        """What clean-up had removed before the run began that first committed something to the output."""
        first = next((w.process for e, w in self.tables[OUTPUT].entries if w.process and _progress(e)), None)
        began = role.began.get(first.name, {}).get(table.name, -1) if first else -1
        return range(min(began, done) + 1)

    def _position(self, number: int) -> int:
        app = f"{PIPELINE}:{TOPIC}:{number}:{self.tables[partition_table(TOPIC, number)].id}"
        return max((e.txns[app] for e, _ in self.tables[OUTPUT].entries if app in e.txns), default=-1)

    def _topic_tables(self) -> Iterator[Table]:
        for number in range(MOST_PARTITIONS):
            if table := self.tables.get(partition_table(TOPIC, number)):
                yield table

    def _refused(self) -> list[Table]:
        """What functions took for messages that do not fit."""
        return [table for name, table in self.tables.items() if name == dead_letters(TOPIC)]

    def _numbered(self, kind: type[_R]) -> Iterator[tuple[int, _R]]:
        """Roles of a kind by what their messages have in common."""
        for role in self._stage.roles:
            if isinstance(role, kind):
                yield role.batches[0][0] // 100_000, role


def _ids(data: bytes) -> list[int]:
    rows = records.decode(data)
    if "n" in rows.column_names:
        return rows.column("n").to_pylist()
    return [json.loads(body)["n"] for body in rows.column("_body").to_pylist()]


def _progress(entry: Entry) -> bool:
    return any(app.startswith(f"{PIPELINE}:") for app in entry.txns)


class _OneObject:
    """As much of a store as ``read_checkpoint`` asks for."""

    uri = "s3://sim"

    def __init__(self, written: Written) -> None:
        self._written = written
        self.list: Callable[..., list[object]] = lambda *_, **__: []

    def get(self, path: str, *, within_s: float | None = None) -> bytes:
        if path != self._written.path:
            raise FileNotFoundError(path)
        return self._written.data
