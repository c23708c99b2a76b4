"""Dead letters: look at them, send them again exactly once, remove them."""

from brokerless.dlq.letters import DeadLetter, DeadLetters, Purged, Redriven
from brokerless.dlq.rows import POSITION

__all__ = ["POSITION", "DeadLetter", "DeadLetters", "Purged", "Redriven"]
