"""Change what a table holds without new messages: merge files, remove files, change properties."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from brokerless.errors import BrokerlessError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerless.log.entries import Add, Entry, Metadata


class RewriteConflict(BrokerlessError):
    """Another commit removed one of the files, or changed the table's properties; nothing was written."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An entry without new messages.

    Attributes:
        operation: its name in ``commitInfo``.
        since: the version of the state in which the files to remove were live.
        removes: paths of files.
        adds: files that hold rows of those; uploaded already.
        keeps_rows: whether ``adds`` hold the very rows of ``removes``: a table before and after is the same.
        metadata: the table's new metadata.
        txns: application id -> version.
        about: more keys of ``commitInfo``.
    """

    operation: str
    since: int
    removes: tuple[str, ...] = ()
    adds: tuple[Add, ...] = ()
    keeps_rows: bool = False
    metadata: Metadata | None = None
    txns: Mapping[str, int] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def check(self, entry: Entry, uri: str) -> None:
        """Make sure that this may follow an entry that was written after ``since``.

        Raises:
            RewriteConflict: it may not.
        """
        if common := set(self.removes) & set(entry.removes):
            raise RewriteConflict(f"{uri}: entry {entry.version} has removed {sorted(common)[0]} meanwhile. Try again.")
        if self.metadata is not None and entry.metadata is not None:
            raise RewriteConflict(f"{uri}: entry {entry.version} has changed the table meanwhile. Try again.")
        if self.txns.keys() & entry.txns.keys():
            raise RewriteConflict(f"{uri}: entry {entry.version} has come first. Try again.")
