"""The register of epochs in the control plane, changed by compare-and-set."""

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
    """The object that serves a replicated partition to clients."""

    def committed_to(self, offset: int) -> bool:
        """Everything below an offset is committed."""
        ...


class Reserved(NamedTuple):
    """The highest epochs of a partition that were reserved, and opened."""

    reserved: int
    opened: int


class Led(Protocol):
    """A partition of which this broker is to open an epoch."""

    @property
    def key(self) -> PartitionKey: ...

    @property
    def leading(self) -> Leadership | None: ...


class Register(Protocol):
    """The control plane's register of epochs."""

    async def claim(self, keys: Sequence[PartitionKey]) -> Sequence[Claim | PenstockError]:
        """Reserve the next epoch of each; an error for those that this broker may not claim."""
        ...

    async def open_epochs(self, openings: Sequence[tuple[Led, SealAndOpen]]) -> Sequence[bool]:
        """Seal and open; false for each whose reservation has been overtaken."""
        ...

    async def reserved(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, Reserved]:
        """Return the reserved and opened epochs now, without deleted partitions."""
        ...

    def lives(self, broker_id: int) -> bool:
        """Whether a broker is registered, and not known to be gone."""
        ...

    async def older(self, asked: Sequence[tuple[PartitionKey, int]]) -> Sequence[Chain]:
        """Return the newest epochs of each partition below one, as many as a page has."""
        ...
