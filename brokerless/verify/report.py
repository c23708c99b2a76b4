"""The report of the inspection of a table."""

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
    """The findings in one table.

    Attributes:
        head: the last entry's version; None if there is none.
        entries, files, rows, checkpoints: the numbers that were checked; rows are those of live files in the log.
        files_read: the number of live files that were read and compared.
        partitions: the number of partitions, if the table is a topic.
        orphans, orphan_bytes: objects that neither the log nor a checkpoint names; also uploads before their commit.
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
        """Whether there are no findings."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return the report for ``json.dumps``."""
        names = [name for name in self.__slots__ if name not in ("findings", "notes")]
        findings = [{"kind": f.kind, "text": f.text, "version": f.version, "path": f.path} for f in self.findings]
        values = {name: getattr(self, name) for name in names}
        return {**values, "ok": self.ok, "findings": findings, "notes": list(self.notes)}
