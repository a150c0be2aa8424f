"""What the storage hands out. Values of the append and read paths are plain slotted classes,
made once per call, because a frozen dataclass costs several times as much to make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class Lease(Protocol):
    """A receive buffer that is recycled when nobody needs it any more."""

    def retain(self) -> None: ...

    def release(self) -> None: ...


class Read(NamedTuple):
    """Whole batches back to back over `buffers`; `next_offset` is where to go on."""

    buffers: list[Buffer]
    size_bytes: int
    next_offset: int


class Standing(NamedTuple):
    """What a replica keeps besides its log: epochs, -1 for none.

    It refuses epochs below `promised`. Of epochs up to `limbo` it may lack what it acknowledged.
    `lost`: it lacks what had been synced, and nobody has drawn the consequence yet.
    """

    promised: int = -1
    limbo: int = -1
    lost: bool = False


class Later(NamedTuple):
    """Bytes that have to be loaded before they are read.

    `load` takes the `want`s of one request together, and how many bytes they may be altogether;
    who waits for the partition is woken when they are there.
    """

    load: Callable[[Sequence[Any], int], None]
    want: Any


class LogOwner(Protocol):
    """Who decides what consumers may read of a log, by what is durable of it."""

    def became_durable(self, offset: int) -> bool:
        """Everything below an offset is durable; true if consumers may read more than before."""
        ...

    def log_moved(self) -> None:
        """The log has another start, or another leader epoch."""
        ...


class _Nobody:
    def became_durable(self, offset: int) -> bool:
        return False

    def log_moved(self) -> None:
        return


UNOWNED: Final[LogOwner] = _Nobody()
"""Of a log that nobody reads by."""


class OffsetAndTimestamp(NamedTuple):
    """A record's offset, its timestamp and the leader epoch that wrote it."""

    offset: int
    timestamp: int
    leader_epoch: int
