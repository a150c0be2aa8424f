"""Values of the append and read paths: plain slotted classes, as a frozen dataclass costs several
times as much to create."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class Lease(Protocol):
    """Receive buffer that is reused after its last release."""

    def retain(self) -> None: ...

    def release(self) -> None: ...


class Read(NamedTuple):
    """Complete batches, one after another in `buffers`; `next_offset` is where to continue."""

    buffers: list[Buffer]
    size_bytes: int
    next_offset: int


class Standing(NamedTuple):
    """Durable state of a replica besides its log; epochs are -1 for none.

    The replica rejects epochs below `promised`. It may lack acknowledged batches of epochs up to
    `limbo`. With `lost` it may lack synced batches, and its owner has not handled this yet.
    """

    promised: int = -1
    limbo: int = -1
    lost: bool = False


class Later(NamedTuple):
    """Request for bytes that must be loaded before they can be read.

    The caller collects the `want`s of one fetch request, and calls `load` with them and the maximum
    total bytes. Fetch requests that wait for the partition are woken when the bytes are loaded.
    """

    load: Callable[[Sequence[Any], int], None]
    want: Any


class LogOwner(Protocol):
    """Owner of a log: the partition, which determines what durable batches consumers may read."""

    def became_durable(self, offset: int) -> bool:
        """Record that everything below `offset` is durable; return whether consumers may read
        more."""
        ...

    def log_moved(self) -> None:
        """Handle a new log start offset or leader epoch."""
        ...


class _Nobody:
    def became_durable(self, offset: int) -> bool:
        return False

    def log_moved(self) -> None:
        return


UNOWNED: Final[LogOwner] = _Nobody()
"""Owner of a log without readers."""


class OffsetAndTimestamp(NamedTuple):
    """Offset of a record, its timestamp, and the leader epoch that wrote it."""

    offset: int
    timestamp: int
    leader_epoch: int
