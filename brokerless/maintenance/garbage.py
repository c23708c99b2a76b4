"""Remove objects that no reader can need: orphans of crashes, and files whose tombstones have expired.

An object is removed only when no retained entry can name it, and the log is read once more right before. A mark beside
the objects announces each removal to writers that were suspended (``brokerless.log.commit``). The rules, in the order
of ``_is_garbage``: (1) live: never; (2) younger than the grace time: not yet; (3) a tombstone: when it was uploaded,
and by the log's times removed, before the oldest retained entry; in a deleted topic after the grace time; (4) not in
the log, with a name of this kit, and younger than tombstones are retained: an orphan; (5) not in the log and older, or
uploaded by another writer, which may commit days later: as rule 3.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from brokerless.columns.records import ERASED
from brokerless.errors import BrokerlessError
from brokerless.log.commit import REMOVAL_VALID_S, REMOVALS
from brokerless.log.entries import RETENTION_KEYS, check_supported
from brokerless.maintenance.step import (
    DELETE_BATCH,
    ENTRY,
    LogEnd,
    Rules,
    TableStep,
    Work,
    batches,
    incomplete,
    tombstone_retention_s,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokerless.log.checkpoint import TableState
    from brokerless.log.entries import Entry
    from brokerless.log.log import DeltaLog
    from brokerless.store import ObjectInfo

_OF_THE_KIT: Final = re.compile(r"part-[^/]+\.[0-9a-f]{8}\.snappy\.parquet")  # columns.records.object_name
_PROBE: Final = re.compile(r"_probe-[0-9a-f-]{36}")  # log.probe.check_conditional_put


@dataclass(frozen=True, slots=True)
class Horizon:
    """The limits below which no reader can need an object.

    Attributes:
        now_s: the store's time.
        stored_s: objects that were uploaded before, by the store's time, are named by no retained entry.
        written_ms: commits before, by the writers' time, are not retained.
        ended_s: when a deleted topic was deleted, by the store's time.
    """

    now_s: float
    stored_s: float = -math.inf
    written_ms: float = -math.inf
    ended_s: float = math.inf


class GarbageCollection(TableStep):
    """The step that removes objects no reader can need."""

    def collect(self, log: DeltaLog, end: LogEnd, work: Work) -> None:
        """Remove the table's garbage, and the old marks of removals."""
        now_s = work.time.now_s
        # The objects first, the log second: an object that is committed in between is then live.
        found = list(self._in_time(self._data_objects(log.table), work))
        skip = len(log.table) + 1
        inner = tuple({info.path[: at + 1] for info in found if (at := info.path.find("/_delta_log/", skip)) > 0})
        # guard: orphans have a time of grace
        old = [i for i in found if now_s - i.modified_s >= self._limits.grace_s and not i.path.startswith(inner)]
        marks = self._store.list(f"{log.table}/{REMOVALS}")
        left = [mark.path for mark in marks if now_s - mark.modified_s >= REMOVAL_VALID_S]
        erased = [i for i in self._store.list(f"{log.table}/{ERASED}") if now_s - i.modified_s >= self._limits.grace_s]
        if not old and not left and not erased:
            return
        state = self._load(log, end, with_files=True)
        rules = self._rules(log, state.metadata)
        if left:
            self._store.delete(left)
        check_supported(state.protocol, state.metadata, table=log.uri)
        horizon = self._horizon(log, state, now_s)
        live, version = set(state.files), state.version
        garbage = [info for info in old if self._is_garbage(info, info.path[skip:], state, rules, horizon)]
        replaced = {info.path.removeprefix(f"{log.table}/{ERASED}/") for info in erased}
        # An object of which rows were erased goes, though entries name it: what is left of it is beside it.
        garbage += [i for i in old if i.path[skip:] in replaced - live and i not in garbage]
        # No entry names the object of one that is older than all of them.
        is_over = state.metadata.deleted and now_s - horizon.ended_s >= self._limits.grace_s
        garbage += [info for info in erased if is_over or info.modified_s < horizon.stored_s]
        for batch in self._in_time(batches(garbage), work):
            mark = f"{log.table}/{REMOVALS}/{self._clock.uuid()}"
            self._store.put(mark, b"")
            # Read the log again right before: a suspended producer may have committed an old object just now.
            try:
                for entry in self._read_after(log, version):
                    live.update(add.path for add in entry.adds)
                    version = entry.version
            except BrokerlessError:
                self._store.delete([mark])
                raise
            doomed = [info for info in batch if info.path[skip:] not in live]
            # A DELETE without a response may still arrive: then the mark stays.
            if doomed:
                self._store.delete([info.path for info in doomed])
            work.report.objects_removed += len(doomed)
            work.report.bytes_removed += sum(info.size for info in doomed)
            self._store.delete([mark])

    def _read_after(self, log: DeltaLog, version: int) -> Iterator[Entry]:
        """Read the entries after a version, up to the end of the listing.

        Raises:
            LogIncomplete: one is missing.
        """
        listed = version
        for found, info in self._versioned(f"{log.table}/_delta_log", after=log.entry_path(version)):
            if ENTRY.fullmatch(info.path):
                listed = max(listed, found)
        for entry in log.read_from(version + 1):
            version = entry.version
            yield entry
        if version < listed:
            raise incomplete(log, version + 1)

    def _is_garbage(self, info: ObjectInfo, path: str, state: TableState, rules: Rules, horizon: Horizon) -> bool:
        """Whether no entry that a reader can read names this object, which is older than the grace time."""
        if path in state.files:
            return False
        removed_ms = state.tombstones.get(path)
        if state.metadata.deleted:
            # Nothing can be committed after the end of this log; the newest tombstones are those of the deletion.
            return horizon.now_s - horizon.ended_s >= (self._limits.grace_s if rules.kit else rules.foreign_grace_s)
        age_s = horizon.now_s - info.modified_s
        # Objects are uploaded before their entries, so the entry that adds this one is older than all retained ones.
        unreachable = info.modified_s < horizon.stored_s
        if removed_ms is not None:
            retained_ms = min(horizon.written_ms, (horizon.now_s - rules.removed_s) * 1000)
            if any(key in state.metadata.configuration for key in RETENTION_KEYS):
                # The topic says itself what stays; the grace time is for queries of other engines that are under way.
                retained_ms = (horizon.now_s - self._limits.grace_s) * 1000
            return unreachable and removed_ms < retained_ms
        if _PROBE.fullmatch(path):
            return rules.kit
        if rules.kit and _OF_THE_KIT.fullmatch(path) and age_s < tombstone_retention_s(state) - self._limits.skew_s:
            return True
        return unreachable and age_s >= rules.foreign_grace_s

    def _horizon(self, log: DeltaLog, state: TableState, now_s: float) -> Horizon:
        first = state.version if state.metadata.deleted else state.metadata.first_version
        # By a listing, not by reads: a missing entry must not be taken for the beginning of the log.
        found = self._versioned(f"{log.table}/_delta_log", after=log.entry_path(first - 1) if first else None)
        # The oldest of one page: a suspended writer may have written an entry of today before the beginning.
        page = islice(((v, i) for v, i in found if ENTRY.fullmatch(i.path)), DELETE_BATCH)
        version, info = min(page, key=lambda one: one[1].modified_s, default=(-1, None))
        if info is None:
            return Horizon(now_s)
        if state.metadata.deleted:
            return Horizon(now_s, ended_s=info.modified_s)
        entry = log.read(version)
        if entry is None:  # cleaned up meanwhile
            return Horizon(now_s)
        return Horizon(now_s, info.modified_s - self._limits.skew_s, entry.timestamp_ms - self._limits.skew_s * 1000)

    def _data_objects(self, table: str) -> Iterator[ObjectInfo]:
        """List the Parquet objects below a table, objects of probes, and the logs of tables inside it.

        The table's own log is omitted, and not listed where the store lists by name.
        """
        log = f"{table}/_delta_log/"
        after: str | None = None
        while True:
            for info in self._store.list(table, after=after):
                if info.path.startswith(log):
                    if after is None and self._listed_by_name:
                        break
                    continue
                path = info.path.removeprefix(f"{table}/")
                hidden = any(part.startswith(("_", ".")) for part in path.split("/"))
                if (path.endswith(".parquet") and not hidden) or _PROBE.fullmatch(path) or "/_delta_log/" in path:
                    yield info
            else:
                return
            after = f"{table}/_delta_log0"  # the first name after the log: "0" is the character after "/"
