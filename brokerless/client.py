"""One handle for topics below one root, and for what writes and reads them.

A client holds the settings and the store, and closes the producers and consumers that it opened. It keeps nothing of
what it has read: a ``Topic`` carries the logs that were opened for it, and whoever opens a producer, a consumer or an
export with it, instead of the name, does not read the log again.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from weakref import WeakSet

from brokerless.alter import add_columns, alter_topic, limits_of
from brokerless.clock import SYSTEM, Clock
from brokerless.consumer import Consumer
from brokerless.dlq import DeadLetters
from brokerless.errors import ConfigError
from brokerless.export.topic import export_topic
from brokerless.forks import is_copy
from brokerless.groups.admin import delete_group, describe_group, list_groups, reset_group
from brokerless.groups.membership import HEARTBEAT_S
from brokerless.groups.subscription import MAX_POLL_INTERVAL_S
from brokerless.lag import lag_of
from brokerless.log.log import DEADLINE_S
from brokerless.producer.producer import Producer
from brokerless.query.scan import scan
from brokerless.query.sql import run_sql
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import create_topic, delete_topic, describe_topic, list_topics

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from arro3.core import Table

    from brokerless.consumer import Batch
    from brokerless.export.topic import Exported
    from brokerless.groups.admin import Group, GroupSummary, ResetPartition
    from brokerless.groups.assignment import Strategy
    from brokerless.lag import Lag
    from brokerless.offsets import SavedPosition, Shift, Start
    from brokerless.query.scan import Scan
    from brokerless.store import Store
    from brokerless.topics import Topic


class Client:
    """Topics below one root. Nothing is sent before the first call; for threads of one process.

    Args:
        root: where the topics are, such as ``s3://bucket/prefix``. This and what is not given below comes from the
            environment, ``.env`` and the profile (``Settings``).
        profile: ``embedded``, ``minio`` or ``aws``.
        endpoint, region: of the S3 server.
        access_key, secret_key, session_token: credentials, instead of those of the surroundings.
        settings: all of this in one value, instead.
        store: instead of the one that the settings name.
        clock: time, randomness and sleeping.

    Raises:
        ConfigError: a value that cannot work, or settings and a part of them.
    """

    def __init__(
        self,
        root: str | None = None,
        *,
        profile: str | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        session_token: str | None = None,
        settings: Settings | None = None,
        store: Store | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        parts = {
            "AWS_ENDPOINT_URL_S3": endpoint,
            "AWS_REGION": region,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "MINIO_S3_ACCESS_KEY": access_key,
            "MINIO_S3_SECRET_ACCESS_KEY": secret_key,
        }
        given = {name: value for name, value in parts.items() if value is not None}
        if settings is not None and (given or root is not None or profile is not None):
            raise ConfigError("Give a Client either settings or root, profile, endpoint and credentials, not both.")
        if (access_key is None) != (secret_key is None) or (session_token is not None and access_key is None):
            raise ConfigError("Credentials are an access_key and a secret_key, and with them perhaps a session_token.")
        if settings is None:
            settings = Settings.load(profile=profile, root=root, environ={**os.environ, **given})
            if access_key is not None:
                settings = replace(settings, session_token=session_token)  # not the one that belongs to other keys
        self.settings = settings
        self._store = store
        self._clock = clock
        self._opened_in = os.getpid()
        self._open: WeakSet[Producer | Consumer] = WeakSet()

    @property
    def store(self) -> Store:
        """Where the topics are, for this process: connections do not survive a fork."""
        return self._store or open_store(self.settings)

    def topics(self) -> list[Topic]:
        """Return all topics below the root, by name. What cannot be described is left out."""
        return list_topics(self.store, clock=self._clock)

    def topic(self, name: str) -> Topic:
        """Return the topic as it is now, with its logs.

        Raises:
            TopicNotFound: there is none.
        """
        return describe_topic(self.store, name, clock=self._clock)

    def create_topic(self, name: str, schema: Schema | str, *, partitions: int = 1, exist_ok: bool = False) -> Topic:
        """Create a topic, or with ``exist_ok`` accept one that is the same already.

        Args:
            name: of the topic.
            schema: its columns, also as text: ``"user string, at timestamp"``.
            partitions: how many.
            exist_ok: whether it may be there.

        Raises:
            TopicExists: it is there, with another schema or number of partitions, or ``exist_ok`` is False.
            ConfigError, SchemaError: a bad name, number of partitions or schema.
            ConditionalPutUnsupported: the store would let commits overwrite each other.
        """
        columns = Schema.parse(schema) if isinstance(schema, str) else schema
        return create_topic(self.store, name, columns, partitions=partitions, exist_ok=exist_ok, clock=self._clock)

    def alter_topic(
        self,
        name: str,
        *,
        add: Schema | str | None = None,
        retention: timedelta | float | None = None,
        retention_bytes: int | None = None,
        until_read: bool | None = None,
        compact_by: str | None = None,
    ) -> Topic:
        """Add columns to a topic, or change its limits, and return it. Producers, consumers and pipelines go on.

        Args:
            name: of the topic.
            add: more columns, also as text: ``"ref string"``.
            retention: how long messages stay, as a time or in seconds; at least an hour, 0: for ever.
            retention_bytes: how large each partition may be; 0: as large as it gets.
            until_read: whether messages go as soon as every group that reads the topic has read them.
            compact_by: the column of which only the latest message for each value stays; empty: none.

        Raises:
            TopicNotFound: there is none.
            SchemaError: a new column is not valid, or is there with another type.
            ConfigError: a limit that cannot work.
        """
        limits = limits_of(
            self.topic(name).schema,
            retention_s=retention.total_seconds() if isinstance(retention, timedelta) else retention,
            retention_bytes=retention_bytes,
            until_read=until_read,
            compact_by=compact_by,
        )
        if add is not None:
            add_columns(self.store, name, add, clock=self._clock)
        return alter_topic(self.store, name, limits, clock=self._clock)

    def delete_topic(self, name: str) -> None:
        """End the topic's logs with tombstones; maintenance removes its objects later.

        Raises:
            TopicNotFound: there is none.
        """
        delete_topic(self.store, name, clock=self._clock)

    def groups(self) -> list[GroupSummary]:
        """Return all consumer groups below the root, by name."""
        return list_groups(self.store, clock=self._clock)

    def group(self, name: str) -> Group:
        """Return a consumer group as it is now: its members, and by partition the owner, the offset and the lag.

        Raises:
            GroupNotFound: there is none.
        """
        return describe_group(self.store, name, clock=self._clock)

    def lag(self, name: str) -> Lag:
        """Return how far a consumer group or a pipeline is behind, in messages and seconds, by partition.

        Raises:
            GroupNotFound: there is neither a group nor a pipeline of this name.
        """
        return lag_of(self.store, name, clock=self._clock)

    def reset_group(
        self, name: str, *, to: Start | Shift, topics: Sequence[str] | None = None, dry_run: bool = False
    ) -> list[ResetPartition]:
        """Move a group's committed offsets; arguments and errors are those of ``reset_group``."""
        return reset_group(self.store, name, to=to, topics=topics, dry_run=dry_run, clock=self._clock)

    def delete_group(self, name: str) -> None:
        """Delete a group that has no members which are alive, and its offsets.

        Raises:
            GroupNotFound: there is none.
            GroupActive: a member is alive.
        """
        delete_group(self.store, name, clock=self._clock)

    def producer(
        self,
        topic: str | Topic,
        *,
        producer_id: str | None = None,
        key: str | None = None,
        partition: int | None = None,
        linger_s: float = 0.1,
        batch_rows: int = 100_000,
        batch_bytes: int = 16 * 2**20,
        buffer_bytes: int = 64 * 2**20,
        delivery_timeout_s: float = DEADLINE_S,
    ) -> Producer:
        """Open a producer of this topic; arguments and errors are those of ``Producer``."""
        producer = Producer(
            topic,
            producer_id=producer_id,
            key=key,
            partition=partition,
            linger_s=linger_s,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            delivery_timeout_s=delivery_timeout_s,
            store=self.store,
            clock=self._clock,
        )
        self._opened().add(producer)
        return producer

    def consumer(
        self,
        topics: str | Topic | Sequence[str | Topic],
        *,
        start: Start = "latest",
        until: Start | None = None,
        partitions: Sequence[int] | None = None,
        idle_poll_max_s: float = 0.25,
        batch_bytes: int = 64 * 2**20,
        accept_rewrites: bool = False,
        group: str | None = None,
        auto_commit: bool = True,
        instance: str | None = None,
        strategy: Strategy = "cooperative-sticky",
        heartbeat_s: float = HEARTBEAT_S,
        session_s: float | None = None,
        max_poll_interval_s: float = MAX_POLL_INTERVAL_S,
    ) -> Consumer:
        """Open a consumer of one or several topics; arguments and errors are those of ``Consumer``."""
        consumer = Consumer(
            topics,
            start=start,
            until=until,
            partitions=partitions,
            idle_poll_max_s=idle_poll_max_s,
            batch_bytes=batch_bytes,
            accept_rewrites=accept_rewrites,
            group=group,
            auto_commit=auto_commit,
            instance=instance,
            strategy=strategy,
            heartbeat_s=heartbeat_s,
            session_s=session_s,
            max_poll_interval_s=max_poll_interval_s,
            store=self.store,
            clock=self._clock,
        )
        self._opened().add(consumer)
        return consumer

    def scan(
        self,
        topic: str | Topic,
        *,
        partitions: Sequence[int] | None = None,
        latest_only: bool = False,
        key: str | None = None,
    ) -> Scan:
        """Read all messages of a topic as one relation; arguments and errors are those of ``scan``."""
        return scan(topic, partitions=partitions, latest_only=latest_only, key=key, store=self.store, clock=self._clock)

    def sql(self, query: str) -> Table:
        """Run a query over topics, and return its result as an arro3 table.

        Raises:
            ConfigError: the query cannot be run; the text says why.
            StoreError: the store failed.
        """
        return run_sql(query, settings=self.settings, clock=self._clock)

    def export(
        self,
        topic: str | Topic,
        path: Path,
        *,
        start: Start | SavedPosition = "beginning",
        until: Start | None = None,
        once: bool = False,
        expect: int | None = None,
        timeout_s: float | None = None,
        stop: threading.Event | None = None,
        on_batches: Callable[[Sequence[Batch]], None] | None = None,
        raw: bool = False,
        accept_rewrites: bool = False,
    ) -> Exported:
        """Write a topic's messages to a file; arguments and errors are those of ``export_topic``."""
        return export_topic(
            topic,
            path,
            store=self.store,
            start=start,
            until=until,
            once=once,
            expect=expect,
            timeout_s=timeout_s,
            stop=stop,
            on_batches=on_batches,
            raw=raw,
            accept_rewrites=accept_rewrites,
            clock=self._clock,
        )

    def dead_letters(self, output: str) -> DeadLetters:
        """Return the dead letters of a pipeline with this output; errors are those of ``DeadLetters``."""
        return DeadLetters(self.store, output, clock=self._clock)

    def close(self) -> None:
        """Close the producers, which commit what is buffered, and the consumers that this client opened.

        The client itself can still be used. A forked process closes what it has opened itself.

        Raises:
            UsageError: called by a callback of one of the producers; the others are closed.
        """
        opened = self._opened()
        with contextlib.ExitStack() as stack:  # all of them, whatever one raises
            while opened:
                stack.callback(opened.pop().close)

    def _opened(self) -> WeakSet[Producer | Consumer]:
        if is_copy(self._opened_in):
            self._opened_in, self._open = os.getpid(), WeakSet()
        return self._open

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
