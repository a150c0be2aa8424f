"""The part of the control plane that keeps coordinators' records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.base.system import Randomness
from penstock.control.coordination import operations
from penstock.control.coordination.values import CoordinationRecord, RecordChange, SavedRecords
from penstock.control.drivers.statements import Lock, OverDatabase

_VERSION_BITS: Final = 62


class CoordinationRecords(OverDatabase):
    """Methods of `ControlPlane`, over either database."""

    _randomness: Randomness

    async def record_keys(self, kind: str) -> list[str]:
        return await self._database.read(partial(operations.keys, kind))

    async def records(self, kind: str, keys: Sequence[str]) -> list[CoordinationRecord]:
        return await self._database.read(partial(operations.read, kind, keys))

    async def save_records(
        self, changes: Sequence[RecordChange], *, cluster_epoch: int | None = None
    ) -> SavedRecords:
        version = self._randomness.bits(_VERSION_BITS) + 1
        refused = await self._database.change(
            partial(operations.save, changes, version=version),
            lock=Lock.TOPICS,
            membership=cluster_epoch,
        )
        return SavedRecords(version=version, refused=refused)
