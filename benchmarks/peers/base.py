"""What a peer is: one way to bring messages from producers to a reader, with or without a pipeline in between.

Adding one is one file here with a subclass of ``Peer``, and its name in ``benchmarks.peers.PEERS``. The harness owns
time: it decides when what is sent, stamps what arrives, and judges. A peer only moves messages.
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
    """Where one run takes place.

    Attributes:
        settings: the object store and an empty root for this run alone.
        folder: scratch of this run, removed after it.
        cache: kept from run to run, for what is fetched on first use.
        proxies: endpoints by role, when requests are counted.
        data: scratch of this run for what servers store; None: ``folder``, too.
    """

    settings: Settings
    folder: Path
    cache: Path
    proxies: Mapping[str, str] = field(default_factory=dict)
    data: Path | None = None

    @property
    def data_folder(self) -> Path:
        """Where a server that the peer starts keeps its data."""
        return self.data or self.folder

    def settings_for(self, role: Role) -> Settings:
        """The settings for everything that acts in this role, so that its requests can be told from others'."""
        return replace(self.settings, endpoint=self.proxies[role]) if role in self.proxies else self.settings


class Sender(Protocol):
    """One producer, in a process of its own. Picklable until it is opened."""

    def open(self) -> None:
        """Connects, before the clock runs."""

    def send(self, rows: pa.Table) -> int:
        """Sends messages (``date``, ``message``, ``_produced_at``) in order.

        Returns:
            How many messages were acknowledged since the last call: of these, or of earlier ones if acknowledgements
            come later.
        """

    def close(self) -> int:
        """Waits for the acknowledgements that are still to come, and returns how many there were."""


class Receiver(Protocol):
    """The reader, in a process of its own. Picklable until it is opened."""

    def open(self) -> None:
        """Connects; from here on everything that is sent must be delivered."""

    def poll(self, max_wait_s: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """What has come, in order of delivery, as pairs of (producers, numbers): ``benchmarks.messages.ids``.

        With a pipeline in between, it must also check that the parsed timestamps are the intended ones, on as many rows
        as does not slow it down, and raise ``ValueError`` if they are not.
        """

    def close(self) -> None:
        """Disconnects."""


@dataclass(slots=True)
class Stats:
    """What a peer says of a run.

    Attributes:
        figures: its own figures, such as the length of a batch, for the report's JSON.
        tables: tables in the object store whose commits, objects and bytes are to be counted.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    tables: Sequence[str] = ()


class Peer(ABC):
    """One run of one peer. ``start`` is called once; what it starts is ended by the stack, in any case."""

    name: ClassVar[str]
    label: ClassVar[str]
    hops: ClassVar[tuple[int, ...]]

    def __init__(self, spec: Spec, site: Site) -> None:
        self.spec = spec
        self.site = site

    @classmethod
    def prepare(cls, cache: Path) -> str | None:
        """Fetches what the peer needs, once; returns why it cannot run here, or None."""
        return None

    @property
    def tick_ms(self) -> float:
        """How often a producer wakes up to send what is due."""
        return self.spec.commit_ms

    @abstractmethod
    def start(self, stack: ExitStack) -> None:
        """Creates topics, starts servers and the pipeline; returns when messages sent now would be taken up.

        Raises:
            PeerError: something did not start, with the end of its log.
        """

    @abstractmethod
    def sender(self, producer: int) -> Sender:
        """The producer of this number (0 to ``spec.producers - 1``)."""

    @abstractmethod
    def receiver(self) -> Receiver:
        """The reader of the last hop."""

    def check(self) -> None:  # noqa: B027  # most peers have nothing that can end
        """Raises ``PeerError`` if something that ``start`` started has ended. Called each second."""

    def processes(self) -> Mapping[str, int]:
        """Process ids by role (``pipeline``, ``broker``, ...), children included by the harness."""
        return {}

    def finish(self) -> Stats:
        """Ends the pipeline in order, after the reader is done."""
        return Stats()


class PeerError(Exception):
    """A peer did not start or did not live."""
