"""Checks for objects that were copied into another process by a fork: there, their threads do not run."""

from __future__ import annotations

import os

from brokerless.errors import UsageError


def is_copy(opened_in: int) -> bool:
    """Return whether this process is a fork of the process with this id."""
    return os.getpid() != opened_in


def refuse_copy(opened_in: int, what: str) -> None:
    """Raise if this process is not the one that opened the object. Call it before taking any lock.

    Raises:
        UsageError: this is another process, where waiting for the object's threads would never end.
    """
    if is_copy(opened_in):
        raise UsageError(
            f"This {what} was opened in process {opened_in}, and this is process {os.getpid()}; open a new {what} "
            "in each process, after the fork."
        )
