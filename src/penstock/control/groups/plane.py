"""Control-plane interface of groups' offsets.

Topics and brokers are locked while offsets are stored. A given cluster epoch must be the current
one, so that a paused coordinator writes nothing after its groups have moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.control.coordination.values import OpenTransaction
from penstock.control.drivers.statements import Lock, OverDatabase
from penstock.control.errors import TooLarge
from penstock.control.groups import operations, pending
from penstock.control.limits import OFFSETS_PER_CALL_MAX
from penstock.control.values import CommittedOffset, StableOffsets


class GroupOffsets(OverDatabase):
    """Methods of `ControlPlane` for groups' offsets."""

    async def commit_offsets(
        self,
        *,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        cluster_epoch: int | None = None,
    ) -> None:
        """Store a group's offsets, all or none; the newest commit of a partition wins.

        Offsets of an earlier topic of the same name are dropped. Here and below, `cluster_epoch` is
        that of the image by which the caller coordinates the group.

        Raises:
            TooLarge: more than `OFFSETS_PER_CALL_MAX` in one call.
            StaleClusterEpoch: brokers were added or removed since.
        """
        _check_count(len(offsets))
        await self._database.change(
            partial(operations.commit, group_id, offsets),
            lock=Lock.TOPICS,
            cluster_epoch=cluster_epoch,
            rows=len(offsets),
        )

    async def committed_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> list[CommittedOffset]:
        """Return a group's offsets in some or all partitions, by topic and partition."""
        return await self._database.read(partial(operations.read, group_id, partitions))

    async def stage_offsets(
        self,
        *,
        transaction: OpenTransaction,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        cluster_epoch: int | None = None,
    ) -> None:
        """Store offsets that a group commits by an open transaction, all or none.

        They are invisible until the save that decides the transaction
        (`RecordChange.completes_offsets`), which waits for this call. Their expiry is ignored;
        offsets of an earlier topic of the same name are dropped.

        Raises:
            NotInTransaction: the transaction's record has no row of this group.
            StaleProducerEpoch: it has one of a newer epoch of the producer.
            TooLarge, StaleClusterEpoch: as `commit_offsets`.
        """
        _check_count(len(offsets))
        await self._database.change(
            partial(pending.stage, transaction, group_id, offsets),
            lock=Lock.TOPICS,
            cluster_epoch=cluster_epoch,
            rows=len(offsets),
        )

    async def stable_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> StableOffsets:
        """Return `committed_offsets` and the partitions with pending ones, in one state."""
        return await self._database.read(partial(operations.read_stable, group_id, partitions))

    async def delete_offsets(
        self,
        *,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        cluster_epoch: int | None = None,
    ) -> None:
        """Delete a group's offsets in the named partitions, including pending ones.

        Raises:
            TooLarge, StaleClusterEpoch: as `commit_offsets`.
        """
        _check_count(len(partitions))
        await self._database.change(
            partial(operations.delete, group_id, partitions),
            lock=Lock.TOPICS,
            cluster_epoch=cluster_epoch,
        )

    async def offset_group_ids(self) -> list[str]:
        """Return the ids of all groups with committed or pending offsets, in order."""
        return await self._database.read(operations.group_ids)

    async def groups_with_offsets(self, group_ids: Sequence[str]) -> list[str]:
        """Return the groups among these with committed or pending offsets."""
        return await self._database.read(partial(operations.having_offsets, group_ids))

    async def expire_offsets(self, *, now_ms: int, limit: int) -> int:
        """Delete at most `limit` offsets whose own expiry has passed; return their number.

        Here and below, partitions with pending offsets are skipped.
        """
        return await self._database.change(partial(operations.expire, now_ms, limit))

    async def expire_offsets_of(
        self,
        *,
        group_id: str,
        committed_by_ms: int,
        limit: int,
        cluster_epoch: int | None = None,
    ) -> int:
        """Delete old offsets of a group without an expiry; return their number."""
        return await self._database.change(
            partial(operations.expire_of, group_id, committed_by_ms, limit),
            lock=Lock.TOPICS,
            cluster_epoch=cluster_epoch,
        )


def _check_count(count: int) -> None:
    if count > OFFSETS_PER_CALL_MAX:
        raise TooLarge(f"{count} offsets in one call, the limit is {OFFSETS_PER_CALL_MAX}")
