"""Consumers: messages out of topics, in log order within each partition, with their offsets."""

from brokerless.consumer.consumer import RAISE_AGAIN_S, Consumer
from brokerless.consumer.partition import Batch, Message

__all__ = ["RAISE_AGAIN_S", "Batch", "Consumer", "Message"]
