"""Retention of committed offsets, and of empty groups without committed offsets.

Source: KIP-211.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final, Protocol

from penstock.base.errors import PenstockError
from penstock.base.system import Clock
from penstock.broker.coordination.group_events import ListedGroup
from penstock.broker.coordination.ownership import Ownership
from penstock.broker.coordination.runtime import Runtime
from penstock.broker.settings import BrokerSettings
from penstock.control import ControlPlane

logger = logging.getLogger(__name__)

OFFSETS_EXPIRED_AT_ONCE_MAX: Final = 10_000
"""Maximum number of offsets that one pass deletes; the next pass deletes more."""

EMPTY: Final = "Empty"


class Groups(Protocol):
    ownership: Ownership
    runtime: Runtime

    async def list_groups(self) -> tuple[ListedGroup, ...]: ...

    async def expire_offsets_of(
        self, group_id: str, *, committed_by_ms: int, limit: int
    ) -> int: ...

    def prune(self, with_offsets: Collection[str]) -> None: ...


class OffsetsRetention:
    """Periodic deletion of expired offsets and groups; belongs to the event loop."""

    def __init__(
        self, settings: BrokerSettings, groups: Groups, *, control: ControlPlane, clock: Clock
    ) -> None:
        self._groups = groups
        self._control = control
        self._clock = clock
        self._retention_ms = settings.offsets_retention_minutes * 60_000
        self._interval_seconds = settings.offsets_retention_check_interval_ms / 1000
        self._loaded_ms = 0
        self._active_ms: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pass: asyncio.Task[None] | None = None
        self._stopped = False

    def groups_loaded(self) -> None:
        """Record that all groups are loaded, and start the periodic passes.

        The retention of offsets in groups that had members begins now at the earliest.
        """
        self._loaded_ms = self._clock.now_ms()
        if self._timer is None:
            self._plan()

    def _plan(self) -> None:
        if not self._stopped:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_seconds, self._begin)

    def _begin(self) -> None:
        if self._pass is None or self._pass.done():
            self._pass = asyncio.get_running_loop().create_task(self._run())
        self._plan()

    async def _run(self) -> None:
        try:
            await self.expire()
        except PenstockError as error:
            logger.warning("expired offsets could not be deleted: %s", error)

    async def expire(self) -> int:
        """Delete expired offsets, then empty groups; return the number of deleted offsets.

        An offset with an expiry time from its commit expires at that time; any broker deletes it.
        Other offsets expire `offsets.retention.minutes` after their commit, but not before the same
        time has passed since the group last had members or was loaded by this broker. Offsets that
        an open transaction may change are kept.
        """
        await self._groups.runtime.load_all()
        now_ms, limit = self._clock.now_ms(), OFFSETS_EXPIRED_AT_ONCE_MAX
        deleted = await self._control.expire_offsets(now_ms=now_ms, limit=limit)
        groups = await self._groups.list_groups()
        ids = {group.group_id for group in groups}
        self._active_ms = {key: ms for key, ms in self._active_ms.items() if key in ids}
        for group in groups:
            if group.state != EMPTY:
                self._active_ms[group.group_id] = now_ms
            elif deleted < limit:
                deleted += await self._expire_of(group, now_ms, limit - deleted)
        self._groups.prune(frozenset(await self._control.offset_group_ids()))
        return deleted

    async def _expire_of(self, group: ListedGroup, now_ms: int, limit: int) -> int:
        group_id = group.group_id
        seen_ms = self._active_ms.get(group_id, self._loaded_ms) if group.protocol_type else 0
        if seen_ms + self._retention_ms > now_ms:
            return 0
        if not self._groups.ownership.owns(group_id):
            return 0
        return await self._groups.expire_offsets_of(
            group_id, committed_by_ms=now_ms - self._retention_ms, limit=limit
        )

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._pass is not None:
            await asyncio.wait([self._pass])
