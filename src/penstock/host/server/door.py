"""What a connection needs of its agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.base.buffers import ReceivePool
from penstock.base.errors import PenstockError
from penstock.host.port import ChunkSink, Introduction
from penstock.host.server.receiving import Scratch
from penstock.host.server_machine import ServerTerms

if TYPE_CHECKING:
    from penstock.host.server.connection import HostConnection

Introduced = Callable[[Introduction | PenstockError], None]


class Door(Protocol):
    """The agent, as its connections see it."""

    sink: ChunkSink
    pool: ReceivePool
    scratch: Scratch
    draining: bool

    @property
    def sink_trouble(self) -> str:
        """Why the sink does not accept; empty where it does."""
        ...

    bytes_in: int
    bytes_out: int

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        ...

    def terms(self) -> ServerTerms:
        """What a new producer is offered."""
        ...

    def opened(self, connection: HostConnection) -> bool:
        """A connection begins; False when there are too many."""
        ...

    def closed(self, connection: HostConnection, lost_frames: int, reason: str) -> None:
        """A connection has ended; nobody hears the verdicts of its `lost_frames` any more."""
        ...

    def rejected(self, connection: HostConnection, error: Exception) -> None:
        """A producer sent what it may not."""
        ...

    def introduce(
        self,
        connection: HostConnection,
        producer_id: int,
        topics: Sequence[str],
        done: Introduced,
    ) -> None:
        """Ask the sink about a producer; `done` is called later, on the loop."""
        ...
