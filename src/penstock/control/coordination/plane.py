"""Control-plane interface of coordinators' records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.base.system import Randomness
from penstock.control.coordination import operations
from penstock.control.coordination.values import CoordinationRecord, RecordChange, SavedRecords
from penstock.control.drivers.statements import Lock, OverDatabase

_VERSION_BITS: Final = 62
_SMALL_BYTES_MAX: Final = 65_536


class CoordinationRecords(OverDatabase):
    """Methods of `ControlPlane` for coordinators' records."""

    _randomness: Randomness

    async def record_keys(self, kind: str) -> list[str]:
        """Return the keys of a kind that have records, in order."""
        return await self._database.read(partial(operations.keys, kind))

    async def records(self, kind: str, keys: Sequence[str]) -> list[CoordinationRecord]:
        """Return all rows of some keys, by key and member."""
        return await self._database.read(partial(operations.read, kind, keys))

    async def save_records(
        self, changes: Sequence[RecordChange], *, cluster_epoch: int | None = None
    ) -> SavedRecords:
        """Store changes of keys, at most one of each key, in one transaction.

        A key at an unexpected version, or with a row above `RECORD_BYTES_MAX`, is rejected alone,
        with `StaleRecord` or `TooLarge` in the answer. The caller owns the keys by the image's
        `cluster_epoch`.

        Raises:
            StaleClusterEpoch: brokers were added or removed since; nothing is stored.
        """
        version = self._randomness.bits(_VERSION_BITS) + 1
        refused = await self._database.change(
            partial(operations.save, changes, version=version),
            lock=Lock.TOPICS,
            cluster_epoch=cluster_epoch,
            rows=_rows(changes),
        )
        return SavedRecords(version=version, refused=refused)


def _rows(changes: Sequence[RecordChange]) -> int | None:
    if any(change.deletes_offsets or change.completes_offsets for change in changes):
        return None
    values = [value for change in changes for value in change.rows.values()]
    if sum(map(len, filter(None, values))) > _SMALL_BYTES_MAX:
        return None
    return len(values)
