"""The processes at both ends of a run: producers that keep to a schedule, and a reader that notes what came when.

The schedule does not wait for anybody (open loop): latency counts from when a message was meant to be sent, so a
producer or a store that stalls shows in the latency of all messages that it kept waiting. A producer that cannot keep
up, rather than one that had to wait, is reported as late.
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
"""A producer that has more than this to send at once sends it in several calls."""

LATE_S: Final = 0.5


def produce(spec: Spec, producer: int, sender: Sender, *, tick_ms: float, begin: Connection, out: Connection) -> None:
    """One producer process: at each tick, everything that is meant to be sent by then.

    Args:
        spec: of the run.
        producer: its number.
        sender: what moves the messages.
        tick_ms: how often it wakes up.
        begin: brings the moment (epoch seconds) at which message 0 is meant to be sent, once all are open.
        out: takes ``"open"``, then a dictionary: ``sent``, ``acknowledged``, ``late_s`` (how far behind schedule the
            latest send began), ``late`` (messages that were ``LATE_S`` behind or more), ``sends`` and ``send_s`` (time
            inside ``Sender.send``).
    """
    sender.open()
    spec.build(producer, time.time(), 0, 1)  # loads what the first message would otherwise wait for
    out.send("open")
    start: float = begin.recv()
    tick = tick_ms / 1000
    total = spec.count(producer)
    done = acknowledged = sends = late = 0
    worst = spent = 0.0
    # Producers' ticks are spread over the interval, as those of independent ones would be.
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
        # A tick that is missed is not made up for: the next one sends what both were meant to.
        next_tick += tick * max(1, int((time.time() - next_tick) / tick))
    acknowledged += sender.close()
    out.send(
        {"sent": done, "acknowledged": acknowledged, "late_s": worst, "late": late, "sends": sends, "send_s": spent}
    )


def read(receiver: Receiver, stop: Event, out: Connection, file: Path) -> None:
    """The reader process. Sends ``"open"``, then how many rows it has, twice a second; at the end it saves them."""
    receiver.open()
    opened = time.time()
    arrivals = Arrivals()
    out.send("open")
    rows, told = 0, opened
    while not stop.is_set():
        found = receiver.poll(0.2)
        now = time.time()
        for producers, numbers in found:
            arrivals.add(now, producers, numbers)
            rows += len(numbers)
        if now - told > 0.5:
            out.send(rows)
            told = now
    receiver.close()
    arrivals.save(file)
    out.send({"opened": opened})
