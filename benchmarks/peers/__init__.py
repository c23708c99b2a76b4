"""The peers by name. A peer's module is imported only when it is used, because each needs other packages."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.peers.base import Peer

PEERS: Final = {
    "brokerless": "benchmarks.peers.brokerless:Brokerless",
    "brokerless-micro-batch": "benchmarks.peers.brokerless:BrokerlessMicroBatch",
    "brokerless-executors": "benchmarks.peers.brokerless:BrokerlessExecutors",
    "delta-rs": "benchmarks.peers.delta_rs:DeltaRs",
    "delta-spark-stock": "benchmarks.peers.delta_spark:StockDeltaSpark",
    "delta-spark-tuned": "benchmarks.peers.delta_spark:TunedDeltaSpark",
    "kafka": "benchmarks.peers.kafka:Kafka",
    "kafka-defaults": "benchmarks.peers.kafka:KafkaDefaults",
    "kafka-realtime": "benchmarks.peers.kafka:KafkaRealtime",
    "kafka-delta": "benchmarks.peers.kafka:KafkaToDelta",
}
"""The modules and classes of the peers. ``kafka`` is one hop, or Kafka -> Spark -> Kafka, with tuned clients. Only for
two hops: ``kafka-defaults`` has the pipeline's clients with their defaults, ``kafka-realtime`` uses real-time mode,
``kafka-delta`` writes a Delta table. ``brokerless`` uses the engine that it chooses itself."""


def load(name: str) -> type[Peer]:
    """Return the class of a peer."""
    module, _, attribute = PEERS[name].partition(":")
    found: type[Peer] = getattr(import_module(module), attribute)
    return found
