"""What went wrong, found in what Spark says about it: errors cross from its Python processes to the driver as text."""

from __future__ import annotations

from brokerless import errors
from brokerless.errors import BrokerlessError, PipelineError


def named_error(text: str) -> BrokerlessError:
    """The kit's error inside Spark's report of a failure in one of its processes; a PipelineError if there is none."""
    for line in reversed(text.splitlines()):
        kind, colon, message = line.strip().partition(": ")
        name = kind.rpartition("brokerless.errors.")[2]
        error = getattr(errors, name, None) if colon and "brokerless.errors." in kind else None
        if isinstance(error, type) and issubclass(error, BrokerlessError):
            try:
                return error(message)
            except TypeError:
                # Errors with context of their own (an earliest offset, a commit id) keep it in their text.
                return PipelineError(f"{name}: {message}")
    return PipelineError(f"Spark stopped the pipeline: {text[:2000]}")
