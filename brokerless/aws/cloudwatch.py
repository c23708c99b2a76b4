"""Send metrics to CloudWatch or to a file, each minute, without delaying messages.

The stream only adds numbers to a ``Meter``. A thread (``Publisher``) takes them and gives them to a sink. Values that a
sink cannot send (throttling, a missing permission, a network failure) wait with the time at which they were taken, so
that graphs later show when it happened. Values of 15 minutes wait, then the oldest are dropped: metrics may be lost,
messages must not be delayed. Not guaranteed: a request whose response was lost is sent again, and counts twice.

boto3 is imported where CloudWatch is called, so that metrics can be written to a file without it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from brokerless.clock import SYSTEM, Clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TextIO

    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_cloudwatch.type_defs import MetricDatumTypeDef

    from brokerless.metrics import Datum, Meter

_LOG: Final = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
"""CloudWatch's standard resolution. A shorter period would cost more requests and show nothing more."""

MAX_WAITING: Final = 15
"""The number of periods that wait for a sink that fails."""

CLOSE_WITHIN_S: Final = 10.0
"""How long closing waits for the last request: about the time of a platform between SIGTERM and SIGKILL."""

_LOG_EVERY_S: Final = 60.0

# Limits of PutMetricData. Sizes are those of its widest protocol, the query protocol of older SDKs, uncompressed:
# "&MetricData.member.1000.Values.member.150=" and a number of up to 24 characters, and the same for its count.
_VALUES_PER_ENTRY: Final = 150
_ENTRIES_PER_REQUEST: Final = 1000
_BYTES_PER_REQUEST: Final = 1_000_000
_BYTES_PER_VALUE: Final = 2 * 66
_BYTES_PER_ENTRY: Final = 768


@dataclass(frozen=True, slots=True)
class Unsent:
    """The values that a sink could not send, and the reason."""

    data: tuple[Datum, ...]
    why: str


class Sink(Protocol):
    """Sends metrics out of the process."""

    def send(self, data: Sequence[Datum], *, at_us: int) -> Unsent | None:
        """Send the values that were taken at a time (microseconds since the epoch).

        Returns:
            The values that could not be sent for a temporary reason; None if all were sent. No error is raised for it.
        """


def cloudwatch_client(region: str | None = None) -> CloudWatchClient:
    """Return a client with two attempts of 3 s to connect and 5 s to read each, 16 s at most.

    Args:
        region: the AWS region; by default from the environment.
    """
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=3, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 2})
    return boto3.client("cloudwatch", region_name=region, config=config)


class CloudWatchSink:
    """Sends values with counts by PutMetricData; CloudWatch computes percentiles over all of them.

    One request has the values of a pipeline in a minute; more are split at the limits of PutMetricData.

    Args:
        client: from ``cloudwatch_client``.
        namespace: the namespace of the stage, ``Brokerless/dev``.
    """

    def __init__(self, client: CloudWatchClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def send(self, data: Sequence[Datum], *, at_us: int) -> Unsent | None:
        """Implement ``Sink``. The first failure ends the call, because the next request would fail too."""
        from botocore.exceptions import BotoCoreError, ClientError

        at = _moment(at_us)
        requests = list(_requests(data))
        for number, request in enumerate(requests):
            entries = [_entry(datum, at) for datum in request]
            try:
                self._client.put_metric_data(Namespace=self._namespace, MetricData=entries)
            except (BotoCoreError, ClientError) as error:
                rest = tuple(datum for later in requests[number:] for datum in later)
                return Unsent(rest, f"{type(error).__name__}: {error}")
        return None


class JsonLinesSink:
    """Writes one JSON object for each datum, for profiles without CloudWatch.

    Args:
        to: a file, which is opened and appended in each period, or a stream, which stays open.
    """

    def __init__(self, to: Path | TextIO) -> None:
        self._to = to

    def send(self, data: Sequence[Datum], *, at_us: int) -> Unsent | None:
        """Implement ``Sink``."""
        at = _moment(at_us).isoformat()
        lines = "".join(_line(datum, at) + "\n" for datum in data)
        try:
            if isinstance(self._to, Path):
                self._to.parent.mkdir(parents=True, exist_ok=True)
                with self._to.open("a", encoding="utf-8") as file:
                    file.write(lines)
            else:
                self._to.write(lines)
                self._to.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            return Unsent(tuple(data), f"{type(error).__name__}: {error}")
        return None


class Publisher:
    """Takes a meter's values and sends them to a sink, in each period and at the end.

    Use it as a context manager, or call ``start`` and ``close``. Errors of a sink are not raised; they are logged as a
    warning, once a minute.

    Args:
        meter: the source of values.
        sink: the receiver of values.
        period_s: the seconds between two calls of the sink.
        clock: the time of values and warnings.
    """

    def __init__(self, meter: Meter, sink: Sink, *, period_s: float = PERIOD_S, clock: Clock = SYSTEM) -> None:
        self._meter = meter
        self._sink = sink
        self._period_s = period_s
        self._clock = clock
        self._waiting: deque[_Period] = deque()
        self._warned_at: float | None = None
        self._lost = 0
        self._closing = threading.Event()
        # A daemon: a sink that hangs must not keep a finished process alive.
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> Self:
        """Start to send in the background."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Send the remaining values within ``CLOSE_WITHIN_S``; the rest is lost."""
        self._closing.set()
        self._thread.join(CLOSE_WITHIN_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self) -> None:
        """Take and send values now. The thread does so in each period; call it only if you did not start one."""
        if data := self._meter.take():
            self._waiting.append(_Period(self._clock.time_us(), tuple(data)))
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self._lost += 1
        while self._waiting:
            oldest = self._waiting[0]
            unsent = self._sink.send(oldest.data, at_us=oldest.at_us)
            if unsent is not None:
                self._waiting[0] = replace(oldest, data=unsent.data)
                self._warn(unsent.why)
                return
            self._waiting.popleft()

    def _run(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(self._period_s)
            try:
                self.publish()
            except Exception:
                # A bug in a sink: without this the thread would end, and metrics with it, without a message.
                _LOG.exception("Metrics of one period could not be sent and are lost.")
                if self._waiting:
                    self._waiting.popleft()

    def _warn(self, why: str) -> None:
        now = self._clock.monotonic()
        if self._warned_at is not None and now - self._warned_at < _LOG_EVERY_S:
            return
        self._warned_at = now
        _LOG.warning(
            "Metrics were not sent: %s. %d of at most %d periods wait, %d were dropped. The stream continues.",
            why,
            len(self._waiting),
            MAX_WAITING,
            self._lost,
        )


@dataclass(frozen=True, slots=True)
class _Period:
    at_us: int
    data: tuple[Datum, ...]


def _requests(data: Iterable[Datum]) -> Iterator[list[Datum]]:
    request: list[Datum] = []
    size = 0
    for piece in _pieces(data):
        more = _BYTES_PER_ENTRY + _BYTES_PER_VALUE * len(piece.values)
        if request and (len(request) == _ENTRIES_PER_REQUEST or size + more > _BYTES_PER_REQUEST):
            yield request
            request, size = [], 0
        request.append(piece)
        size += more
    if request:
        yield request


def _pieces(data: Iterable[Datum]) -> Iterator[Datum]:
    for datum in data:
        for start in range(0, len(datum.values), _VALUES_PER_ENTRY):
            part = slice(start, start + _VALUES_PER_ENTRY)
            yield replace(datum, values=datum.values[part], counts=datum.counts[part])


def _entry(datum: Datum, at: datetime) -> MetricDatumTypeDef:
    return {
        "MetricName": datum.metric.name,
        "Dimensions": [{"Name": datum.metric.dimension, "Value": datum.of}],
        "Timestamp": at,
        "Unit": datum.metric.unit,
        "Values": datum.values,
        "Counts": datum.counts,
    }


def _line(datum: Datum, at: str) -> str:
    return json.dumps({
        "at": at,
        "metric": datum.metric.name,
        datum.metric.dimension.lower(): datum.of,
        "unit": datum.metric.unit,
        "values": datum.values,
        "counts": datum.counts,
    })  # fmt: skip


def _moment(at_us: int) -> datetime:
    # In whole microseconds: a float of seconds would be inexact.
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).replace(microsecond=at_us % 1_000_000)
