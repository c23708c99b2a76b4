"""Histories of producers and consumers: record them (``events``, ``recording``) and judge them (``checker``)."""

from __future__ import annotations

from brokerless.testing.history.checker import check, log_order
from brokerless.testing.history.events import Event, History, Recorded, read_history
from brokerless.testing.history.pipeline import check_pipeline
from brokerless.testing.history.recording import RecordingConsumer, RecordingProducer
from brokerless.testing.history.verdict import Finding, Verdict

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
