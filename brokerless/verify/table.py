"""Inspects a table's log and its objects, of topics and of other people's Delta tables. Reads only.

The objects are listed first and the log is read second, so that what writers commit meanwhile is not taken for missing;
what seems to be missing is asked for once more. A thousand objects cost one LIST and each entry one GET.

=================  =================================================================================================
kind               a finding of this kind says
=================  =================================================================================================
gap                entries are missing below others or a checkpoint, or nothing says what was before the first one
unreadable-entry   an entry that is no Delta log entry: empty, cut (this kit's say how many actions they hold), foreign
missing-metadata   the first entry has no protocol, or no metadata with columns, so the table is none
unsupported        a topic has Delta features (a later protocol version) that its writers and readers refuse
repeated-add       a file that is in the table was added once more, so its rows count twice for some readers
added-and-removed  one entry adds and removes one file, and readers do not agree which of both counts
rewritten          another engine deleted or updated rows of a topic in place, or restored old ones: readers stop there
missing-object     a live file is not in the store
object-size        a live file has another size than the log says
unreadable-object  a live file is no Parquet object
damaged-object     a live file has other bytes than the checksum in its name says (a sample is looked at, or all)
row-count          a live file has another number of rows than the log says (a sample is looked at, or all)
columns            a live file has other columns or types than the log says (a sample is looked at, or all)
checkpoint         a checkpoint differs from what the entries add up to, cannot be read, or is named and not there
txn-back           an application's transaction did not advance: a step was committed twice, or out of order
unsafe-writer      Spark's Delta writer, which puts entries without a condition on S3, beside writers that rely on it
schema-change      the columns of a topic changed, which its writers and readers refuse
replaced           a topic's table has another id, and no tombstone ended the one before
missing-partition  a topic says that it has a partition, and there is no table for it
partitions-differ  the partitions of a topic have other columns, or do not agree how many they are
half-created       partitions of a topic are there, the first is not: its creation stopped half-way, or its log is lost
half-deleted       some partitions of a topic are deleted, the first is not: its deletion stopped half-way
=================  =================================================================================================

Notes are no faults: orphaned objects, clocks that went back, what could not be looked at.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from brokerless.clock import SYSTEM, Clock
from brokerless.columns.footer import row_count
from brokerless.columns.records import damage
from brokerless.errors import AccessDenied, TopicNotFound, UnsupportedTable
from brokerless.log.checkpoint import TableState, checkpoint_hint, read_checkpoint
from brokerless.log.entries import ENGINE_KEY, PARTITIONS_KEY, Metadata, Protocol, check_supported, is_inside
from brokerless.log.log import DEADLINE_S, read_pool
from brokerless.schema import partition_table, split_table
from brokerless.store import ObjectInfo
from brokerless.verify.actions import Actions, DataFile, files_of
from brokerless.verify.columns import columns_of, difference
from brokerless.verify.report import TableFinding, TableReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from brokerless.store import Store
    from brokerless.verify.report import Kind

    Watch = Callable[[str, int], None]

SAMPLE_FILES: Final = 20
SAMPLE_BYTES: Final = 64 * 2**20
"""A sample ends with whichever comes first. Objects are read whole: the store has no other way yet."""

_STUCK_MS: Final = 10 * 60_000  # a deletion that made no progress for as long, by clocks that may differ, is no more
_WINDOW: Final = 64  # entries or objects that are asked for ahead
_ASKED_AGAIN: Final = 1000  # more objects than this do not appear while one looks
_NAMED: Final = 5  # how many versions or paths a text names
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")
_CHECKPOINT_V2: Final = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f-]{36}\.(?:parquet|json)")
_POSITION: Final = re.compile(r"(.+/.*)#[0-2]")
_SPARK: Final = "Apache-Spark/"
_ORDER: Final = "only their order, or their properties"
_CONDITIONAL: Final = ("brokerless/", "delta-rs")


def verify_table(
    store: Store, table: str, *, full: bool = False, watch: Watch | None = None, clock: Clock = SYSTEM
) -> TableReport:
    """Looks for everything that the module lists, in one table.

    Args:
        store: where the table is.
        table: its folder in the store.
        full: compare bytes and rows of every live file, and every checkpoint; else of a sample, and the last one.
        watch: is told what is being done and how far it has come, often.
        clock: randomness, for the sample.

    Raises:
        TopicNotFound: there is no table.
        StoreError: the store failed.
    """
    return _Inspection(store, table, full=full, watch=watch or (lambda what, count: None), clock=clock).run()


def verify_topic(
    store: Store, topic: str, *, full: bool = False, watch: Watch | None = None, clock: Clock = SYSTEM
) -> list[TableReport]:
    """The reports on a topic's partitions, or on the one table of this name that is no topic.

    Args and Raises:
        As ``verify_table``.
    """
    watch = watch or (lambda what, count: None)
    begin = _Inspection(store, topic, full=full, watch=watch, clock=clock)
    try:
        first = begin.run()
        others = [partition_table(topic, number) for number in range(1, first.partitions or 1)]
    except TopicNotFound:
        first = None
        others = _partition_folders(store, topic)
        if not others:
            raise
    inspections: list[_Inspection] = []
    reports: list[TableReport] = []
    for table in others if split_table(topic) == (topic, 0) else ():
        inspection = _Inspection(store, table, full=full, watch=watch, clock=clock)
        try:
            report = inspection.run()
        except TopicNotFound:
            if first is not None:
                text = f"{topic} has {first.partitions} partitions, but {table} is no table"
                reports.append(_nothing(table, first.partitions, TableFinding("missing-partition", text)))
            continue
        if first is None and report.partitions is None:
            continue  # a foreign table, which only is called like a partition
        findings = [TableFinding("partitions-differ", text) for text in _differences(begin, inspection)]
        reports.append(replace(report, findings=(*report.findings, *findings)))
        inspections.append(inspection)
    if first is None:
        if not inspections:
            raise TopicNotFound(f"There is no Delta table at {store.uri}/{topic}: it has no log.")
        first = _nothing(topic, None)
    if (begin.deleted or first.head is None) and (live := [one for one in inspections if not one.deleted]):
        tables = f"{_some([one.table for one in live])} {'is' if len(live) == 1 else 'are'} there, {topic} is not"
        if clock.time_us() // 1000 - max(one.last_ms or 0 for one in live) > _STUCK_MS:
            text = f"{tables}; 'brokerless topics describe {topic}' says what to do"
            first = replace(first, findings=(*first.findings, TableFinding("half-created", text)))
        else:
            first = replace(first, notes=(*first.notes, f"{tables} yet: the topic is being created, or was just now"))
    deleted = [one for one in inspections if one.deleted]
    if deleted and first.head is not None and _is_stuck([begin, *inspections], watch, clock):
        tables = f"{_some([one.table for one in deleted])} {'is' if len(deleted) == 1 else 'are'} deleted"
        text = (
            f"{tables}, {topic} is not: its deletion was interrupted, or stands still. "
            f"Finish it: brokerless topics delete {topic}"
        )
        first = replace(first, findings=(*first.findings, TableFinding("half-deleted", text)))
    return [first, *reports]


def _nothing(table: str, partitions: int | None, *findings: TableFinding) -> TableReport:
    return TableReport(table, None, partitions, 0, 0, 0, 0, 0, 0, 0, findings, ())


def _partition_folders(store: Store, topic: str) -> list[str]:
    """The folders of the topic's partitions from the second one on, as far as one may list them."""
    try:
        names = store.folders()
    except AccessDenied:
        return []
    return sorted((name for name in names if split_table(name)[0] == topic != name), key=split_table)


def _differences(first: _Inspection, other: _Inspection) -> Iterator[str]:
    """What two partitions of one topic do not agree on."""
    before, now = first.metadata, other.metadata
    if before is None or now is None or before.deleted or now.deleted:
        return
    texts = []
    if before.schema_string != now.schema_string and (changes := _columns_changed(before, now)) != _ORDER:
        texts.append(f"{other.table} has other columns than {first.table}: {changes}")
    counts = [metadata.configuration.get(PARTITIONS_KEY, "no number of") for metadata in (before, now)]
    if counts[0] != counts[1]:
        texts.append(f"{first.table} says that the topic has {counts[0]} partitions; {other.table} says {counts[1]}")
    # Who deleted and created the topic since we looked at its first partition, began with that.
    if texts and not first.has_changed():
        yield from texts


def _is_stuck(inspections: Sequence[_Inspection], watch: Watch, clock: Clock) -> bool:
    """Whether a deletion stopped half-way.

    One on its way goes from the last partition to the first, each within a commit's deadline; and the first one is
    created last. So while that one is as it was, the others are of the same topic; and the next one must go soon.
    """
    live = [one for one in inspections if not one.deleted]
    if inspections[0] not in live:
        return False
    newest_ms = max(one.last_ms or 0 for one in inspections if one.deleted)
    patience_s = 0 if clock.time_us() // 1000 - newest_ms > _STUCK_MS else int(DEADLINE_S)
    for second in range(patience_s + 1):
        if second:
            watch("Waiting for a deletion to go on", second)
            clock.sleep(1.0)
        if inspections[0].has_changed() or live[-1].has_changed():
            return False
    return True


@dataclass(slots=True)
class _State:
    """What the entries so far add up to."""

    complete: bool  # from the beginning, or from a checkpoint, without a gap
    files: dict[str, DataFile] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    txns: dict[str, int] = field(default_factory=dict)
    metadata: Metadata | None = None
    protocol: Protocol | None = None


class _Inspection:
    def __init__(self, store: Store, table: str, *, full: bool, watch: Watch, clock: Clock) -> None:
        self.table = table
        self._store, self._table, self._full, self._watch, self._clock = store, table, full, watch, clock
        self._uri = f"{store.uri}/{table}"
        self._findings: list[TableFinding] = []
        self._notes: list[str] = []
        self._state = _State(complete=False)
        self._engines: dict[str, list[int]] = {}
        self._head: int | None = None
        self.last_ms: int | None = None
        self._clock_back: list[int] = []
        self._vectors = self._entries = self._compared = 0
        self._rewrites: list[tuple[int, Actions]] = []
        self._same_columns = False  # whether the columns are those of the beginning
        self._lacks = False  # whether it was said that protocol or metadata are missing
        self._has_begun = False  # whether the state was complete at any time

    def run(self) -> TableReport:
        log, objects = self._list()
        versions = sorted(int(m[1]) for name in log if (m := _ENTRY.fullmatch(name)))
        checkpoints: dict[int, list[str]] = {}
        for name in sorted(log):
            if match := _CHECKPOINT.fullmatch(name):
                checkpoints.setdefault(int(match[1]), []).append(name)
        if not versions and not checkpoints:
            raise TopicNotFound(f"There is no Delta table at {self._uri}: it has no log.")
        if newer := [name for name in log if _CHECKPOINT_V2.fullmatch(name)]:
            self._notes.append(f"{_many(len(newer), 'checkpoint')} of version 2 cannot be compared")
        hint = self._check_hint(versions, checkpoints, bool(newer))
        head = self._replay(versions, checkpoints, hint)
        head = self._follow(head)
        head = self._check_end(head, checkpoints)
        head = self._head = self._look_beyond(head)
        missing = self._check_objects(objects)
        read = self._check_rows(objects, missing)
        self._check_engines()
        self._check_features()
        self._check_rewrites()
        orphans = [info for path, info in objects.items() if self._is_orphan(path)]
        self._note_rest(orphans)
        report = TableReport(
            table=self._table,
            head=head,
            partitions=self._partitions(),
            entries=self._entries,
            files=len(self._state.files),
            rows=sum(file.rows or 0 for file in self._state.files.values()),
            checkpoints=self._compared,
            files_read=read,
            orphans=len(orphans),
            orphan_bytes=sum(info.size for info in orphans),
            findings=tuple(self._findings),
            notes=tuple(self._notes),
        )
        self._state.files.clear()  # memory: a topic may have a thousand of these
        self._state.removed.clear()
        return report

    @property
    def metadata(self) -> Metadata | None:
        """The table's metadata at the end of its log."""
        return self._state.metadata

    @property
    def deleted(self) -> bool:
        """Whether the log ends with the tombstone of a topic."""
        return self._state.metadata is not None and self._state.metadata.deleted

    def has_changed(self) -> bool:
        """Whether the table was deleted, or created again, since the last look."""
        before = self._state.metadata
        self._head = self._follow(self._head)
        return self._state.metadata is not before

    def _find(self, kind: Kind, text: str, *, version: int | None = None, path: str | None = None) -> None:
        self._findings.append(TableFinding(kind, text, version, path))

    # Listing

    def _list(self) -> tuple[set[str], dict[str, ObjectInfo]]:
        log: set[str] = set()
        objects: dict[str, ObjectInfo] = {}
        skip = len(self._table) + 1
        for count, info in enumerate(self._store.list(self._table), start=1):
            path = info.path[skip:]
            if path.startswith("_delta_log/"):
                log.add(path.removeprefix("_delta_log/"))
            else:
                objects[path] = info
            self._watch("Listing objects", count)
        return log, objects

    # The log

    def _check_hint(self, versions: Sequence[int], checkpoints: Mapping[int, list[str]], v2: bool) -> int | None:
        hint = checkpoint_hint(self._store, self._table)
        if hint is None or hint in checkpoints or v2 or self._has_checkpoint(hint):
            return hint
        self._find("checkpoint", f"_last_checkpoint names checkpoint {hint}, which is not there", version=hint)
        return hint

    def _has_checkpoint(self, version: int) -> bool:
        """Looks again: a hint may be newer than the listing."""
        folder = f"{self._table}/_delta_log"
        names = (info.path.rpartition("/")[2] for info in self._store.list(folder, after=f"{folder}/{version:020d}"))
        return any(name.startswith(f"{version:020d}.checkpoint.") for name in names)

    def _replay(self, versions: Sequence[int], checkpoints: Mapping[int, list[str]], hint: int | None) -> int | None:
        before: int | None = None
        if versions:
            self._state.complete = self._has_begun = self._same_columns = versions[0] == 0
            if versions[0] - 1 in checkpoints:
                self._begin_at(versions[0] - 1, checkpoints)
        elif checkpoints:
            before = max(checkpoints)
            self._begin_at(before, checkpoints)
        for version, data in self._fetch_entries(versions):
            self._watch("Reading entries", self._entries)
            if before is not None and version != before + 1:
                self._find("gap", f"{_span(before + 1, version - 1)} missing from the log", version=before + 1)
                self._state.complete = False
            before = version
            self._take(version, data)
            if version in checkpoints:
                if not self._state.complete:
                    self._begin_at(version, checkpoints)
                elif self._full or version == (hint if hint in checkpoints else max(checkpoints)):
                    self._compare(version, checkpoints)
        if not self._has_begun:
            first = versions[0] if versions else 0
            self._find("gap", f"the log begins at entry {first}, and no checkpoint says what was before", version=first)
        return before

    def _fetch_entries(self, versions: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        for start in range(0, len(versions), _WINDOW):
            window = versions[start : start + _WINDOW]
            for version, data in zip(window, read_pool().map(self._entry, window), strict=True):
                if data is not None:
                    yield version, data
                elif not self._entries:
                    # Log clean-up was here since we listed: it takes the oldest.
                    self._state.complete = self._has_begun = False
                else:
                    self._find("gap", f"entry {version} was listed, but cannot be found", version=version)

    def _entry(self, version: int) -> bytes | None:
        try:
            return self._store.get(f"{self._table}/_delta_log/{version:020d}.json")
        except FileNotFoundError:
            return None

    def _follow(self, head: int | None) -> int | None:
        """What was committed since the listing: it may name objects that were orphans, or remove what is missing."""
        while head is not None and (data := self._entry(head + 1)) is not None:
            head += 1
            self._take(head, data)
        return head

    def _look_beyond(self, head: int | None) -> int | None:
        """Entries behind one that is absent, which is not yet the end: it may be lost since the listing."""
        if head is None:
            return None
        folder = f"{self._table}/_delta_log"
        names = [i.path.rpartition("/")[2] for i in self._store.list(folder, after=f"{folder}/{head:020d}.json")]
        for version in sorted(int(match[1]) for name in names if (match := _ENTRY.fullmatch(name))):
            head = self._follow(head)
            if head is not None and version > head:
                self._find("gap", f"{_span(head + 1, version - 1)} missing from the log", version=head + 1)
                self._state.complete = False
                head = self._follow(version - 1)
        return head

    def _check_end(self, head: int | None, checkpoints: Mapping[int, list[str]]) -> int | None:
        """A checkpoint above the last entry: clean-up takes the oldest, so what is missing between them was lost."""
        last = max(checkpoints, default=-1)
        if head is None or last <= head:
            return head
        self._find("gap", f"{_span(head + 1, last)} missing from the log", version=head + 1)
        self._begin_at(last, checkpoints)
        return self._follow(last)

    def _take(self, version: int, data: bytes) -> None:
        self._entries += 1
        try:
            actions = Actions.parse(data)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            self._find("unreadable-entry", f"entry {version} is no log entry ({_short(error)})", version=version)
            self._state.complete = False
            return
        state = self._state
        reset = self._check_metadata(version, actions)
        self._check_txns(version, actions, reset=reset)
        if actions.timestamp_ms is not None:
            if self.last_ms is not None and actions.timestamp_ms < self.last_ms:
                self._clock_back.append(version)
            self.last_ms = actions.timestamp_ms
        self._engines.setdefault(actions.engine, []).append(version)
        state.protocol = actions.protocol or state.protocol
        if state.complete and not self._lacks and (lacks := _lacking(state)):
            self._lacks = True
            self._find("missing-metadata", f"entry {version} is the first, and has no {lacks}", version=version)
        for path in actions.added_and_removed:
            text = f"entry {version} adds {path} and removes it, too"
            self._find("added-and-removed", text, version=version, path=path)
        if actions.rewritten:
            self._rewrites.append((version, actions))
        for path, vector in actions.removes:
            known = state.files.get(path)
            if known is None or known.vector == vector:
                state.files.pop(path, None)
            state.removed.add(path)
        for file in actions.adds:
            known = state.files.get(file.path)
            # Without dataChange it only brings other statistics or tags.
            if known is not None and known.vector == file.vector and file.data_change:
                text = f"entry {version} adds {file.path}, which is in the table already"
                self._find("repeated-add", text, version=version, path=file.path)
            self._vectors += bool(file.vector)
            state.files[file.path] = file
            state.removed.discard(file.path)

    def _check_metadata(self, version: int, actions: Actions) -> bool:
        """Whether the table begins anew with this entry, so that transactions may, too."""
        before, now = self._state.metadata, actions.metadata
        if now is None:
            return False
        self._state.metadata = now
        try:
            columns_of(now)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            text = f"entry {version} has metadata without columns that can be read ({_short(error)})"
            self._find("missing-metadata", text, version=version)
        if before is None:
            return True
        is_topic = PARTITIONS_KEY in before.configuration
        if before.id != now.id:
            if is_topic and not before.deleted:
                self._find("replaced", f"entry {version} replaces the table ({before.id} by {now.id})", version=version)
            else:
                self._notes.append(f"the table begins anew with entry {version}")
            return True
        if before.schema_string != now.schema_string:
            self._same_columns = False
            text = f"entry {version} changes the columns: {_columns_changed(before, now)}"
            if is_topic:
                self._find("schema-change", text, version=version)
            else:
                self._notes.append(text)
        return False

    def _check_txns(self, version: int, actions: Actions, *, reset: bool) -> None:
        known = self._state.txns
        if not reset:
            for name, before, now in _steps(known, dict(actions.txns)):
                if now <= before:
                    text = f"entry {version} has the transaction {name!r} at {_plain(now)}; it was at {_plain(before)}"
                    self._find("txn-back", text, version=version)
        known.update(actions.txns)

    # Checkpoints

    def _begin_at(self, version: int, checkpoints: Mapping[int, list[str]]) -> None:
        if loaded := self._load(version, checkpoints):
            found, files = loaded
            removed, txns = set(found.tombstones), dict(found.txns)
            self._state = _State(
                True, {file.path: file for file in files}, removed, txns, found.metadata, found.protocol
            )
            self._has_begun = True

    def _load(self, version: int, checkpoints: Mapping[int, list[str]]) -> tuple[TableState, list[DataFile]] | None:
        """The checkpoint, and its files with what a ``TableState`` leaves out of them."""
        self._watch("Reading checkpoints", self._compared)
        folder = f"{self._table}/_delta_log"
        try:
            parts = {f"{folder}/{name}": self._store.get(f"{folder}/{name}") for name in checkpoints[version]}
            for data in parts.values():
                row_count(data)
            fetched = cast("Store", _Fetched(self._store.uri, parts))
            state = read_checkpoint(fetched, self._table, version, with_files=True)
            if state is not None:
                return state, [file for data in parts.values() for file in files_of(data)]
        except FileNotFoundError:
            self._notes.append(f"checkpoint {version} was removed meanwhile")
        except Exception as error:  # whatever a decoder thinks of damaged bytes
            self._find("checkpoint", f"checkpoint {version} cannot be read ({_short(error)})", version=version)
        return None

    def _compare(self, version: int, checkpoints: Mapping[int, list[str]]) -> None:
        loaded = self._load(version, checkpoints)
        if loaded is None:
            return
        self._compared += 1
        found, state = loaded[0], self._state
        there, here = found.files, state.files
        differences: list[str] = []
        if lacks := sorted(here.keys() - there.keys()):
            differences.append(f"lacks {_many(len(lacks), 'live file')} ({_some(lacks)})")
        if extra := sorted(there.keys() - here.keys()):
            differences.append(f"has {_many(len(extra), 'file')} that the entries do not ({_some(extra)})")
        if sizes := sorted(path for path, add in there.items() if path in here and here[path].size != add.size):
            differences.append(f"has other sizes ({_some(sizes)})")
        # Where a table lets its transactions expire, a checkpoint may lack some.
        expire = state.metadata is not None and "delta.setTransactionRetentionDuration" in state.metadata.configuration
        if txns := sorted(
            name
            for name in state.txns.keys() | found.txns.keys()
            if state.txns.get(name) != found.txns.get(name) and not (expire and name not in found.txns)
        ):
            differences.append(f"has other transactions ({_some(txns)})")
        if state.metadata is not None and found.metadata.id != state.metadata.id:
            differences.append("is of another table id")
        elif state.metadata is not None and found.metadata.schema_string != state.metadata.schema_string:
            differences.append("has other columns")
        if state.metadata is not None and (
            keys := sorted(
                key
                for key in state.metadata.configuration.keys() | found.metadata.configuration.keys()
                if state.metadata.configuration.get(key) != found.metadata.configuration.get(key)
            )
        ):
            differences.append(f"has other properties ({_some(keys)})")
        if state.protocol is not None and (found.protocol.reader, found.protocol.writer) != (
            state.protocol.reader,
            state.protocol.writer,
        ):
            differences.append("has another protocol version")
        if differences:
            text = f"checkpoint {version} differs from the entries: it {'; it '.join(differences)}"
            self._find("checkpoint", text, version=version)

    # Objects

    def _check_objects(self, objects: Mapping[str, ObjectInfo]) -> set[str]:
        candidates: list[DataFile] = []
        outside = 0
        for file in self._state.files.values():
            info = objects.get(file.path)
            if not is_inside(file.path):
                outside += 1
            elif info is None:
                candidates.append(file)
            elif info.size != file.size:
                text = f"{file.path} has {info.size} bytes; the log says {file.size}"
                self._find("object-size", text, path=file.path)
        if outside:
            self._notes.append(f"{_many(outside, 'file')} outside of the table's folder, not looked at")
        missing = {file.path for file in candidates}
        for number, file in enumerate(candidates[:_ASKED_AGAIN]):
            self._watch("Looking for missing objects", number)
            if self._store.exists(f"{self._table}/{file.path}"):
                missing.discard(file.path)
        for file in candidates:
            if file.path in missing:
                self._find("missing-object", f"{file.path} is in the log, but not in the store", path=file.path)
        return missing

    def _check_rows(self, objects: Mapping[str, ObjectInfo], missing: set[str]) -> int:
        files = [f for f in self._state.files.values() if f.path in objects and f.path not in missing]
        if not self._full:
            files = self._sample(files)
        read = 0
        for start in range(0, len(files), _WINDOW):
            window = files[start : start + _WINDOW]
            for file, faults in zip(window, read_pool().map(self._look_into, window), strict=True):
                read += 1
                self._watch("Reading objects", read)
                for fault in faults:
                    self._find(fault.kind, f"{file.path} {fault.text}", path=file.path)
        return read

    def _look_into(self, file: DataFile) -> list[_Fault]:
        try:
            data = self._store.get(f"{self._table}/{file.path}")
            if damage(file.path, data):
                # As a reader does: it may have happened on the way.
                data = self._store.get(f"{self._table}/{file.path}")
            rows = row_count(data)
            if (harm := damage(file.path, data)) is not None:
                return [_Fault("damaged-object", f"is damaged: {harm}")]
            faults = []
            if file.rows not in (None, rows):
                faults.append(_Fault("row-count", f"has {rows} rows; the log says {file.rows}"))
            metadata = self._state.metadata
            exact = self._is_topic() and self._same_columns
            if rows and metadata is not None and (other := difference(metadata, data, exact=exact)) is not None:
                faults.append(_Fault("columns", f"differs from the log's columns: it {other}"))
        except FileNotFoundError:
            return []  # removed since it was listed
        except ValueError as error:
            return [_Fault("unreadable-object", f"cannot be read: {error}")]
        return faults

    def _sample(self, files: list[DataFile]) -> list[DataFile]:
        """The newest ones, which nobody may have read yet, and as many others by chance."""
        newest = files[-(SAMPLE_FILES // 2) :]
        others = files[: -(SAMPLE_FILES // 2)]
        chosen = newest[::-1] + self._clock.rng.sample(others, min(len(others), SAMPLE_FILES - len(newest)))
        size = 0
        for count, file in enumerate(chosen):
            size += file.size
            if size > SAMPLE_BYTES and count:
                return chosen[:count]
        return chosen

    def _is_orphan(self, path: str) -> bool:
        parts = path.split("/")
        if not parts[-1].endswith(".parquet") or any(part.startswith(("_", ".")) for part in parts):
            return False
        return path not in self._state.files and path not in self._state.removed

    # Writers

    def _check_engines(self) -> None:
        metadata = self._state.metadata
        spark = sorted(v for engine, found in self._engines.items() if engine.startswith(_SPARK) for v in found)
        others = sorted(v for engine, found in self._engines.items() if engine.startswith(_CONDITIONAL) for v in found)
        is_topic = metadata is not None and PARTITIONS_KEY in metadata.configuration
        is_sparks = metadata is not None and metadata.configuration.get(ENGINE_KEY) == "delta"
        on_s3 = self._store.uri.startswith("s3:")
        if is_sparks and others:
            text = (
                f"the table belongs to Spark's Delta writer ({ENGINE_KEY} = delta), which can overwrite what others "
                f"commit: entries {_some(others)}"
            )
        elif spark and (others or is_topic) and not is_sparks:
            text = (
                f"Spark's Delta writer committed to a table of conditional writers, and can overwrite their commits: "
                f"entries {_some(spark)}"
            )
        else:
            return
        if on_s3:
            self._find("unsafe-writer", text, version=(others if is_sparks else spark)[0])
        else:
            self._notes.append(f"{text} (on S3; this store may keep them apart)")

    def _check_features(self) -> None:
        """Only of topics: other tables are not this kit's to read."""
        metadata, protocol = self._state.metadata, self._state.protocol
        if metadata is None or protocol is None or not self._is_topic():
            return
        try:
            check_supported(protocol, metadata, table=self._table)
        except UnsupportedTable as error:
            self._find("unsupported", str(error))

    def _check_rewrites(self) -> None:
        if not self._is_topic():
            if self._rewrites:
                versions = _some([version for version, _ in self._rewrites])
                text = f"rows were deleted, updated or restored in place (entries {versions})"
                self._notes.append(f"{text}: this kit's readers stop there")
            return
        for version, actions in self._rewrites:
            text = (
                f"entry {version} ({actions.operation or 'without a name'} by {actions.engine or 'an unnamed engine'}) "
                "deletes, updates or restores rows in place: readers stop there, because the rows that it kept are in "
                "new files and would be delivered again"
            )
            self._find("rewritten", text, version=version)

    def _is_topic(self) -> bool:
        """Whether this kit's writers own the table."""
        metadata = self._state.metadata
        if metadata is None or metadata.configuration.get(ENGINE_KEY) == "delta":
            return False
        return PARTITIONS_KEY in metadata.configuration

    def _partitions(self) -> int | None:
        metadata = self._state.metadata
        count = metadata.configuration.get(PARTITIONS_KEY, "") if metadata else ""
        return int(count) if count.isdecimal() else None

    def _note_rest(self, orphans: Sequence[ObjectInfo]) -> None:
        state = self._state
        if self.deleted:
            self._notes.append("the topic is deleted")
        if orphans:
            size = sum(info.size for info in orphans)
            if any(finding.kind in ("gap", "unreadable-entry", "checkpoint") for finding in self._findings):
                what = "nothing readable names: what is missing or damaged in the log may do so, so remove none of them"
            elif self._is_topic():
                what = (
                    "nothing names: left by crashes, or on their way to a commit; maintenance removes the first, once "
                    "they are old enough"
                )
            else:
                what = (
                    "nothing names: left by crashes or waiting for a VACUUM by the table's owner, or on their way to "
                    "a commit; maintenance does not remove them unless it is given the table by name"
                )
            self._notes.append(f"{_many(len(orphans), 'object')} ({size:,} bytes) that {what}")
        if self._clock_back:
            count = _many(len(self._clock_back), "entry", "entries")
            self._notes.append(f"{count} older than the one before, by the writers' clocks ({_some(self._clock_back)})")
        if self._vectors:
            self._notes.append(f"{_many(self._vectors, 'file')} with deletion vectors, which this kit does not read")
        without = sum(file.rows is None for file in state.files.values())
        if without and state.metadata is not None and PARTITIONS_KEY in state.metadata.configuration:
            self._notes.append(f"{_many(without, 'file')} without numRecords, as far as the entries left tell")


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is wrong with an object."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class _Fetched:
    """As much of a store as ``read_checkpoint`` asks for: parts that were looked at before they are decoded."""

    uri: str
    parts: Mapping[str, bytes]

    def get(self, path: str, *, within_s: float | None = None) -> bytes:
        try:
            return self.parts[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        yield from (ObjectInfo(path, len(data), 0.0) for path, data in self.parts.items())


def _steps(known: Mapping[str, int], txns: dict[str, int]) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Each transaction's version before and now; the parts of one position (``ingest.positions``) together."""
    parts: Counter[str] = Counter()
    for name in txns:
        if match := _POSITION.fullmatch(name):
            parts[match[1]] += 1
    whole = {source for source, count in parts.items() if count == 3}
    for source in whole:
        names = [f"{source}#{part}" for part in (2, 1, 0)]
        if all(name in known for name in names):
            yield source, tuple(known[name] for name in names), tuple(txns[name] for name in names)
    for name, version in txns.items():
        match = _POSITION.fullmatch(name)
        if name in known and not (match and match[1] in whole):
            yield name, (known[name],), (version,)


def _lacking(state: _State) -> str:
    parts = {"protocol": state.protocol, "metadata": state.metadata}
    return " and no ".join(name for name, part in parts.items() if part is None)


def _plain(step: tuple[int, ...]) -> str:
    return "/".join(map(str, step))


def _columns_changed(before: Metadata, now: Metadata) -> str:
    old, new = _columns(before), _columns(now)
    changes = [f"+ {name} {kind}" for name, kind in new.items() if old.get(name) != kind]
    changes += [f"- {name} {kind}" for name, kind in old.items() if new.get(name) != kind]
    return ", ".join(changes) or _ORDER


def _columns(metadata: Metadata) -> dict[str, str]:
    try:
        return {f["name"]: str(f["type"]) for f in json.loads(metadata.schema_string)["fields"]}
    except (ValueError, KeyError, TypeError):
        return {"schema": metadata.schema_string}


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def _span(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


def _some(values: Sequence[object]) -> str:
    more = f" and {len(values) - _NAMED:,} more" if len(values) > _NAMED else ""
    return ", ".join(map(str, values[:_NAMED])) + more


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
