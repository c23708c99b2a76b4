"""Start positions: what "beginning", "latest", an offset or a time means in one log."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from brokerless.clock import SYSTEM, Clock
from brokerless.columns import records
from brokerless.errors import ConfigError, OffsetOutOfRange
from brokerless.offsets import Offset, Start, parse_start

if TYPE_CHECKING:
    from brokerless.log.log import DeltaLog


def resolve_end(log: DeltaLog, until: Start, clock: Clock = SYSTEM) -> Offset:
    """The offset before which a bounded replay ends: one that the partition has now, or that of its next commit.

    Raises:
        ConfigError: text that means no position, a time without a zone, or one that is still to come.
        OffsetOutOfRange: as ``resolve_start``.
    """
    if isinstance(until, str):
        until = parse_start(until, clock)
    if isinstance(until, datetime) and until.tzinfo is not None and records.microseconds(until) > clock.time_us():
        raise ConfigError(f"The end {until.isoformat()} is still to come; end at 'latest', or read on without an end.")
    return resolve_start(log, until, clock)


def resolve_start(log: DeltaLog, start: Start, clock: Clock = SYSTEM) -> Offset:
    """The offset that a start means in this partition, now.

    Raises:
        ConfigError: text that means no position, or a time without a zone.
        OffsetOutOfRange: an offset that is beyond the log's end, or that retention has removed.
    """
    if isinstance(start, str):
        start = parse_start(start, clock)
    if start == "latest":
        return Offset(log.head() + 1)
    if start == "beginning":
        return Offset(log.earliest())
    if isinstance(start, datetime) and start.tzinfo is not None:
        return Offset(log.version_at(records.microseconds(start)))
    if not isinstance(start, Offset):
        raise ConfigError(f"A start is a text, an Offset or a time with a zone, not {start!r:.100}.")
    earliest, end = log.earliest(), log.head() + 1
    first = log.state.metadata.first_version
    # The entry that creates the table holds no messages, but is a place to start as long as nothing is missing.
    if start.version > end or start.version < (first if earliest == first + 1 else earliest):
        raise OffsetOutOfRange(
            f"Offset {start} of {log.uri} does not exist; it holds {earliest}:0 up to {end}:0 (exclusive).",
            earliest=Offset(earliest),
        )
    return start
