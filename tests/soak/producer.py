"""A producer of a soak: ``python -m tests.soak.producer FOLDER NUMBER INCARNATION``; settings by environment.

It keeps to the schedule whatever happens (open loop), sends each batch under its producer id with the number of its
last message as the sequence, and goes on after the last sequence in the log when it is started again. A delivery that
failed, or whose outcome is unknown, is sent again under the same sequence until the log has it.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from brokerless.errors import BrokerlessError, DeliveryFailed
from brokerless.producer.producer import Producer
from brokerless.settings import Settings
from tests.soak.load import Journal, Plan, rows
from tests.soak.talk import Stop, say

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_S = (0.1, 0.25)
CHUNK = 100_000


def main(folder: Path, number: int, incarnation: int) -> int:
    """Sends everything that is due, until all is sent. Exit code 3: not there, to be started again."""
    stop = Stop()
    plan = Plan.load(folder)
    spec = plan.spec
    journal = Journal(folder / f"journal-{number}")
    rng = random.Random(f"{plan.seed}-{number}-{incarnation}")
    failed = 0
    try:
        with Producer(
            spec.topic(number),
            settings=Settings.load(dotenv=None),
            producer_id=f"soak-{number}",
            partition=spec.partition(number),
        ) as producer:
            producer.claim()
            last = producer.last_sequence(spec.partition(number))
            done = 0 if last is None else last + 1
            say("started", at=done)
            while done < spec.count(number) and not stop:
                stop.wait(rng.uniform(*COMMIT_S))
                due = spec.due(time.time() - plan.begin, number)
                while done < due and not stop:
                    end = min(due, done + CHUNK)
                    failed += _send(producer, journal, rows(spec, plan.begin, number, done, end), done, stop)
                    done = end
    except BrokerlessError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    say("done", failed_sends=failed)
    return 0


def _send(producer: Producer, journal: Journal, batch: pa.Table, first: int, stop: Stop) -> int:
    """Sends until acknowledged; how often that failed."""
    end = first + batch.num_rows
    failed = 0
    journal.sent(first, end)
    while not stop:
        try:
            producer.send(batch, sequence=end - 1)
        except DeliveryFailed as error:
            failed += 1
            print(f"DeliveryFailed: {error}", file=sys.stderr)
            stop.wait(0.1)
        else:
            journal.acknowledged(first, end)
            break
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
