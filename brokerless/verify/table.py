"""Inspect a table's log and its objects, of topics and of other Delta tables. Read-only.

The objects are listed first and the log is read second, so that objects which writers commit meanwhile are not reported
as missing; a missing one is requested once more. A thousand objects cost one LIST, and each entry one GET.
``docs/verify.md`` lists the kinds of findings. Notes are not faults: orphaned objects, clocks that went back, parts
that could not be checked.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import AccessDenied, TopicNotFound, UnsupportedTable
from brokerless.log.entries import ENGINE_KEY, PARTITIONS_KEY, check_supported
from brokerless.log.log import DEADLINE_S
from brokerless.schema import partition_table, split_table
from brokerless.verify.inspection import ENTRY, many, some
from brokerless.verify.log import ONLY_ORDER, columns_changed
from brokerless.verify.objects import SAMPLE_FILES, ObjectInspection
from brokerless.verify.report import TableFinding, TableReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from brokerless.store import ObjectInfo, Store
    from brokerless.verify.inspection import Watch

__all__ = ["SAMPLE_FILES", "TableReport", "verify_table", "verify_topic"]

_STUCK_MS: Final = 10 * 60_000  # a deletion that made no progress for as long, by clocks that may differ, is no more
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")
_CHECKPOINT_V2: Final = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f-]{36}\.(?:parquet|json)")
_SPARK: Final = "Apache-Spark/"
_CONDITIONAL: Final = ("brokerless/", "delta-rs")


def verify_table(
    store: Store, table: str, *, full: bool = False, watch: Watch | None = None, clock: Clock = SYSTEM
) -> TableReport:
    """Look for all kinds of findings in one table.

    Args:
        store: the store of the table.
        table: its folder in the store.
        full: compare bytes and rows of every live file, and every checkpoint; otherwise a sample, and the last one.
        watch: called often with the current step and its progress.
        clock: randomness for the sample.

    Raises:
        TopicNotFound: the table does not exist.
        StoreError: the store failed.
    """
    return _Inspection(store, table, full=full, watch=watch or (lambda what, count: None), clock=clock).run()


def verify_topic(
    store: Store, topic: str, *, full: bool = False, watch: Watch | None = None, clock: Clock = SYSTEM
) -> list[TableReport]:
    """Return the reports on a topic's partitions, or on the table of this name that is not a topic.

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
                text = f"{topic} has {first.partitions} partitions, but {table} is not a table"
                reports.append(_nothing(table, first.partitions, TableFinding("missing-partition", text)))
            continue
        if first is None and report.partitions is None:
            continue  # a table of another program, with the name of a partition
        findings = [TableFinding("partitions-differ", text) for text in _differences(begin, inspection)]
        reports.append(replace(report, findings=(*report.findings, *findings)))
        inspections.append(inspection)
    if first is None:
        if not inspections:
            raise TopicNotFound(f"There is no Delta table at {store.uri}/{topic}: it has no log.")
        first = _nothing(topic, None)
    if (begin.deleted or first.head is None) and (live := [one for one in inspections if not one.deleted]):
        tables = f"{some([one.table for one in live])} {'is' if len(live) == 1 else 'are'} there, {topic} is not"
        if clock.time_us() // 1000 - max(one.last_ms or 0 for one in live) > _STUCK_MS:
            text = f"{tables}; 'brokerless topics describe {topic}' says what to do"
            first = replace(first, findings=(*first.findings, TableFinding("half-created", text)))
        else:
            first = replace(first, notes=(*first.notes, f"{tables} yet: the topic is being created, or was just now"))
    deleted = [one for one in inspections if one.deleted]
    if deleted and first.head is not None and _is_stuck([begin, *inspections], watch, clock):
        tables = f"{some([one.table for one in deleted])} {'is' if len(deleted) == 1 else 'are'} deleted"
        text = (
            f"{tables}, {topic} is not: its deletion was interrupted, or stands still. "
            f"Finish it: brokerless topics delete {topic}"
        )
        first = replace(first, findings=(*first.findings, TableFinding("half-deleted", text)))
    return [first, *reports]


def _nothing(table: str, partitions: int | None, *findings: TableFinding) -> TableReport:
    return TableReport(table, None, partitions, 0, 0, 0, 0, 0, 0, 0, findings, ())


def _partition_folders(store: Store, topic: str) -> list[str]:
    """Return the folders of the topic's partitions without the first; none without the permission to list."""
    try:
        names = store.folders()
    except AccessDenied:
        return []
    return sorted((name for name in names if split_table(name)[0] == topic != name), key=split_table)


def _differences(first: _Inspection, other: _Inspection) -> Iterator[str]:
    """Yield the differences between two partitions of one topic."""
    before, now = first.metadata, other.metadata
    if before is None or now is None or before.deleted or now.deleted:
        return
    texts = []
    if before.schema_string != now.schema_string and (changes := columns_changed(before, now)) != ONLY_ORDER:
        texts.append(f"{other.table} has other columns than {first.table}: {changes}")
    counts = [metadata.configuration.get(PARTITIONS_KEY, "no number of") for metadata in (before, now)]
    if counts[0] != counts[1]:
        texts.append(f"{first.table} says that the topic has {counts[0]} partitions; {other.table} says {counts[1]}")
    # A topic that was deleted and created again meanwhile has a new first partition.
    if texts and not first.has_changed():
        yield from texts


def _is_stuck(inspections: Sequence[_Inspection], watch: Watch, clock: Clock) -> bool:
    """Whether a deletion stopped half-way.

    A deletion goes from the last partition to the first, each within a commit's deadline, and the first one is created
    last. So while the first partition is unchanged, the others belong to the same topic, and the next one is deleted
    soon.
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


class _Inspection(ObjectInspection):
    """All steps of the inspection of a table."""

    def run(self) -> TableReport:
        """Run all steps and return the report."""
        log, objects = self._list()
        versions = sorted(int(m[1]) for name in log if (m := ENTRY.fullmatch(name)))
        checkpoints: dict[int, list[str]] = {}
        for name in sorted(log):
            if match := _CHECKPOINT.fullmatch(name):
                checkpoints.setdefault(int(match[1]), []).append(name)
        if not versions and not checkpoints:
            raise TopicNotFound(f"There is no Delta table at {self._uri}: it has no log.")
        if newer := [name for name in log if _CHECKPOINT_V2.fullmatch(name)]:
            self._notes.append(f"{many(len(newer), 'checkpoint')} of version 2 cannot be compared")
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
        self._state.files.clear()  # memory: a topic may have a thousand tables
        self._state.removed.clear()
        return report

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
                f"commit: entries {some(others)}"
            )
        elif spark and (others or is_topic) and not is_sparks:
            text = (
                f"Spark's Delta writer committed to a table of conditional writers, and can overwrite their commits: "
                f"entries {some(spark)}"
            )
        else:
            return
        if on_s3:
            self._find("unsafe-writer", text, version=(others if is_sparks else spark)[0])
        else:
            self._notes.append(f"{text} (on S3; this store may keep them apart)")

    def _check_features(self) -> None:
        """Check the features of topics; other tables are not read by this kit."""
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
                versions = some([version for version, _ in self._rewrites])
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
            self._notes.append(f"{many(len(orphans), 'object')} ({size:,} bytes) that {what}")
        if self._clock_back:
            count = many(len(self._clock_back), "entry", "entries")
            self._notes.append(f"{count} older than the one before, by the writers' clocks ({some(self._clock_back)})")
        if self._vectors:
            self._notes.append(f"{many(self._vectors, 'file')} with deletion vectors, which this kit does not read")
        without = sum(file.rows is None for file in state.files.values())
        if without and state.metadata is not None and PARTITIONS_KEY in state.metadata.configuration:
            self._notes.append(f"{many(without, 'file')} without numRecords, as far as the entries left tell")
