"""The part of the control plane that keeps groups' offsets.

Topics and brokers stand still while they are stored. Where the caller names a cluster epoch, it
must still be the current one: a coordinator that was paused writes nothing after brokers have
changed.
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
    """Methods of `ControlPlane`, over either database."""

    async def commit_offsets(
        self,
        *,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        cluster_epoch: int | None = None,
    ) -> None:
        """Store a group's offsets, all of them or none; the newest commit of a partition wins.

        Those of an earlier topic of the same name are dropped: they came too late.

        Here and below, `cluster_epoch` is that of the image by which the caller coordinates the
        group; a coordinator that was paused while its groups moved writes nothing.

        Raises:
            TooLarge: more than `OFFSETS_PER_CALL_MAX` in one call.
            StaleClusterEpoch: brokers have come or gone since.
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
        """A group's offsets in the named partitions, or in all; those without one are left out.

        Ordered by topic and partition.
        """
        return await self._database.read(partial(operations.read, group_id, partitions))

    async def stage_offsets(
        self,
        *,
        transaction: OpenTransaction,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        cluster_epoch: int | None = None,
    ) -> None:
        """Store offsets that a group commits by an open transaction, all of them or none.

        Nobody sees them before the save that decides the transaction
        (`RecordChange.settles_offsets`); one that is made while this runs waits for it. Their own
        expiry is not looked at, nor are those of an earlier topic of the same name.

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
        """As `committed_offsets`, and where open transactions may change them, as of one moment."""
        return await self._database.read(partial(operations.read_stable, group_id, partitions))

    async def delete_offsets(
        self,
        *,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        cluster_epoch: int | None = None,
    ) -> None:
        """Forget a group's offsets in the named partitions; those without one do not matter.

        Those that open transactions have brought go with them, and are not committed any more.

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
        """The ids of all groups that have an offset, or may get one of a transaction, in order."""
        return await self._database.read(operations.group_ids)

    async def groups_with_offsets(self, group_ids: Sequence[str]) -> list[str]:
        """Those of some groups that have an offset, or may get one of a transaction."""
        return await self._database.read(partial(operations.having_offsets, group_ids))

    async def expire_offsets(self, *, now_ms: int, limit: int) -> int:
        """Delete at most `limit` offsets whose own expiry has passed; how many were deleted.

        Here and below, offsets that an open transaction may change stay.
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
        """Delete offsets of a group that are so old and have no expiry of their own; how many."""
        return await self._database.change(
            partial(operations.expire_of, group_id, committed_by_ms, limit),
            lock=Lock.TOPICS,
            cluster_epoch=cluster_epoch,
        )


def _check_count(count: int) -> None:
    if count > OFFSETS_PER_CALL_MAX:
        raise TooLarge(f"{count} offsets in one call, the limit is {OFFSETS_PER_CALL_MAX}")
