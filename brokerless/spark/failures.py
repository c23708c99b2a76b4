"""What went wrong, found in what Spark says about it: errors cross from its Python processes to the driver as text."""

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
"""How long a pipeline goes on with what can be read after it met what cannot; then it stops and says so."""

_UNREADABLE: Final = re.compile(r"brokerless\.errors\.StoreError: Offset (\d+):\d+ of '([^']+)' cannot be read")

_MISTAKES: Final = {"AnalysisException", "ParseException", "PySparkAttributeError", "PySparkTypeError"} | {
    "PySparkValueError"
}


def unreadable(table: str, version: int, index: int, cause: Exception) -> str:
    """What is said of an object that is missing or damaged; ``unreadable_in`` finds it again."""
    place = f"{table}@{version}:{index}"
    return (
        f"Offset {version}:{index} of {table!r} cannot be read: {cause} The pipeline has processed what was before it, "
        "and what the other partitions held; what is behind it in this one waits. Nothing is lost or repeated: bring "
        "the object back (from a version, a replica or a backup of the bucket) and start the pipeline again under its "
        f"name. Only if nobody has it any more, go on without its messages: --skip {place}, or "
        f"read_stream(..., skip=[{place!r}])."
    )


def unreadable_in(text: str) -> tuple[str, int] | None:
    """The table and the version of an object that could not be read, in Spark's report; None if it was not that."""
    found = _UNREADABLE.search(text)
    return (found[2], int(found[1])) if found else None


@contextmanager
def lost_jvm_named() -> Iterator[None]:
    """Calls the end of Spark's JVM by a name, where py4j has only its sockets to speak of.

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
            "Spark's JVM has ended, killed or out of memory. What it had not given back was not committed: start the "
            "pipeline again under its name, and it goes on there."
        ) from error


def mistake_in_transform(error: Exception) -> str | None:
    """One line for what Spark says in thirty about a wrong column or expression; None if the error is not of those."""
    kind = type(error)
    if not kind.__module__.startswith("pyspark.errors") or kind.__name__ not in _MISTAKES:
        return None
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "").rstrip(";")
    return f"{kind.__name__}: {line}"


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
