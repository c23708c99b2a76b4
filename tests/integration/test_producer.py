"""Producers that die: killed at each step, restarted with the same id, every message exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from brokerless import Consumer, DeltaLog, Schema, create_topic, open_store
from brokerless.maintenance.maintainer import Maintainer
from tests.support.crashing import FATAL, LAST, POINTS

if TYPE_CHECKING:
    from brokerless import Settings

ROOT = Path(__file__).resolve().parents[2]


def run(settings: Settings, point: str) -> tuple[int, list[int]]:
    """The exit code of a producer process, and what it says is acknowledged."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BROKERLESS_", "MINIO_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.crashing", point],
        cwd=ROOT,
        env={**kept, **settings.to_environ()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode, [int(line) for line in done.stdout.split()]


def read(settings: Settings) -> list[int]:
    found: list[int] = []
    with Consumer("t", start="beginning", settings=settings) as consumer:
        while batches := consumer.poll(0):
            found += [n for batch in batches for n in pa.table(batch.data)["n"].to_pylist()]
    return found


UNCLOSED = """
from brokerless.producer.producer import Producer
Producer("t", linger_s=60).enqueue([{"n": 1}, {"n": 2}])
"""


@pytest.mark.parametrize("store_is_up", [True, False])
def test_what_an_unclosed_producer_had_taken_is_committed_at_exit_or_named(
    embedded_settings: Settings, store_is_up: bool
) -> None:
    settings = replace(embedded_settings, root=f"{embedded_settings.root}/{uuid.uuid4().hex}")
    create_topic(open_store(settings), "t", Schema.parse("n long"))
    cut = (
        ""
        if store_is_up
        else "import brokerless.log.commit\nbrokerless.log.commit.commit_table.__globals__['records'] = None"
    )
    done = subprocess.run(
        [sys.executable, "-c", UNCLOSED + cut],
        cwd=ROOT,
        env={**os.environ, **settings.to_environ()},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert read(settings) == ([1, 2] if store_is_up else [])
    if store_is_up:
        assert not done.stderr
    else:
        assert "2 messages that were enqueued for topic 't' are not acknowledged" in done.stderr


@pytest.mark.faults
@pytest.mark.parametrize("point", [point for point in POINTS if point != "never"])
def test_killed_and_restarted_every_message_is_there_once(settings: Settings, point: str) -> None:
    store = open_store(settings)
    create_topic(store, "t", Schema.parse("n long"))
    code, acknowledged = run(settings, point)
    assert (code, acknowledged) == (-signal.SIGKILL, list(range(FATAL)))
    committed = point in {"after commit", "before ack"}
    assert read(settings) == list(range(FATAL + committed))

    code, acknowledged = run(settings, "never")
    assert (code, acknowledged) == (0, list(range(FATAL + committed, LAST + 1)))
    assert read(settings) == list(range(LAST + 1))

    # What the crash left behind is one object at most, and maintenance finds exactly that.
    live = DeltaLog(store, "t").load(with_files=True).files
    stored = [info.path for info in store.list("t") if info.path.endswith(".parquet") and "_delta_log" not in info.path]
    assert len(stored) - len(live) == (point == "after upload")
    (report,) = Maintainer(["t"], settings=settings, grace_s=0, unsafe_no_minimum=True).run_once()
    assert (report.objects_removed, report.skipped) == (len(stored) - len(live), ())
    assert read(settings) == list(range(LAST + 1))
