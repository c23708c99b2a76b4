"""The processes at both ends of a run: producers that follow a schedule, and a reader that records arrivals.

The schedule does not wait (open loop): latency is measured from a message's intended send time, so a slow producer or
store increases the latency of all delayed messages. A producer that is itself too slow, instead of having to wait, is
reported as late.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Arrivals

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Event
    from pathlib import Path

    from benchmarks.peers.base import Receiver, Sender
    from benchmarks.spec import Spec

CHUNK: Final = 200_000
"""The most messages in one call; a producer with more sends them in several calls."""

LATE_S: Final = 0.5


def produce(spec: Spec, producer: int, sender: Sender, *, tick_ms: float, begin: Connection, out: Connection) -> None:
    """Run one producer process: at each tick, send all messages that are due.

    Args:
        spec: the run.
        producer: the producer's number.
        sender: sends the messages.
        tick_ms: the time between two ticks.
        begin: receives the intended send time of message 0 (epoch seconds) when all processes are open.
        out: gets ``"open"``, then a dictionary: ``sent``, ``acknowledged``, ``late_s`` (the largest delay of a send),
            ``late`` (messages that were delayed by ``LATE_S`` or more), ``sends`` and ``send_s`` (time inside
            ``Sender.send``).
    """
    sender.open()
    spec.build(producer, time.time(), 0, 1)  # imports modules before the first message needs them
    out.send("open")
    start: float = begin.recv()
    tick = tick_ms / 1000
    total = spec.count(producer)
    done = acknowledged = sends = late = 0
    worst = spent = 0.0
    # The producers' ticks are spread over the interval, as with independent producers.
    next_tick = start + tick * (1 + producer / spec.producers)
    while done < total:
        time.sleep(max(0.0, next_tick - time.time()))
        due = spec.due(time.time() - start, producer)
        while done < due:
            behind = time.time() - (start + float(spec.intended(done, done + 1)[0])) - tick
            worst = max(worst, behind)
            rows = spec.build(producer, start, done, min(due, done + CHUNK))
            begun = time.perf_counter()
            acknowledged += sender.send(rows)
            spent += time.perf_counter() - begun
            sends += 1
            done += rows.num_rows
            late += rows.num_rows if behind > LATE_S else 0
        # A missed tick is not repeated: the next one sends the messages of both.
        next_tick += tick * max(1, int((time.time() - next_tick) / tick))
    acknowledged += sender.close()
    out.send(
        {"sent": done, "acknowledged": acknowledged, "late_s": worst, "late": late, "sends": sends, "send_s": spent}
    )


def read(receiver: Receiver, stop: Event, out: Connection, file: Path) -> None:
    """Run the reader process: send ``"open"``, then the number of rows twice a second; save the arrivals at the end."""
    receiver.open()
    opened = time.time()
    arrivals = Arrivals()
    out.send("open")
    rows, reported = 0, opened
    while not stop.is_set():
        found = receiver.poll(0.2)
        now = time.time()
        for producers, numbers in found:
            arrivals.add(now, producers, numbers)
            rows += len(numbers)
        if now - reported > 0.5:
            out.send(rows)
            reported = now
    receiver.close()
    arrivals.save(file)
    out.send({"opened": opened})
