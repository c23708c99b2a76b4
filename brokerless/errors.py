"""All errors that brokerless raises itself. Each text says what happened, with the values, and how to fix it.

::

    BrokerlessError
    ├── UsageError                    a mistake of the caller; the CLI exits with 2 unless ``on_the_way`` is set
    │   ├── ConfigError               settings, URLs, credentials or tools that cannot work
    │   ├── TopicError
    │   │   ├── TopicNotFound
    │   │   ├── TopicExists
    │   │   ├── TopicChanged          the topic was changed after it was opened: its columns, or its table
    │   │   │   └── TopicDeleted      the topic was deleted (and perhaps created again) after it was opened
    │   │   └── TopicRewritten        another engine deleted or updated rows; its unchanged rows would be read again
    │   ├── GroupError
    │   │   ├── GroupNotFound
    │   │   └── GroupActive           the group has members that are alive
    │   ├── SchemaError               unknown, missing or wrongly typed columns; invalid schema text
    │   ├── MessageError              a message that cannot be encoded, with its line or row number
    │   └── UnsupportedTable          a table with Delta features that brokerless does not support
    ├── StoreError                    the object store failed
    │   ├── StoreUnavailable          no answer, or only status 5xx or 429, until the deadline
    │   ├── AccessDenied
    │   ├── BucketNotFound
    │   ├── LogIncomplete             a log entry is missing although later ones exist
    │   ├── LogDamaged                a log entry exists and cannot be read
    │   ├── GroupDamaged              the object of a group, or of one of its members, cannot be read
    │   └── ConditionalPutUnsupported the store ignores ``If-None-Match: *``, so commits could be lost
    ├── CommitError
    │   ├── NotCommitted              the deadline passed and nothing was written
    │   └── CommitUnknown             the deadline passed without an answer; the commit may appear later
    ├── Fenced                        another instance took over; this one writes nothing more
    │   ├── ProducerFenced
    │   ├── PipelineFenced
    │   └── MemberFenced              a member of a group lost a partition, or was removed; its commit was refused
    ├── DeliveryFailed                some messages of a call are not acknowledged
    ├── BufferFull                    the producer's buffer did not drain in time
    ├── OffsetOutOfRange              the offset is not in the log any more; carries the earliest offset
    └── PipelineError                 a pipeline stopped because it could lose or repeat messages
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from brokerless.offsets import Ack, Offset


class BrokerlessError(Exception):
    """Base class of all errors that brokerless raises itself.

    Attributes:
        on_the_way: True if something may have been written before the error; the command then exits with 1.
    """

    on_the_way: bool = False


@contextlib.contextmanager
def on_the_way() -> Iterator[None]:
    """Set ``on_the_way`` on errors that leave the block, because rows may have been written by then."""
    try:
        yield
    except BrokerlessError as error:
        error.on_the_way = True
        raise


class UsageError(BrokerlessError):
    """Error raised for a mistake of the caller: nothing was written, and a retry does not help."""


class ConfigError(UsageError):
    """Error raised when settings, URLs, credentials or tools cannot work."""


class TopicError(UsageError):
    """Error raised when a topic is not what the caller expects."""


class TopicNotFound(TopicError):
    """Error raised when a topic does not exist."""


class TopicExists(TopicError):
    """Error raised when a topic to create exists already and differs from the request."""


class TopicChanged(TopicError):
    """Error raised when a topic is not the one that this writer or reader opened; opening it again may help."""


class TopicDeleted(TopicChanged):
    """Error raised when a topic was deleted, or deleted and created again, after it was opened."""


class TopicRewritten(TopicError):
    """Error raised when another engine deleted or updated rows: its unchanged rows would be read again."""


class GroupError(UsageError):
    """Error raised when a group is not what the caller expects."""


class GroupNotFound(GroupError):
    """Error raised when a group does not exist."""


class GroupActive(GroupError):
    """Error raised when a group has members that are alive, which a reset or deletion would disturb."""


class SchemaError(UsageError):
    """Error raised for columns that do not fit the topic, and for schema text that cannot be parsed."""


class MessageError(UsageError):
    """Error raised for a message that cannot be encoded; the text names its line or row."""


class UnsupportedTable(UsageError):
    """Error raised for a Delta table that needs more than reader version 1 and writer version 2."""


class StoreError(BrokerlessError):
    """Error raised when a request to the object store failed."""


class StoreUnavailable(StoreError):
    """Error raised when the store gave no usable answer before the deadline."""


class AccessDenied(StoreError):
    """Error raised when the store refused the credentials, or they lack a permission."""


class BucketNotFound(StoreError):
    """Error raised when the bucket of the root URL does not exist."""


class LogIncomplete(StoreError):
    """Error raised when a log entry is missing although later ones exist: it is late, lost or not yet restored.

    Conclude nothing from its absence, and write nothing at its version.

    Attributes:
        version: the version of the missing entry.
    """

    def __init__(self, message: str, *, version: int) -> None:
        super().__init__(message)
        self.version = version


class LogDamaged(StoreError):
    """Error raised when a log entry exists and cannot be read: it is empty, cut off, or not a Delta entry.

    Attributes:
        version: the version of the damaged entry.
    """

    def __init__(self, message: str, *, version: int) -> None:
        super().__init__(message)
        self.version = version


class GroupDamaged(StoreError):
    """Error raised when the object of a group, or of one of its members, cannot be read."""


class ConditionalPutUnsupported(StoreError):
    """Error raised when the store accepts a second PUT with ``If-None-Match: *``: commits could be lost."""


class CommitError(BrokerlessError):
    """Error raised when a log entry was not written, or possibly not written."""


class NotCommitted(CommitError):
    """Error raised when the deadline passed and other writers took every tried version: the commit never appears."""


class CommitUnknown(CommitError):
    """Error raised when the deadline passed while a request had no answer.

    The commit may be in the log, or may still appear at ``version``. Read that entry later: it is this commit if its
    ``commitInfo.txnId`` equals ``commit_id``; if another entry has that version, this commit can never appear.

    Attributes:
        table: the table's path below the root.
        version: the version at which the commit may appear.
        commit_id: the id that the commit was written with.
    """

    def __init__(self, message: str, *, table: str, version: int, commit_id: str) -> None:
        super().__init__(message)
        self.table = table
        self.version = version
        self.commit_id = commit_id


class Fenced(BrokerlessError):
    """Error raised when another instance advanced this writer's txn: this instance must stop."""


class ProducerFenced(Fenced):
    """Error raised when another producer with the same id took over."""


class PipelineFenced(Fenced):
    """Error raised when another pipeline with the same name took over."""


class MemberFenced(Fenced):
    """Error raised when a member of a group commits what it does not own any more: the commit was refused."""


class DeliveryFailed(BrokerlessError):
    """Error raised when some messages of a call are not acknowledged.

    Attributes:
        acknowledged: the acknowledgements of what was committed before the failure.
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
    """Error raised when the producer's buffer stayed full for as long as ``enqueue`` may wait."""


class OffsetOutOfRange(BrokerlessError):
    """Error raised when an offset is before the first entry of the log, or after its end.

    Attributes:
        earliest: the first offset that can be read.
    """

    def __init__(self, message: str, *, earliest: Offset) -> None:
        super().__init__(message)
        self.earliest = earliest


class PipelineError(BrokerlessError):
    """Error raised when a pipeline stopped because continuing could lose or repeat messages."""
