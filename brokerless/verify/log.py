"""Inspect the log of a table: its entries, and the checkpoints that must agree with them."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from brokerless.columns.footer import row_count
from brokerless.log.checkpoint import TableState, checkpoint_hint, read_checkpoint
from brokerless.log.entries import PARTITIONS_KEY
from brokerless.log.log import read_pool
from brokerless.schema import only_adds
from brokerless.store import ObjectInfo
from brokerless.verify.actions import Actions, DataFile, files_of
from brokerless.verify.columns import columns_of
from brokerless.verify.inspection import ENTRY, WINDOW, Inspection, State, many, short, some, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from brokerless.log.entries import Metadata
    from brokerless.store import Store

ONLY_ORDER: Final = "only their order, or their properties"
_POSITION: Final = re.compile(r"(.+/.*)#[0-2]")


class LogInspection(Inspection):
    """The steps that read the log."""

    def has_changed(self) -> bool:
        """Whether the table was deleted or created again since the last call."""
        before = self._state.metadata
        self._head = self._follow(self._head)
        return self._state.metadata is not before

    def _check_hint(self, versions: Sequence[int], checkpoints: Mapping[int, list[str]], v2: bool) -> int | None:
        hint = checkpoint_hint(self._store, self._table)
        if hint is None or hint in checkpoints or v2 or self._has_checkpoint(hint):
            return hint
        self._find("checkpoint", f"_last_checkpoint names checkpoint {hint}, which is not there", version=hint)
        return hint

    def _has_checkpoint(self, version: int) -> bool:
        """Whether the checkpoint exists now: a hint may be newer than the listing."""
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
                self._find("gap", f"{span(before + 1, version - 1)} missing from the log", version=before + 1)
                self._state.complete = False
            before = version
            self._add(version, data)
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
        for start in range(0, len(versions), WINDOW):
            window = versions[start : start + WINDOW]
            for version, data in zip(window, read_pool().map(self._entry, window), strict=True):
                if data is not None:
                    yield version, data
                elif not self._entries:
                    # Log clean-up has removed the oldest entries since the listing.
                    self._state.complete = self._has_begun = False
                else:
                    self._find("gap", f"entry {version} was listed, but cannot be found", version=version)

    def _entry(self, version: int) -> bytes | None:
        try:
            return self._store.get(f"{self._table}/_delta_log/{version:020d}.json")
        except FileNotFoundError:
            return None

    def _follow(self, head: int | None) -> int | None:
        """Read entries that were committed since the listing, and return the last version."""
        while head is not None and (data := self._entry(head + 1)) is not None:
            head += 1
            self._add(head, data)
        return head

    def _look_beyond(self, head: int | None) -> int | None:
        """Read entries after a missing one, which is not the end of the log: it may be lost since the listing."""
        if head is None:
            return None
        folder = f"{self._table}/_delta_log"
        names = [i.path.rpartition("/")[2] for i in self._store.list(folder, after=f"{folder}/{head:020d}.json")]
        for version in sorted(int(match[1]) for name in names if (match := ENTRY.fullmatch(name))):
            head = self._follow(head)
            if head is not None and version > head:
                self._find("gap", f"{span(head + 1, version - 1)} missing from the log", version=head + 1)
                self._state.complete = False
                head = self._follow(version - 1)
        return head

    def _check_end(self, head: int | None, checkpoints: Mapping[int, list[str]]) -> int | None:
        """Continue from a checkpoint above the last entry: the entries between them were lost."""
        last = max(checkpoints, default=-1)
        if head is None or last <= head:
            return head
        self._find("gap", f"{span(head + 1, last)} missing from the log", version=head + 1)
        self._begin_at(last, checkpoints)
        return self._follow(last)

    def _add(self, version: int, data: bytes) -> None:
        self._entries += 1
        try:
            actions = Actions.parse(data)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            self._find("unreadable-entry", f"entry {version} is not a log entry ({short(error)})", version=version)
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
            text = f"entry {version} adds and removes {path}"
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
            # Without dataChange the entry only has other statistics or tags.
            if known is not None and known.vector == file.vector and file.data_change:
                text = f"entry {version} adds {file.path}, which is in the table already"
                self._find("repeated-add", text, version=version, path=file.path)
            self._vectors += bool(file.vector)
            state.files[file.path] = file
            state.removed.discard(file.path)

    def _check_metadata(self, version: int, actions: Actions) -> bool:
        """Return whether the table is created again with this entry, so that transactions begin again."""
        before, now = self._state.metadata, actions.metadata
        if now is None:
            return False
        self._state.metadata = now
        try:
            columns_of(now)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            text = f"entry {version} has metadata without columns that can be read ({short(error)})"
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
            text = f"entry {version} changes the columns: {columns_changed(before, now)}"
            if is_topic and not only_adds(before.schema_string, now.schema_string):
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
            self._state = State(
                True, {file.path: file for file in files}, removed, txns, found.metadata, found.protocol
            )
            self._has_begun = True

    def _load(self, version: int, checkpoints: Mapping[int, list[str]]) -> tuple[TableState, list[DataFile]] | None:
        """Return the checkpoint, and its files with the fields that a ``TableState`` does not have."""
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
        except Exception as error:  # a decoder may raise any error for damaged bytes
            self._find("checkpoint", f"checkpoint {version} cannot be read ({short(error)})", version=version)
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
            differences.append(f"lacks {many(len(lacks), 'live file')} ({some(lacks)})")
        if extra := sorted(there.keys() - here.keys()):
            differences.append(f"has {many(len(extra), 'file')} that the entries do not ({some(extra)})")
        if sizes := sorted(path for path, add in there.items() if path in here and here[path].size != add.size):
            differences.append(f"has other sizes ({some(sizes)})")
        # If the table's transactions expire, a checkpoint may not have all of them.
        expire = state.metadata is not None and "delta.setTransactionRetentionDuration" in state.metadata.configuration
        if txns := sorted(
            name
            for name in state.txns.keys() | found.txns.keys()
            if state.txns.get(name) != found.txns.get(name) and not (expire and name not in found.txns)
        ):
            differences.append(f"has other transactions ({some(txns)})")
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
            differences.append(f"has other properties ({some(keys)})")
        if state.protocol is not None and (found.protocol.reader, found.protocol.writer) != (
            state.protocol.reader,
            state.protocol.writer,
        ):
            differences.append("has another protocol version")
        if differences:
            text = f"checkpoint {version} differs from the entries: it {'; it '.join(differences)}"
            self._find("checkpoint", text, version=version)


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A store for ``read_checkpoint`` with parts that were read and checked before."""

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
    """Yield each transaction's version before and now; the parts of one position (``ingest.positions``) together."""
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


def _lacking(state: State) -> str:
    parts = {"protocol": state.protocol, "metadata": state.metadata}
    return " and no ".join(name for name, part in parts.items() if part is None)


def _plain(step: tuple[int, ...]) -> str:
    return "/".join(map(str, step))


def columns_changed(before: Metadata, now: Metadata) -> str:
    """Return the differences between the columns of two versions of a table."""
    old, new = _columns(before), _columns(now)
    changes = [f"+ {name} {kind}" for name, kind in new.items() if old.get(name) != kind]
    changes += [f"- {name} {kind}" for name, kind in old.items() if new.get(name) != kind]
    return ", ".join(changes) or ONLY_ORDER


def _columns(metadata: Metadata) -> dict[str, str]:
    try:
        return {f["name"]: str(f["type"]) for f in json.loads(metadata.schema_string)["fields"]}
    except (ValueError, KeyError, TypeError):
        return {"schema": metadata.schema_string}
