"""Write the metrics of a function with several topics to its log, for CloudWatch (embedded metric format)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_lambda_powertools.metrics import EphemeralMetrics

if TYPE_CHECKING:
    from brokerless.metrics import Meter


def emit(meter: Meter, namespace: str) -> None:
    """Write the meter's values: one line for each topic, because a line has one set of dimensions."""
    lines: dict[tuple[str, str], EphemeralMetrics] = {}
    for datum in meter.take():
        dimension = datum.metric.dimension, datum.of
        if dimension not in lines:
            # Without a service, which would become a second dimension that no dashboard or alarm uses.
            lines[dimension] = EphemeralMetrics(namespace=namespace, service="")
            lines[dimension].add_dimension(*dimension)
        if datum.metric.unit == "Count":
            total = sum(value * count for value, count in zip(datum.values, datum.counts, strict=True))
            lines[dimension].add_metric(datum.metric.name, datum.metric.unit, total)
            continue
        for value, count in zip(datum.values, datum.counts, strict=True):
            for _ in range(int(count)):
                lines[dimension].add_metric(datum.metric.name, datum.metric.unit, value)
    for line in lines.values():
        line.flush_metrics()
