"""What a fork leaves of an object: its copy has no threads, and its locks may be held by threads that are not there."""

from __future__ import annotations

import os

from brokerless.errors import UsageError


def is_copy(opened_in: int) -> bool:
    """Whether this process got, by a fork, what the process with this id opened."""
    return os.getpid() != opened_in


def refuse_copy(opened_in: int, what: str) -> None:
    """Returns in the process that opened it. To be called before any lock is taken.

    Raises:
        UsageError: this is another process, where waiting for its threads would never end.
    """
    if is_copy(opened_in):
        raise UsageError(
            f"This {what} was opened in process {opened_in}, and this is process {os.getpid()}; open a {what} of its "
            "own in each process, after the fork."
        )
