"""The part of the control plane that keeps what of local partitions lies in the archive.

Every change is one transaction and a compare-and-set, made by the partition's leader: it names its
leader epoch, and is refused where the newest image has another one. All may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from penstock.base.system import Randomness
from penstock.control.batch_index.values import PartitionKey
from penstock.control.drivers.statements import Lock
from penstock.control.limits import TIER_SEGMENTS_PER_CALL_MAX
from penstock.control.metadata.plane import Metadata
from penstock.control.tiers import operations
from penstock.control.tiers.values import TierLease, TierMarks, TiersDropped, TierSegment


class TieredPartitions(Metadata):
    """Methods of `ControlPlane`, over either database.

    Changes raise UnknownTopic, and StaleEpoch where another leader epoch is the newest.
    """

    _randomness: Randomness

    async def lease_tier(
        self, key: PartitionKey, *, base_offset: int, leader_epoch: int
    ) -> TierLease:
        """Reserve the keys of a segment's objects, as rows PENDING; they never come again.

        Whoever asks gets some: a segment takes effect by `commit_tier`.
        """
        nonce = self._randomness.bits(32)
        return await self._database.change(
            partial(operations.lease, nonce, key, base_offset, leader_epoch)
        )

    async def commit_tier(
        self, key: PartitionKey, segment: TierSegment, *, log_start_offset: int, leader_epoch: int
    ) -> TierMarks:
        """Add a segment whose objects lie in the store; what the tiers are then, without epochs.

        `log_start_offset` is where the partition begins, if this is its first one.

        Raises:
            StaleTiers: it does not follow on what is there.
            ObjectLeaseLost: a key was swept; the segment is to be written anew under other ones.
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

    async def tier_marks(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, TierMarks]:
        """Where tiers begin and end, of those partitions that have any."""
        return await self._database.change(
            partial(operations.marks, list(keys)), lock=Lock.SNAPSHOT
        )

    async def tier_segments(
        self, key: PartitionKey, offset: int, *, limit: int = TIER_SEGMENTS_PER_CALL_MAX
    ) -> list[TierSegment]:
        """The segment that holds an offset and those behind it, at most `limit`."""
        return await self._database.read(partial(operations.segments, key, offset, limit))

    async def aborted_tiers(
        self, key: PartitionKey, offset: int, *, limit: int = TIER_SEGMENTS_PER_CALL_MAX
    ) -> list[TierSegment]:
        """The segments beyond an offset that have markers of aborted transactions."""
        return await self._database.read(partial(operations.aborted, key, offset, limit))

    async def tier_at_time(
        self, key: PartitionKey, *, start_offset: int, timestamp: int | None
    ) -> TierSegment | None:
        """The first segment above an offset with a highest timestamp at or after a time.

        None for the time asks for the first of the highest timestamp of all.
        """
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
        """Let go from the start what is below an offset, older than a time, beyond a size.

        The partition begins at `start_offset` from then on, if that is higher. None without tiers.
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
        """Let go what lies beyond an offset, which an unclean election has given up.

        A segment that holds the offset ends there. None without tiers.
        """
        return await self._database.change(
            partial(operations.cut, self._images, key, leader_epoch=leader_epoch, offset=offset),
            lock=Lock.TOPICS,
        )

    async def forget_tiers(self, *, limit: int = TIER_SEGMENTS_PER_CALL_MAX) -> int:
        """Let go the tiers of topics that are deleted, or tiered no more; how many rows."""
        return await self._database.change(
            partial(operations.forget, self._images, limit), lock=Lock.TOPICS
        )
