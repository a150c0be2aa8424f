"""Interface of a partition for reads of its archived part; `TieredPart` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.control.batch_index.values import PartitionKey
    from penstock.storage import PartitionLog


class TierSource(Protocol):
    """Partition with archived records; the offsets are those that the control plane sent last."""

    key: PartitionKey
    name: str
    log: PartitionLog

    @property
    def start_offset(self) -> int:
        """Start offset of the partition."""
        ...

    @property
    def tiered_end(self) -> int:
        """End offset of the archive."""
        ...

    @property
    def aborted_offset(self) -> int:
        """Base offset of the last segment with markers of aborted transactions; -1 for none."""
        ...

    async def look_up(self) -> None:
        """Request the offsets from the control plane; raises PenstockError."""
        ...

    async def look_up_unknown(self) -> None:
        """Request the offsets if they are unknown."""
        ...
