"""Write to one partition: sequences that grow, and an epoch that fences older producers with the same id."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final

from arro3.core import Table

from brokerless.clock import Clock
from brokerless.errors import ConfigError, ProducerFenced, UsageError
from brokerless.log.commit import commit_table
from brokerless.log.lifecycle import epoch_of
from brokerless.log.log import TxnAdvanced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.log.log import DeltaLog

_REMEMBERED: Final = 10_000
"""How many of its own sequences a producer knows to be committed; older ones are refused until it is opened again."""


_PROGRESS: Final = re.compile(r"[^:/]{1,100}:[^:/]+:(0|[1-9][0-9]{0,3})(:[^:/]+)?")
"""The txns of a pipeline, ``name:topic:partition:table id``, in the logs of its outputs (``spark.progress.app_id``);
without the table id they are of an older version."""


def checked_id(producer_id: str | None, namespace: str | None) -> str | None:
    """Return the id with its namespace.

    Raises:
        ConfigError: the log cannot hold it, or it is one of a pipeline.
    """
    if producer_id is None:
        return None
    # Printable also means that the log, which is UTF-8, can hold it: an argument of the shell need not be.
    if not 1 <= len(producer_id) <= 200 or "/" in producer_id or not producer_id.isprintable():
        raise ConfigError(f"The producer id {producer_id[:200]!r} must have 1 to 200 printable characters and no '/'.")
    if _PROGRESS.fullmatch(producer_id):
        raise ConfigError(
            f"The producer id {producer_id!r} has the form name:topic:partition[:table id], under which pipelines "
            "keep their progress: its sequences would move one past messages that it never read. Choose another id."
        )
    return producer_id if namespace is None else f"{namespace}/{producer_id}"


class PartitionWriter:
    """One partition's table: upload, then append. Writes come from one thread at a time."""

    def __init__(self, log: DeltaLog, producer_id: str | None, clock: Clock) -> None:
        self.producer_id = producer_id
        self.conflicts = 0
        self.log = log
        self._clock = clock
        self._claiming = threading.Lock()  # ``claim`` in another thread must not fence this producer
        self._epoch: int | None = None
        self._used = -1  # the last sequence that this producer took, committed or not
        self._found = -1  # the last one in the log when this producer took over
        self._sent: dict[int, None] = {}  # those after it that callers gave, and that are committed
        self._trying: int | None = None  # the last one that a caller gave, if that was the last one used

    def last_sequence(self) -> int | None:
        """Return the last sequence of the producer id in the log, as it is now."""
        if self.producer_id is None:
            return None
        self.log.confirm()
        return self.log.txn(self.producer_id)

    def write(self, tables: Sequence[Table], sequence: int | None, deadline: float) -> tuple[int, int, bool]:
        """Commits the tables as one object; returns (version, first index, whether it was there already)."""
        txns: dict[str, int] = {}
        expect: dict[str, int] = {}
        if self.producer_id is not None:
            self.own(deadline - self._clock.monotonic())
            known = self._known()
            if sequence is not None and known >= sequence:
                # Not from memory: the topic that has this sequence may be gone by now.
                # guard: the log is asked before a sequence is called a duplicate
                self.log.confirm()
                known = self._known()
            # guard: a sequence that the log has is not written again
            if sequence is not None and known >= sequence:
                self._check_sent(sequence)
                self._remember(sequence)
                return -1, 0, True
            number = max(self._used, known) + 1 if sequence is None else sequence
            self._used, self._trying = max(self._used, number), sequence
            # guard: the sequence is in the commit of its messages
            txns = {self.producer_id: number}
            # guard: the epoch is compared with the commit
            expect = {epoch_of(self.producer_id): self._epoch or 0}
        table = tables[0]
        if len(tables) > 1:
            table = Table.from_batches([batch for table in tables for batch in table.to_batches()]).combine_chunks()
        try:
            left_s = deadline - self._clock.monotonic()
            commit = commit_table(self.log, table, txns=txns, expect=expect, timeout_s=left_s, clock=self._clock)
        except TxnAdvanced as error:
            if error.ours:
                self.log.confirm()
                self._remember(sequence)
                return (-1 if error.entry.commit_id is None else error.entry.version), 0, True
            raise self._taken_over(str(error)) from error
        self._remember(sequence)
        self.conflicts += commit.attempts - 1
        return commit.version, commit.first_index, False

    def _known(self) -> int:
        """The last sequence in the log, -1 without one, as long as nobody else has taken the id over.

        Raises:
            ProducerFenced: somebody has, and may have given the same sequence to other messages.
        """
        producer_id = self.producer_id or ""
        if self.log.txn(epoch_of(producer_id)) != self._epoch:
            self.log.confirm()  # an entry may be missing instead
        if (epoch := self.log.txn(epoch_of(producer_id))) != self._epoch:
            how = f"its epoch is {epoch}, not {self._epoch}"
            raise self._taken_over(how)
        known = self.log.txn(producer_id)
        return -1 if known is None else known

    def _remember(self, sequence: int | None) -> None:
        if sequence is not None:
            self._sent[sequence] = None
            if len(self._sent) > _REMEMBERED:
                del self._sent[next(iter(self._sent))]

    def _check_sent(self, sequence: int) -> None:
        """Refuses a sequence that the log is past, but not by a commit of these messages.

        Raises:
            UsageError: this producer has used a higher one since, and never committed this one.
        """
        if sequence > self._found and sequence != self._trying and sequence not in self._sent:
            raise UsageError(
                f"Sequence {sequence} of {self.producer_id!r} comes after {self._used} in {self.log.table!r}, and this "
                "producer knows of no commit of it: sequences must grow from call to call, and a call without one "
                "takes the next. Look in the topic for its messages before you send them under a new one."
            )

    def _taken_over(self, how: str) -> ProducerFenced:
        return ProducerFenced(
            f"Another producer with the id {self.producer_id!r} took over {self.log.table!r} ({how}); "
            "this one writes nothing more. Give each producer its own id."
        )

    def own(self, within_s: float) -> None:
        """Take over the producer id, unless this producer has done so."""
        with self._claiming:
            if self._epoch is None and self.producer_id is not None:
                # guard: a producer claims its id in each partition
                self._epoch = self.log.claim(self.producer_id, deadline_s=within_s)
                known = self.log.txn(self.producer_id)
                self._found = -1 if known is None else known
