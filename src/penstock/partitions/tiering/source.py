"""What reading tiers needs to know of a partition; `TieredPart` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.control.batch_index.values import PartitionKey
    from penstock.storage import ReplicaLog


class TierSource(Protocol):
    """Offsets are as last heard of the control plane."""

    key: PartitionKey
    name: str
    log: ReplicaLog

    @property
    def start_offset(self) -> int:
        """Where the partition begins."""
        ...

    @property
    def tiered_end(self) -> int:
        """Up to where it lies in the archive."""
        ...

    @property
    def aborted_offset(self) -> int:
        """Where the last segment begins that has markers of aborted transactions; -1 for none."""
        ...

    async def look_up(self) -> None:
        """Hear of the control plane; raises PenstockError."""
        ...

    async def look_up_unknown(self) -> None:
        """The same, where it was never heard of."""
        ...
