"""Control-plane interface of tiered storage: archived segments of local partitions.

Every change is one transaction and a compare-and-set by the partition's leader, which names its
leader epoch and is rejected if the newest image has another one. All methods may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from penstock.base.system import Randomness
from penstock.control.batch_index.values import PartitionKey
from penstock.control.drivers.statements import Lock
from penstock.control.limits import TIER_SEGMENTS_PER_CALL_MAX
from penstock.control.metadata.operations import Metadata
from penstock.control.tiers import operations
from penstock.control.tiers.values import TierBounds, TierLease, TiersDropped, TierSegment


class TieredPartitions(Metadata):
    """Methods of `ControlPlane` for tiered partitions.

    Changes raise UnknownTopic, and StaleEpoch if another leader epoch is the newest.
    """

    _randomness: Randomness

    async def lease_tier(
        self, key: PartitionKey, *, base_offset: int, leader_epoch: int
    ) -> TierLease:
        """Reserve the keys of a segment's objects, as PENDING rows; they are never reused."""
        nonce = self._randomness.bits(32)
        return await self._database.change(
            partial(operations.lease, nonce, key, base_offset, leader_epoch)
        )

    async def commit_tier(
        self, key: PartitionKey, segment: TierSegment, *, log_start_offset: int, leader_epoch: int
    ) -> TierBounds:
        """Add a segment whose objects are in the store; return the partition's tiers, without
        epochs.

        `log_start_offset` is the partition's start, if this is its first segment.

        Raises:
            StaleTiers: it does not follow the existing segments.
            ObjectLeaseLost: a key was swept; write the segment again under other keys.
            NotTiered: the topic has no `remote.storage.enable`.
        """
        return await self._database.change(
            partial(
                operations.commit,
                self._images,
                key,
                segment,
                log_start_offset=log_start_offset,
                leader_epoch=leader_epoch,
            ),
            lock=Lock.TOPICS,
        )

    async def tier_bounds(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, TierBounds]:
        """Return the tiers of those partitions that have any."""
        return await self._database.change(
            partial(operations.bounds, list(keys)), lock=Lock.SNAPSHOT
        )

    async def tier_segments(
        self, key: PartitionKey, offset: int, *, limit: int = TIER_SEGMENTS_PER_CALL_MAX
    ) -> list[TierSegment]:
        """Return up to `limit` segments from the one that holds an offset."""
        return await self._database.read(partial(operations.segments, key, offset, limit))

    async def aborted_tiers(
        self, key: PartitionKey, offset: int, *, limit: int = TIER_SEGMENTS_PER_CALL_MAX
    ) -> list[TierSegment]:
        """Return the segments beyond an offset with markers of aborted transactions."""
        return await self._database.read(partial(operations.aborted, key, offset, limit))

    async def tier_at_time(
        self, key: PartitionKey, *, start_offset: int, timestamp: int | None
    ) -> TierSegment | None:
        """Return the first segment above an offset that reaches a time, or the highest."""
        return await self._database.read(partial(operations.at_time, key, start_offset, timestamp))

    async def retain_tiers(
        self,
        key: PartitionKey,
        *,
        leader_epoch: int,
        start_offset: int = 0,
        before_timestamp: int | None = None,
        max_bytes: int | None = None,
        limit: int = TIER_SEGMENTS_PER_CALL_MAX,
    ) -> TiersDropped | None:
        """Drop segments from the start: below an offset, older than a time, beyond a size.

        Raises the partition's start to `start_offset` if that is higher. Returns None without
        tiers.
        """
        return await self._database.change(
            partial(
                operations.retain,
                self._images,
                key,
                leader_epoch=leader_epoch,
                start_offset=start_offset,
                before_timestamp=before_timestamp,
                max_bytes=max_bytes,
                limit=limit,
            ),
            lock=Lock.TOPICS,
        )

    async def cut_tiers(
        self, key: PartitionKey, *, leader_epoch: int, offset: int
    ) -> TiersDropped | None:
        """Truncate the tiers at an offset after an unclean election; None without tiers."""
        return await self._database.change(
            partial(operations.cut, self._images, key, leader_epoch=leader_epoch, offset=offset),
            lock=Lock.TOPICS,
        )

    async def forget_tiers(self, *, limit: int = TIER_SEGMENTS_PER_CALL_MAX) -> int:
        """Drop the tiers of topics that are deleted or not tiered; return the number of rows."""
        return await self._database.change(
            partial(operations.forget, self._images, limit), lock=Lock.TOPICS
        )
