"""What an inspection of a table says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "gap",
    "unreadable-entry",
    "missing-metadata",
    "unsupported",
    "repeated-add",
    "added-and-removed",
    "rewritten",
    "missing-object",
    "object-size",
    "unreadable-object",
    "damaged-object",
    "row-count",
    "columns",
    "checkpoint",
    "txn-back",
    "unsafe-writer",
    "schema-change",
    "replaced",
    "missing-partition",
    "partitions-differ",
    "half-created",
    "half-deleted",
]


@dataclass(frozen=True, slots=True)
class TableFinding:
    """One fault, and the entry or object that shows it."""

    kind: Kind
    text: str
    version: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class TableReport:
    """What was found in one table.

    Attributes:
        head: the last entry's version; None if there is none.
        entries, files, rows, checkpoints: how many were looked at; rows are those that the log tells of live files.
        files_read: how many live files were read and their rows compared.
        partitions: of the topic, if it is one and says so.
        orphans, orphan_bytes: objects that neither the log nor a checkpoint names. Uploads on their way look the same.
    """

    table: str
    head: int | None
    partitions: int | None
    entries: int
    files: int
    rows: int
    checkpoints: int
    files_read: int
    orphans: int
    orphan_bytes: int
    findings: tuple[TableFinding, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """All of it, as ``json.dumps`` takes it."""
        names = [name for name in self.__slots__ if name not in ("findings", "notes")]
        findings = [{"kind": f.kind, "text": f.text, "version": f.version, "path": f.path} for f in self.findings]
        values = {name: getattr(self, name) for name in names}
        return {**values, "ok": self.ok, "findings": findings, "notes": list(self.notes)}
