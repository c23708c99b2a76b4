"""Every error that brokerless raises on purpose.

Each says what happened, with the values, and what to do about it::

    BrokerlessError
    ├── UsageError                    a mistake of the caller; the CLI exits with 2 unless it came on the way
    │   ├── ConfigError               settings, URLs, credentials, missing tools
    │   ├── TopicError
    │   │   ├── TopicNotFound
    │   │   ├── TopicExists
    │   │   ├── TopicChanged          no longer the topic that was opened: other columns, or another table
    │   │   │   └── TopicDeleted      deleted, or deleted and created again, under a running writer or reader
    │   │   └── TopicRewritten        another engine deleted or updated rows; those it kept would be read again
    │   ├── SchemaError               unknown, missing or wrongly typed columns; bad schema text
    │   ├── MessageError              a message that cannot be encoded, with its line or row number
    │   └── UnsupportedTable          a table with Delta features that the log does not write or read
    ├── StoreError                    the object store failed
    │   ├── StoreUnavailable          did not answer, or kept answering 5xx or 429, until the deadline
    │   ├── AccessDenied
    │   ├── BucketNotFound
    │   ├── LogIncomplete             an entry of a log is missing although later ones are there
    │   ├── LogDamaged                an entry of a log is there and cannot be read
    │   └── ConditionalPutUnsupported the store ignores ``If-None-Match: *``: no log can be kept there
    ├── CommitError
    │   ├── NotCommitted              the deadline passed and nothing was written
    │   └── CommitUnknown             the deadline passed and the store never said; may appear later
    ├── Fenced                        somebody else took over; this one writes nothing more
    │   ├── ProducerFenced
    │   └── PipelineFenced
    ├── DeliveryFailed                which of the messages of one call are not acknowledged, and why
    ├── BufferFull                    back-pressure: the producer's buffer did not drain in time
    ├── OffsetOutOfRange              retention removed the position; carries the earliest offset
    └── PipelineError                 a pipeline's progress does not fit its output; it stopped and wrote nothing
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from brokerless.offsets import Ack, Offset


class BrokerlessError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        on_the_way: True if something may have been done before it came, whatever the class: the command exits with 1.
    """

    on_the_way: bool = False


@contextlib.contextmanager
def on_the_way() -> Iterator[None]:
    """Marks the errors that come out of it: by then, rows may have been written."""
    try:
        yield
    except BrokerlessError as error:
        error.on_the_way = True
        raise


class UsageError(BrokerlessError):
    """A mistake of the caller: nothing was written, a retry will not help."""


class ConfigError(UsageError):
    """Settings, URLs, credentials or tools that cannot work."""


class TopicError(UsageError):
    """The topic is not what the caller expects."""


class TopicNotFound(TopicError):
    """No table at the topic's place."""


class TopicExists(TopicError):
    """The topic is there already, and differs from what was asked for."""


class TopicChanged(TopicError):
    """The topic is no longer the one that this writer or reader opened; opening it again may help."""


class TopicDeleted(TopicChanged):
    """The topic was deleted, or deleted and created again, while this writer or reader held it."""


class TopicRewritten(TopicError):
    """Another engine deleted or updated rows in place: a reader that went on would deliver the kept rows again."""


class SchemaError(UsageError):
    """Columns that do not fit the topic, or schema text that cannot be read."""


class MessageError(UsageError):
    """A message that cannot be encoded; the text names its line or row."""


class UnsupportedTable(UsageError):
    """A Delta table with features outside reader version 1 and writer version 2."""


class StoreError(BrokerlessError):
    """The object store did not do what it was asked to."""


class StoreUnavailable(StoreError):
    """No usable answer within the deadline."""


class AccessDenied(StoreError):
    """The store refused the credentials, or they lack a permission."""


class BucketNotFound(StoreError):
    """The bucket of the root URL does not exist."""


class LogIncomplete(StoreError):
    """An entry is missing although later ones are there: it is late, lost or not yet restored.

    Nothing may be concluded from its absence, and nothing may be written in its place. ``version`` is the entry's.
    """

    def __init__(self, message: str, *, version: int) -> None:
        super().__init__(message)
        self.version = version


class LogDamaged(StoreError):
    """An entry is there and cannot be read: empty, cut, or of no Delta writer. ``version`` is the entry's."""

    def __init__(self, message: str, *, version: int) -> None:
        super().__init__(message)
        self.version = version


class ConditionalPutUnsupported(StoreError):
    """The store accepts a second PUT with ``If-None-Match: *``; commits there could be lost."""


class CommitError(BrokerlessError):
    """A log entry was not, or not provably, written."""


class NotCommitted(CommitError):
    """The deadline passed; every version that was tried is taken by others, so this commit can never appear."""


class CommitUnknown(CommitError):
    """The deadline passed while an answer was outstanding.

    The commit may be in the log or may still land at ``version``. Read that entry later: it is this commit if its
    ``commitInfo.txnId`` equals ``commit_id``; once another entry stands there, this commit can never land.
    """

    def __init__(self, message: str, *, table: str, version: int, commit_id: str) -> None:
        super().__init__(message)
        self.table = table
        self.version = version
        self.commit_id = commit_id


class Fenced(BrokerlessError):
    """Somebody else advanced this writer's txn: it is a zombie and stops."""


class ProducerFenced(Fenced):
    """Another producer with the same id took over."""


class PipelineFenced(Fenced):
    """Another pipeline with the same name took over."""


class DeliveryFailed(BrokerlessError):
    """Not all messages of one call are acknowledged.

    Attributes:
        acknowledged: what was committed before the failure.
        unacknowledged: row numbers, within the call, of the messages without an acknowledgement, ascending.
        unknown: True if some of those may still appear in the log (``CommitUnknown``).
    """

    def __init__(
        self, message: str, *, acknowledged: Sequence[Ack], unacknowledged: Sequence[int], unknown: bool
    ) -> None:
        super().__init__(message)
        self.acknowledged = tuple(acknowledged)
        self.unacknowledged = tuple(unacknowledged)
        self.unknown = unknown


class BufferFull(BrokerlessError):
    """The producer's buffer stayed full for the whole time that ``enqueue`` was allowed to wait."""


class OffsetOutOfRange(BrokerlessError):
    """The position is before what the log still holds (or beyond what it ever held)."""

    def __init__(self, message: str, *, earliest: Offset) -> None:
        super().__init__(message)
        self.earliest = earliest


class PipelineError(BrokerlessError):
    """A pipeline met a state in which going on could lose or repeat messages."""
