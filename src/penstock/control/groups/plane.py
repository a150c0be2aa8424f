"""The part of the control plane that keeps groups' offsets.

Topics and brokers stand still while they are stored. Where the caller names a membership, it must
still be the current one: a coordinator that was paused writes nothing after brokers have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.control.drivers.statements import Lock, OverDatabase
from penstock.control.errors import TooLarge
from penstock.control.groups import operations
from penstock.control.limits import OFFSETS_PER_CALL_MAX
from penstock.control.values import CommittedOffset


class GroupOffsets(OverDatabase):
    """Methods of `ControlPlane`, over either database."""

    async def commit_offsets(
        self,
        *,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        membership: int | None = None,
    ) -> None:
        _check_count(len(offsets))
        await self._database.change(
            partial(operations.commit, group_id, offsets), lock=Lock.TOPICS, membership=membership
        )

    async def committed_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> list[CommittedOffset]:
        return await self._database.read(partial(operations.read, group_id, partitions))

    async def delete_offsets(
        self,
        *,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        membership: int | None = None,
    ) -> None:
        _check_count(len(partitions))
        await self._database.change(
            partial(operations.delete, group_id, partitions),
            lock=Lock.TOPICS,
            membership=membership,
        )

    async def offset_group_ids(self) -> list[str]:
        return await self._database.read(operations.group_ids)

    async def groups_with_offsets(self, group_ids: Sequence[str]) -> list[str]:
        return await self._database.read(partial(operations.having_offsets, group_ids))

    async def expire_offsets(self, *, now_ms: int, limit: int) -> int:
        return await self._database.change(partial(operations.expire, now_ms, limit))


def _check_count(count: int) -> None:
    if count > OFFSETS_PER_CALL_MAX:
        raise TooLarge(f"{count} offsets in one call, the limit is {OFFSETS_PER_CALL_MAX}")
