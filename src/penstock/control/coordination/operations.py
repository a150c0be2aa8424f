"""Methods of the control plane for the records of coordinators, and their rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.base.errors import BugError, PenstockError
from penstock.base.system import Randomness
from penstock.control.coordination import statements
from penstock.control.coordination.values import (
    GROUP_MEMBER,
    KEY_ROW,
    TRANSACTION,
    CoordinationRecord,
    RecordChange,
    RecordKey,
    SavedRecords,
)
from penstock.control.drivers.statements import Again, Lock, Operation, OverDatabase, query
from penstock.control.errors import StaleRecord, TooLarge
from penstock.control.groups import operations as offsets

RECORD_BYTES_MAX: Final = 128 << 20
"""Bytes of one row that a coordinator saves."""

_VERSION_BITS: Final = 62
_SMALL_BYTES_MAX: Final = 65_536


class CoordinationRecords(OverDatabase):
    """Methods of `ControlPlane` for coordinators' records."""

    _randomness: Randomness

    @query
    def record_keys(self, kind: str) -> Operation[list[str]]:
        """Return the keys that have records of a kind, sorted."""
        return [key.decode() for (key,) in (yield statements.keys(kind))]

    @query
    def records(self, kind: str, keys: Sequence[str]) -> Operation[list[CoordinationRecord]]:
        """Return all rows of some keys, ordered by key and member."""
        found = yield statements.read([(key.encode(),) for key in keys], kind)
        return sorted(map(statements.record_of, found), key=lambda row: (row.key, row.member))

    async def save_records(
        self, changes: Sequence[RecordChange], *, cluster_epoch: int | None = None
    ) -> SavedRecords:
        """Apply changes in one transaction, at most one change per key.

        A change is rejected on its own if its key is at an unexpected version, or if a row exceeds
        `RECORD_BYTES_MAX`. The result then has `StaleRecord` or `TooLarge` for this key.
        `cluster_epoch` is that of the image by which the caller owns the keys.

        Raises:
            StaleClusterEpoch: brokers were added or removed since that image; nothing is stored.
        """
        version = self._randomness.bits(_VERSION_BITS) + 1
        refused = await self._database.change(
            partial(_save, changes, version=version),
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


def _save(
    changes: Sequence[RecordChange], *, version: int
) -> Operation[dict[RecordKey, PenstockError]]:
    record_keys = sorted((change.kind, change.key.encode()) for change in changes)
    found: dict[RecordKey, int] = {}
    for kind, key, known in (yield statements.lock(record_keys)):
        found[kind, key.decode()] = known
    refused: dict[RecordKey, PenstockError] = {}
    for change in changes:
        reason = _refusal(change, found.get(change.record_key, 0))
        if reason is not None:
            refused[change.record_key] = reason
    stored = [change for change in changes if change.record_key not in refused]
    written: list[tuple[str, bytes, bytes, int, bytes]] = []
    deleted: list[tuple[str, bytes, bytes]] = []
    for change in stored:
        kind, key = change.kind, change.key.encode()
        for member, value in change.rows.items():
            if value is None:
                deleted.append((kind, key, member.encode()))
            else:
                expected = 0 if member else change.expected_version
                written.append((kind, key, member.encode(), expected, value))
    if (yield statements.write(written, version)) != len(written):
        raise Again("another coordinator added the same records at the same time")
    yield statements.delete(deleted)
    yield from offsets.delete_all([change.key for change in stored if change.deletes_offsets])
    yield from offsets.complete(
        {
            change.key: change.completes_offsets
            for change in stored
            if change.completes_offsets is not None and _leaves_groups(change)
        }
    )
    return refused


def _refusal(change: RecordChange, found: int) -> PenstockError | None:
    """Return why a change is rejected, or None. `found` is the version of its key's own row.

    Raises:
        BugError: the change omits the key's own row, or removes groups from a transaction without
            completing their offsets.
    """
    if change.rows and KEY_ROW not in change.rows:
        raise BugError(f"a change of {change.kind} {change.key!r} leaves out the key's own row")
    if _leaves_groups(change) and change.completes_offsets is None:
        raise BugError(
            f"a change removes groups from transaction {change.key!r} without completing their"
            " offsets"
        )
    if found != change.expected_version:
        return StaleRecord(change.kind, change.key, change.expected_version, found)
    largest = max((len(value) for value in change.rows.values() if value is not None), default=0)
    if largest > RECORD_BYTES_MAX:
        return TooLarge(
            f"a record of {change.kind} {change.key!r} has {largest} bytes, "
            f"the limit is {RECORD_BYTES_MAX}"
        )
    return None


def _leaves_groups(change: RecordChange) -> bool:
    return change.kind == TRANSACTION and any(
        value is None and member.startswith(GROUP_MEMBER) for member, value in change.rows.items()
    )
