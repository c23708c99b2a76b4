"""Verification: record (``history``), judge (``checker``, ``pipeline``), inspect a table's log (``table``)."""

from __future__ import annotations

from brokerless.verify.checker import check, log_order
from brokerless.verify.history import Event, History, Recorded, RecordingConsumer, RecordingProducer, read_history
from brokerless.verify.pipeline import check_pipeline
from brokerless.verify.verdict import Finding, Verdict

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
