"""Find the end of a log by listing it, so that a missing entry is never taken for the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokerless.errors import TopicNotFound
from brokerless.maintenance.step import ENTRY, LogEnd, TableStep, incomplete

if TYPE_CHECKING:
    from brokerless.log.log import DeltaLog

_LOOKS: Final = 5


class FindEnd(TableStep):
    """The first step: find the end of the log, and prove that no entry before it is missing."""

    def find(self, log: DeltaLog) -> LogEnd:
        """List the log from the last checkpoint, and return its end.

        Raises:
            TopicNotFound: there is no log.
            LogIncomplete: an entry is missing.
        """
        missing = 0
        for attempt in range(_LOOKS):
            hint = log.checkpoint_version()
            end, missing = self._list_end(log, hint)
            if end is not None:
                return end
            # A listing takes time: the entry may have been written after its name was listed. Or it was cleaned up.
            if not self._store.exists(log.entry_path(missing)) and log.checkpoint_version() == hint:
                break
            self._clock.backoff(attempt)
        raise incomplete(log, missing)

    def _list_end(self, log: DeltaLog, hint: int | None) -> tuple[LogEnd | None, int]:
        """Return the end of the log; or None and the first missing entry."""
        folder = f"{log.table}/_delta_log"
        last = -1 if hint is None else hint
        begins, checkpoint = hint is not None, -1
        gap: int | None = None
        for version, info in self._versioned(folder, after=None if hint is None else log.entry_path(hint)):
            if ".checkpoint." in info.path:
                checkpoint = max(checkpoint, version)
            if version <= last or not ENTRY.fullmatch(info.path):
                continue
            if gap is None and version != last + 1:
                gap = last + 1
            begins |= version == 0
            last = version
        if last < 0 and checkpoint < 0:
            raise TopicNotFound(log.uri)
        if not begins:  # the hint was lost after clean-up: use the last checkpoint, as ``DeltaLog.load`` does
            return self._list_end(log, checkpoint) if checkpoint >= 0 else (None, 0)
        return (LogEnd(hint, last), 0) if gap is None else (None, gap)
