"""Inspect the objects of a table: that they exist, and agree with the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brokerless.columns.footer import row_count
from brokerless.columns.records import damage
from brokerless.log.entries import is_inside
from brokerless.log.log import read_pool
from brokerless.verify.columns import difference
from brokerless.verify.inspection import WINDOW, many
from brokerless.verify.log import LogInspection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerless.store import ObjectInfo
    from brokerless.verify.actions import DataFile
    from brokerless.verify.report import Kind

SAMPLE_FILES: Final = 20
SAMPLE_BYTES: Final = 64 * 2**20
"""The limits of a sample. Objects are read whole."""

_ASKED_AGAIN: Final = 1000  # no more objects than this appear during an inspection


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault of an object."""

    kind: Kind
    text: str


class ObjectInspection(LogInspection):
    """The steps that read objects."""

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
            self._notes.append(f"{many(outside, 'file')} outside the table's folder, which were not checked")
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
        for start in range(0, len(files), WINDOW):
            window = files[start : start + WINDOW]
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
                # As a reader does: the transfer may have damaged it.
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
            return []  # removed since the listing
        except ValueError as error:
            return [_Fault("unreadable-object", f"cannot be read: {error}")]
        return faults

    def _sample(self, files: list[DataFile]) -> list[DataFile]:
        """Return the newest files, which may not have been read yet, and as many random others."""
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
