"""A producer process that kills itself at a named point. Run as ``python -m tests.support.crashing POINT``.

The settings come from the environment. Sends the numbers 0 to 5, each with its own sequence, going on after what the
log has; prints each number once it is acknowledged. At number 3 it dies at POINT (``never`` lives on).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Literal, get_args

from brokerless.producer.producer import Producer
from brokerless.settings import Settings
from brokerless.store import ObstoreStore, open_store

if TYPE_CHECKING:
    from brokerless.store import Outcome

Point = Literal["before upload", "after upload", "after commit", "before ack", "never"]
POINTS: tuple[Point, ...] = get_args(Point)
LAST = 5
FATAL = 3


class CrashingStore(ObstoreStore):
    """Kills its process, once armed."""

    armed: Point = "never"

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        self.pass_point("before upload")
        super().put(path, data, within_s=within_s)
        self.pass_point("after upload")

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> Outcome:
        outcome = super().put_if_absent(path, data, within_s=within_s)
        self.pass_point("after commit")
        return outcome

    def pass_point(self, point: Point) -> None:
        if point == self.armed:
            os.kill(os.getpid(), signal.SIGKILL)


def main(point: Point) -> None:
    settings = Settings.load(dotenv=None)
    plain = open_store(settings)
    store = CrashingStore(plain.uri, plain._connect)
    producer = Producer("t", store=store, producer_id="p")
    producer.claim()
    last = producer.last_sequence()
    for n in range(0 if last is None else last + 1, LAST + 1):
        if n == FATAL:
            store.armed = point
        producer.send({"n": [n]}, sequence=n)
        store.pass_point("before ack")
        sys.stdout.write(f"{n}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])  # type: ignore[arg-type]
