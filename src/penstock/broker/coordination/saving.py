"""Saver that writes all saves of one event-loop turn as one transaction of the control plane.

Only one transaction is under way at a time; later saves wait for the next one. If the control plane
rejects a key because another coordinator has saved it, only the save of that key fails.

Every transaction carries the cluster epoch for which this broker owns its keys. If brokers joined
or left, the control plane rejects the transaction. The saver then refreshes the metadata image, and
repeats the saves of keys that this broker still owns. A coordinator that was paused, partitioned or
outdated can therefore not overwrite the keys of another coordinator.

If a save is rejected or its outcome is unknown, the rows of its key are read, to find out whether
this broker or another coordinator wrote them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, Protocol

from penstock.base.errors import PenstockError
from penstock.broker.coordination.core import Save, Saved, SaveFailed
from penstock.broker.coordination.rows import KeyRows, Recognised
from penstock.control import (
    CoordinationRecord,
    RecordChange,
    RecordKey,
    SavedRecords,
    StaleClusterEpoch,
    TooLarge,
)

SAVE_KEYS_MAX: Final = 2_000
"""Maximum number of keys that one transaction saves; the next one saves the others."""
SAVE_BYTES_MAX: Final = 32 << 20
"""Bytes of rows above which a transaction takes no more keys."""
SAVE_ATTEMPTS_MAX: Final = 5

logger = logging.getLogger(__name__)


class RecordPlane(Protocol):
    async def record_keys(self, kind: str) -> list[str]: ...

    async def records(self, kind: str, keys: Sequence[str]) -> list[CoordinationRecord]: ...

    async def save_records(
        self, changes: Sequence[RecordChange], *, cluster_epoch: int | None = None
    ) -> SavedRecords: ...


class Owner(Protocol):
    """Interface of `Ownership`: the keys that this broker owns, and the cluster epoch."""

    @property
    def cluster_epoch(self) -> int | None: ...

    def owns(self, key: str) -> bool: ...

    async def look_again(self) -> None: ...


class Lost:
    """Outcome of a save: another broker owns the key now, or has saved the rows in `found`."""

    def __init__(self, found: Sequence[CoordinationRecord] | None = None) -> None:
        self.found = found


Outcome = Saved | SaveFailed | Lost


class Pending:
    """Save that waits or is under way. `report` is called once, with its outcome."""

    def __init__(
        self, kind: str, rows: KeyRows, save: Save, report: Callable[[Outcome], None]
    ) -> None:
        self.kind = kind
        self.rows = rows
        self.save = save
        self.attempts = 0
        self._report = report
        rows.saving += 1

    @property
    def record_key(self) -> RecordKey:
        return self.kind, self.save.key

    def change(self) -> RecordChange:
        return self.rows.change(self.kind, self.save)

    def end(self, outcome: Outcome) -> None:
        self.rows.saving -= 1
        self._report(outcome)

    def failed(self, reason: object) -> None:
        self.end(SaveFailed(key=self.save.key, reason=str(reason)))


class Saver:
    """Saver of rows for the cores of one broker; belongs to the event-loop thread."""

    def __init__(self, plane: RecordPlane, ownership: Owner) -> None:
        self._plane = plane
        self._ownership = ownership
        self._gathered: list[Pending] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, pending: Pending) -> None:
        self._gathered.append(pending)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def finish(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._gathered:
                await self._transaction(self._take())
        finally:
            self._task = None

    def _take(self) -> list[tuple[Pending, RecordChange]]:
        taken: dict[RecordKey, tuple[Pending, RecordChange]] = {}
        left: list[Pending] = []
        size = 0
        for pending in self._gathered:
            key = pending.record_key
            if not self._ownership.owns(pending.save.key):
                pending.end(Lost())
            elif key in taken or len(taken) >= SAVE_KEYS_MAX or size >= SAVE_BYTES_MAX:
                left.append(pending)
            else:
                taken[key] = pending, pending.change()
                size += sum(map(len, pending.save.rows.values()))
        self._gathered = left
        return list(taken.values())

    async def _transaction(self, batch: list[tuple[Pending, RecordChange]]) -> None:
        if not batch:
            return
        all_of_it = [pending for pending, _ in batch]
        try:
            saved = await self._plane.save_records(
                [change for _, change in batch], cluster_epoch=self._ownership.cluster_epoch
            )
        except StaleClusterEpoch as error:
            await self._look_again(all_of_it, error)
            return
        except PenstockError as error:
            logger.error("saving %d keys of coordinators failed: %s", len(batch), error)
            await self._find_out(all_of_it, error)
            return
        except Exception as error:  # every save must get an outcome
            for pending in all_of_it:
                pending.failed(error)
            raise
        await self._saved(batch, saved)

    async def _saved(self, batch: list[tuple[Pending, RecordChange]], saved: SavedRecords) -> None:
        stale: list[Pending] = []
        for pending, _ in batch:
            refusal = saved.refused.get(pending.record_key)
            if refusal is None:
                pending.rows.stored(pending.save, saved.version)
                pending.end(Saved(key=pending.save.key))
            elif isinstance(refusal, TooLarge):
                logger.error("%s", refusal)
                pending.failed(refusal)
            else:
                logger.warning("%s", refusal)
                stale.append(pending)
        if stale:
            await self._find_out(stale, None)

    async def _look_again(self, batch: list[Pending], error: StaleClusterEpoch) -> None:
        """Refresh the image after brokers joined or left, and retry saves of owned keys."""
        try:
            await self._ownership.look_again()
        except PenstockError as failure:
            await self._find_out(batch, failure)
            return
        self._again(batch, error)

    def _again(self, batch: Iterable[Pending], reason: object) -> None:
        for pending in batch:
            pending.attempts += 1
            if pending.attempts < SAVE_ATTEMPTS_MAX:
                self._gathered.append(pending)
            else:
                pending.failed(reason)

    async def _find_out(self, batch: list[Pending], failure: PenstockError | None) -> None:
        """Read the rows of keys whose save failed or was rejected, and report the outcomes."""
        try:
            found = await self._read(batch)
        except PenstockError as error:
            for pending in batch:
                pending.rows.in_doubt(pending.save)
                pending.failed(failure or error)
            return
        for pending in batch:
            stored = found.get(pending.record_key, [])
            recognised = pending.rows.recognise(stored, pending.save)
            if recognised is Recognised.SAVED:
                pending.end(Saved(key=pending.save.key))
            elif recognised is Recognised.FOREIGN:
                pending.end(Lost(stored))
            elif failure is None:
                self._again([pending], "the records of the key changed before every attempt")
            else:
                pending.failed(failure)

    async def _read(self, batch: list[Pending]) -> Mapping[RecordKey, list[CoordinationRecord]]:
        found: dict[RecordKey, list[CoordinationRecord]] = {}
        ordered = sorted(pending.record_key for pending in batch)
        for kind, keys in groupby(ordered, key=lambda record_key: record_key[0]):
            for row in await self._plane.records(kind, [key for _, key in keys]):
                found.setdefault((kind, row.key), []).append(row)
        return found
