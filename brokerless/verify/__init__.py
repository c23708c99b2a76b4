"""Verification: record what programs did (``history``), judge it (``checker``), inspect a table's log (``table``)."""

from __future__ import annotations

from brokerless.verify.checker import Finding, Verdict, check, check_pipeline, log_order
from brokerless.verify.history import Event, History, Recorded, RecordingConsumer, RecordingProducer, read_history

__all__ = [
    "Event",
    "Finding",
    "History",
    "Recorded",
    "RecordingConsumer",
    "RecordingProducer",
    "Verdict",
    "check",
    "check_pipeline",
    "log_order",
    "read_history",
]
