"""One role as a process: ``python -m tests.grid.roles producer --name p --history p.jsonl --state p.json``.

The settings come from the environment. Each turn of its work is a line of JSON on standard output; a named error that
ends it is the last line on standard error. SIGTERM ends it after the turn.

``GRID_BREAK`` takes one of the kit's safeguards away, to see that the grid's verdict notices:

========  ========================================================================================================
outcome   a conditional PUT without a clear answer is taken for done: messages are lost
fence     nobody looks at other owners' txns: a zombie writes on
sequence  the producer goes on by its own notes, not by those in the log: a killed one repeats itself
========  ========================================================================================================
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from brokerless.clock import SYSTEM
from brokerless.consumer import Consumer
from brokerless.errors import BrokerlessError, Fenced, OffsetOutOfRange
from brokerless.log.log import DeltaLog
from brokerless.maintenance.maintainer import Maintainer
from brokerless.offsets import Offset
from brokerless.producer.producer import Producer
from brokerless.settings import Settings
from brokerless.store import ObstoreStore, Outcome, open_store
from brokerless.testing.history import History, RecordingConsumer, RecordingProducer
from tests.grid.cells import OUTPUTS, TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BREAK: Final = "GRID_BREAK"
GOOD, BAD = "2024-08-23 10:52:13.066217 +0200", "yesterday"
BAD_EVERY: Final = 10
TURN_S: Final = 0.2
EXECUTOR_ROWS: Final = 150
"""Batches after a pause are larger and written by executors, those in between by the driver: both ways are struck."""

_AGAIN_S: Final = 0.2
_Made = TypeVar("_Made")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the role until it is told to stop. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.grid.roles", description=__doc__)
    parser.add_argument("role", choices=["producer", "consumer", "maintenance", "pipeline", "realtime"])
    parser.add_argument("--name", required=True, help="that outlives the process")
    parser.add_argument("--history", type=Path, required=True, help="where it records what it sees")
    parser.add_argument("--state", type=Path, required=True, help="where it keeps its place")
    parser.add_argument("--rows", type=int, default=10, help="messages a turn")
    parser.add_argument("--topics", type=lambda text: text.split(","), default=[TOPIC])
    parser.add_argument("--retention-s", type=float, default=60.0)
    args = parser.parse_args(argv)
    _break(os.environ.get(BREAK, ""))
    if args.role in OUTPUTS:
        from glue_jobs.timezone_etl import pipeline

        engine = "realtime" if args.role == "realtime" else "micro-batch"
        where = ["--inputs", TOPIC, "--output", OUTPUTS[args.role], "--name", args.name]
        pipeline.main(["--json", "--engine", engine, *where, "--executor-rows", str(EXECUTOR_ROWS)])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        {"producer": produce, "consumer": consume, "maintenance": maintain}[args.role](args, stop)
    except Fenced as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def produce(args: argparse.Namespace, stop: threading.Event) -> None:
    """Sends numbered batches, each under its number as sequence, going on after what the log has."""
    settings = Settings.load(dotenv=None)
    by_notes = os.environ.get(BREAK) == "sequence"
    owner = None if by_notes else args.name

    def open_producer() -> tuple[Producer, int]:
        producer = Producer(TOPIC, settings=settings, producer_id=owner, key="message", delivery_timeout_s=5.0)
        if by_notes:
            return producer, int(args.state.read_text()) if args.state.exists() else 0
        # A batch may have reached one partition only. Sent again as it was, the other one knows its sequence.
        producer.claim()
        last = [producer.last_sequence(number) for number in range(producer.partitions)]
        return producer, min(-1 if one is None else one for one in last) + 1

    opened = _until_it_works(open_producer, stop)
    if opened is None:
        return
    producer, number = opened
    with History(args.history) as history:
        recorder = RecordingProducer(producer, history, id_column="message", name=args.name, producer_id=owner)
        while not stop.is_set():
            try:
                recorder.send(rows_of(args.name, number, args.rows), sequence=None if by_notes else number)
            except Fenced:
                raise
            except BrokerlessError as error:
                _say("error", error=f"{type(error).__name__}: {error}")
                stop.wait(_AGAIN_S)
                continue
            number += 1
            _write(args.state, str(number))
            _say("progress", rows=args.rows)
            stop.wait(TURN_S)


def rows_of(name: str, number: int, rows: int) -> dict[str, list[str]]:
    """The batch with this number: the same whoever makes it, every tenth message malformed."""
    first = number * rows
    return {
        "date": [BAD if (first + row) % BAD_EVERY == BAD_EVERY - 1 else GOOD for row in range(rows)],
        "message": [f"{name}-{first + row}" for row in range(rows)],
    }


def consume(args: argparse.Namespace, stop: threading.Event) -> None:
    """Reads the topics from where it noted down that it was, or from the beginning, and notes down how far it is."""
    settings = Settings.load(dotenv=None)
    place: dict[str, tuple[int, int]] = json.loads(args.state.read_text()) if args.state.exists() else {}

    def open_consumer() -> Consumer:
        consumer = Consumer(args.topics, settings=settings, start="beginning")
        for topic, partition in consumer.position():
            if f"{topic}/{partition}" in place:
                consumer.seek(Offset(*place[f"{topic}/{partition}"]), topic=topic, partition=partition)
        return consumer

    consumer = _until_it_works(open_consumer, stop)
    if consumer is None:
        return
    seen: Counter[str] = Counter()
    with History(args.history) as history:
        recorder = RecordingConsumer(consumer, history, id_column="message", name=args.name, group=args.name)
        while not stop.is_set():
            try:
                batches = recorder.poll(0.5)
            except OffsetOutOfRange:
                raise
            except BrokerlessError as error:
                _say("error", error=f"{type(error).__name__}: {error}")
                stop.wait(_AGAIN_S)
                continue
            for batch in batches:
                seen[batch.topic] += batch.data.num_rows
            moved = {f"{topic}/{n}": (at.version, at.index) for (topic, n), at in recorder.position().items()}
            for where, at in moved.items():
                if place.get(where) != at:
                    topic, _, partition = where.rpartition("/")
                    place[where] = at
                    with history.commit(
                        recorder.process, group=args.name, topic=topic, partition=int(partition), offset=Offset(*at)
                    ):
                        _write(args.state, json.dumps(place))
            if batches:
                _say("progress", rows=dict(seen))
        recorder.close()


def maintain(args: argparse.Namespace, stop: threading.Event) -> None:
    """Keeps all tables in order, round after round, with times that are short and yet longer than any pause here."""
    settings = Settings.load(dotenv=None)
    maintainer = Maintainer(
        settings=settings,
        checkpoint_every=15,
        log_retention_s=args.retention_s,
        grace_s=args.retention_s,
        unsafe_no_minimum=True,
    )
    while not stop.wait(1.0):
        try:
            # An orphan, as a producer leaves it that dies between upload and commit: something to sweep in each round.
            open_store(settings).put(f"{TOPIC}/part-{SYSTEM.uuid()}.{0:08x}.snappy.parquet", b"nobody names me")
            reports = maintainer.run_once()
        except BrokerlessError as error:
            _say("error", error=f"{type(error).__name__}: {error}")
            continue
        removed = sum(report.entries_removed + report.objects_removed for report in reports)
        _say("progress", removed=removed, checkpoints=sum(report.checkpoint is not None for report in reports))


def _until_it_works(make: Callable[[], _Made], stop: threading.Event) -> _Made | None:
    while not stop.is_set():
        try:
            return make()
        except (Fenced, OffsetOutOfRange):
            raise
        except BrokerlessError as error:
            _say("error", error=f"{type(error).__name__}: {error}")
            stop.wait(_AGAIN_S)
    return None


def _write(path: Path, text: str) -> None:
    """All of it or nothing, whenever this process is killed."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def _say(event: str, **values: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


def _break(safeguard: str) -> None:
    if safeguard == "outcome":
        honest = ObstoreStore.put_if_absent

        def hopeful(self: ObstoreStore, path: str, data: bytes, *, within_s: float | None = None) -> Outcome:
            outcome = honest(self, path, data, within_s=within_s)
            return "created" if outcome == "unknown" else outcome

        ObstoreStore.put_if_absent = hopeful  # type: ignore[method-assign]
    elif safeguard == "fence":
        DeltaLog._check_rival = DeltaLog._check_txns = lambda *_: None  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    sys.exit(main())
