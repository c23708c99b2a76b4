"""The reader of a soak: ``python -m tests.soak.reader FOLDER``; settings by environment.

Follows the output and the dead letters. What it has seen and where it stands are one file, replaced in one step, so it
goes on exactly where it was after ``kill -9``: what it reads again after that, it had not saved as seen.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks import messages
from benchmarks.judge import DEAD_LETTERS, Seen
from benchmarks.spec import OUTPUT as OUTPUT_TOPIC
from brokerless.consumer import Batch, Consumer
from brokerless.errors import StoreError
from brokerless.metrics import LATENCY_BOUNDS_S
from brokerless.offsets import Offset
from brokerless.settings import Settings
from tests.soak.load import MALFORMED, Plan, due_ms, is_bad, is_damaged
from tests.soak.talk import Stop, say

TOPICS = (OUTPUT_TOPIC, f"{OUTPUT_TOPIC}.dead_letters")
STATE = "reader.npz"
SAVE_S = 3.0
REPORT_S = 1.0
_BOUNDS = np.array(LATENCY_BOUNDS_S)


def main(folder: Path) -> int:
    """Reads until SIGTERM; saves what it has seen."""
    stop = Stop()
    plan = Plan.load(folder)
    state = folder / STATE
    seen, positions = Seen.load(state, [plan.spec.count(n) for n in range(plan.producers)])
    consumer = Consumer(list(TOPICS), start="beginning", settings=Settings.load(dotenv=None))
    for topic, version in positions.items():
        consumer.seek(Offset(version), topic=topic)
    say("started", positions=positions)
    latency = np.zeros(len(_BOUNDS) + 1, np.int64)
    saved = reported = time.monotonic()
    errors = 0
    while not stop:
        try:
            batches = consumer.poll(0.5)
        except StoreError as error:
            errors += 1
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            stop.wait(0.1)
            continue
        now_s = time.time()
        for batch in batches:
            latency += _add(seen, batch, plan, now_s)
        now = time.monotonic()
        if now - reported >= REPORT_S:
            say("progress", **seen.counts, latency=latency.tolist(), errors=errors)
            latency[:], reported = 0, now
        if now - saved >= SAVE_S:
            seen.save(state, _positions(consumer))
            saved = now
    seen.save(state, _positions(consumer))
    say("progress", **seen.counts, latency=latency.tolist(), errors=errors)
    return 0


def _positions(consumer: Consumer) -> dict[str, int]:
    # A poll returns whole commits, so that the index is always 0.
    return {topic: offset.version for (topic, _), offset in consumer.position().items()}


def _add(seen: Seen, batch: Batch, plan: Plan, now_s: float) -> np.ndarray:
    """Notes a commit's messages and returns how late they are, as counts by ``LATENCY_BOUNDS_S``."""
    table = pa.table(batch.data)
    producers, numbers = messages.ids(pa.concat_arrays(table["message"].chunks))
    if batch.topic == TOPICS[DEAD_LETTERS]:
        topics = np.array(plan.spec.topics)
        right = np.array(table["_topic"].to_pylist()) == topics[np.clip(producers, 0, len(topics) - 1)]
        right &= np.array(table["date"].to_pylist()) == MALFORMED
        seen.add(producers, numbers, DEAD_LETTERS, damaged=~right, misplaced=~is_bad(numbers))
        return np.zeros(len(_BOUNDS) + 1, np.int64)
    timestamps_ms = table["timestamp"].to_numpy()
    damaged = is_damaged(timestamps_ms, due_ms(plan.spec, plan.begin, numbers))
    seen.add(producers, numbers, damaged=damaged, misplaced=is_bad(numbers))
    late_s = now_s - timestamps_ms / 1000
    return np.bincount(np.searchsorted(_BOUNDS, late_s), minlength=len(_BOUNDS) + 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
