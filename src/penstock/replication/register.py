"""Register of leader epochs in the control plane, changed by compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from penstock.base.errors import PenstockError
    from penstock.replication.chain import Chain
    from penstock.replication.effects import SealAndOpen
    from penstock.replication.epoch import Claim
    from penstock.replication.leadership import Leadership
    from penstock.replication.peer_format import PartitionKey


class Owner(Protocol):
    """Object that serves a replicated partition to clients."""

    def committed_to(self, offset: int) -> bool:
        """Set the high watermark; return whether consumers may read more."""
        ...


class Reserved(NamedTuple):
    """Highest reserved and highest opened epoch of a partition."""

    reserved: int
    opened: int


class Led(Protocol):
    """Partition for which this broker opens an epoch."""

    @property
    def key(self) -> PartitionKey: ...

    @property
    def leading(self) -> Leadership | None: ...


class Register(Protocol):
    """Leader epochs of all partitions in the control plane."""

    async def claim(self, keys: Sequence[PartitionKey]) -> Sequence[Claim | PenstockError]:
        """Reserve the next epoch of each partition.

        The result has an error for each partition that this broker may not claim.
        """
        ...

    async def open_epochs(self, openings: Sequence[tuple[Led, SealAndOpen]]) -> Sequence[bool]:
        """Seal and open epochs; the result is False where a later epoch was reserved."""
        ...

    async def reserved(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, Reserved]:
        """Return the current reserved and opened epochs, without deleted partitions."""
        ...

    def lives(self, broker_id: int) -> bool:
        """Whether a broker is registered, and not known to be offline."""
        ...

    async def older(self, asked: Sequence[tuple[PartitionKey, int]]) -> Sequence[Chain]:
        """Return, for each partition, the newest epochs below the given one, at most a page."""
        ...
