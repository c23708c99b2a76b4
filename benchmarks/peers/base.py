"""The interface of a peer: a transport of messages from producers to a reader, with or without a pipeline in between.

A new peer is one file here with a subclass of ``Peer``, and its name in ``benchmarks.peers.PEERS``. The harness decides
when messages are sent, records their arrival, and judges; a peer only transports them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    import numpy as np
    import pyarrow as pa

    from benchmarks.spec import Spec
    from brokerless.settings import Settings

Role = Literal["producer", "pipeline", "reader", "maintenance"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Site:
    """The environment of one run.

    Attributes:
        settings: the object store and an empty root for this run alone.
        folder: the scratch folder of this run, removed after it.
        cache: the folder for files that are downloaded on first use; it stays between runs.
        proxies: endpoints by role, when requests are counted.
        data: the folder for the data of this run's servers; None: ``folder``.
    """

    settings: Settings
    folder: Path
    cache: Path
    proxies: Mapping[str, str] = field(default_factory=dict)
    data: Path | None = None

    @property
    def data_folder(self) -> Path:
        """Return the folder for the data of a server that the peer starts."""
        return self.data or self.folder

    def settings_for(self, role: Role) -> Settings:
        """Return the settings for processes of this role, with which their requests are counted separately."""
        return replace(self.settings, endpoint=self.proxies[role]) if role in self.proxies else self.settings


class Sender(Protocol):
    """One producer in a process of its own; it can be pickled until it is opened."""

    def open(self) -> None:
        """Connect, before the measured time begins."""

    def send(self, rows: pa.Table) -> int:
        """Send messages (``date``, ``message``, ``_produced_at``) in order.

        Returns:
            The number of messages that were acknowledged since the last call: these, or earlier ones if
            acknowledgements arrive later.
        """

    def close(self) -> int:
        """Wait for the remaining acknowledgements, and return their number."""


class Receiver(Protocol):
    """The reader in a process of its own; it can be pickled until it is opened."""

    def open(self) -> None:
        """Connect; all messages that are sent from now on must be delivered."""

    def poll(self, max_wait_s: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return new messages in order of delivery, as pairs of (producers, numbers): ``benchmarks.messages.ids``.

        With a pipeline in between, it must also check on a sample of rows that the parsed timestamps are the intended
        ones, and raise ``ValueError`` if they are not.
        """

    def close(self) -> None:
        """Disconnect."""


@dataclass(slots=True)
class Stats:
    """A peer's own report of a run.

    Attributes:
        figures: the peer's own figures, such as the length of a batch, for the report's JSON.
        tables: tables in the object store whose commits, objects and bytes must be counted.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    tables: Sequence[str] = ()


class Peer(ABC):
    """One run of one peer. ``start`` is called once; the stack ends all processes that it starts."""

    name: ClassVar[str]
    label: ClassVar[str]
    hops: ClassVar[tuple[int, ...]]

    def __init__(self, spec: Spec, site: Site) -> None:
        self.spec = spec
        self.site = site

    @classmethod
    def prepare(cls, cache: Path) -> str | None:
        """Download what the peer needs, once; return the reason if it cannot run here, or None."""
        return None

    @property
    def tick_ms(self) -> float:
        """Return the time between two ticks at which a producer sends the messages that are due."""
        return self.spec.commit_ms

    @abstractmethod
    def start(self, stack: ExitStack) -> None:
        """Create topics, start servers and the pipeline; return when new messages would be processed.

        Raises:
            PeerError: a process did not start; the text has the end of its log.
        """

    @abstractmethod
    def sender(self, producer: int) -> Sender:
        """Return the producer with this number (0 to ``spec.producers - 1``)."""

    @abstractmethod
    def receiver(self) -> Receiver:
        """Return the reader of the last hop."""

    def check(self) -> None:  # noqa: B027  # most peers have nothing that can end
        """Raise ``PeerError`` if a process that ``start`` started has ended; called every second."""

    def processes(self) -> Mapping[str, int]:
        """Return process ids by role (``pipeline``, ``broker``, ...); the harness includes children."""
        return {}

    def finish(self) -> Stats:
        """Stop the pipeline in order, after the reader has finished."""
        return Stats()


class PeerError(Exception):
    """Error raised when a process of a peer did not start, or ended early."""
