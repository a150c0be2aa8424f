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
    """Whole batches back to back over `buffers`; `next_offset` is the offset to continue at."""

    buffers: list[Buffer]
    size_bytes: int
    next_offset: int


class Standing(NamedTuple):
    """State that a replica keeps besides its log: epochs, -1 for none.

    The replica rejects epochs below `promised`. It may lack acknowledged batches of epochs up to
    `limbo`. With `lost` it lacks synced batches, and its owner has not handled that yet.
    """

    promised: int = -1
    limbo: int = -1
    lost: bool = False


class Later(NamedTuple):
    """Bytes that have to be loaded before they are read.

    `load` receives the `want`s of one request together, and their maximum total bytes; requests
    that wait for the partition wake when the bytes are loaded.
    """

    load: Callable[[Sequence[Any], int], None]
    want: Any


class LogOwner(Protocol):
    """Owner of a log, who decides which durable batches consumers may read."""

    def became_durable(self, offset: int) -> bool:
        """Record that all below an offset is durable; return whether consumers may read more."""
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
