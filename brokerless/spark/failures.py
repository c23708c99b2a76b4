"""Finding errors in Spark's reports: its Python processes pass errors to the driver as text."""

from __future__ import annotations

import re
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from brokerless import errors
from brokerless.errors import BrokerlessError, PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLD_S: Final = 60.0
"""The time for which a pipeline continues with readable messages after it found an unreadable object."""

_UNREADABLE: Final = re.compile(r"brokerless\.errors\.StoreError: Offset (\d+):\d+ of '([^']+)' cannot be read")

_MISTAKES: Final = {"AnalysisException", "ParseException", "PySparkAttributeError", "PySparkTypeError"} | {
    "PySparkValueError"
}


def unreadable(table: str, version: int, index: int, cause: Exception) -> str:
    """Return the error text for a missing or damaged object; ``unreadable_in`` parses it."""
    offset = f"{table}@{version}:{index}"
    return (
        f"Offset {version}:{index} of {table!r} cannot be read: {cause} The pipeline has processed the messages before "
        "it and those of other partitions, and none after it. No message is lost or repeated: restore the object (from "
        "a version, a replica or a backup of the bucket) and start the pipeline again with the same name. Only if the "
        f"object cannot be restored, continue without its messages: --skip {offset}, or "
        f"read_stream(..., skip=[{offset!r}])."
    )


def unreadable_in(text: str) -> tuple[str, int] | None:
    """Return table and version of an unreadable object in Spark's report; None if it reports another error."""
    found = _UNREADABLE.search(text)
    return (found[2], int(found[1])) if found else None


@contextmanager
def lost_jvm_named() -> Iterator[None]:
    """Raise a PipelineError if Spark's JVM has ended, where py4j reports only a socket error.

    Raises:
        PipelineError: the JVM is gone.
    """
    try:
        yield
    except Exception as error:
        innermost = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        of_py4j = str(innermost.f_globals.get("__name__", "")).startswith("py4j.")
        if not of_py4j or not (isinstance(error, OSError) or type(error).__name__ == "Py4JNetworkError"):
            raise
        raise PipelineError(
            "Spark's JVM has ended: it was killed or ran out of memory. Unfinished rows were not committed; start the "
            "pipeline again with the same name, and it continues there."
        ) from error


def mistake_in_transform(error: Exception) -> str | None:
    """Return one line about a wrong column or expression from Spark's long text; None for other errors."""
    kind = type(error)
    if not kind.__module__.startswith("pyspark.errors") or kind.__name__ not in _MISTAKES:
        return None
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "").rstrip(";")
    return f"{kind.__name__}: {line}"


def named_error(text: str) -> BrokerlessError:
    """Return the brokerless error in Spark's report of a failed process; a PipelineError if there is none."""
    for line in reversed(text.splitlines()):
        kind, colon, message = line.strip().partition(": ")
        name = kind.rpartition("brokerless.errors.")[2]
        error = getattr(errors, name, None) if colon and "brokerless.errors." in kind else None
        if isinstance(error, type) and issubclass(error, BrokerlessError):
            try:
                return error(message)
            except TypeError:
                # Errors with more arguments (an earliest offset, a commit id) have them in their text.
                return PipelineError(f"{name}: {message}")
    return PipelineError(f"Spark stopped the pipeline: {text[:2000]}")
