"""The upkeep of the batch index in the SQLite form: retention, swaps, sweeping, forgetting.

Each method is one operation of the writer, as in `sqlite_index.py`, which says more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from uuid import UUID

from penstock.base.system import Clock
from penstock.control.batch_index import index_rules
from penstock.control.batch_index import sqlite_objects as objects
from penstock.control.batch_index import sqlite_tables as rows
from penstock.control.batch_index.values import (
    Backlog,
    Condemned,
    ObjectLease,
    ObjectTotals,
    PartitionMarks,
    Retained,
    SegmentSwap,
)
from penstock.control.drivers.sqlite_writer import Writer
from penstock.control.errors import ObjectLeaseLost
from penstock.control.limits import COMMIT_ANSWER_KEPT_MS
from penstock.records.extents import Extent


class SqliteDisklessUpkeep:
    """What jobs beside the data path ask for."""

    _writer: Writer
    _clock: Clock

    async def delete_records(
        self, topic_id: UUID, partition: int, before_offset: int
    ) -> PartitionMarks:
        def operation(connection: sqlite3.Connection) -> PartitionMarks:
            partition_id, row = rows.read_partition(connection, (topic_id, partition))
            start = index_rules.deletion_start(row, topic_id, partition, before_offset)
            row = row._replace(log_start_offset=start)
            rows.write_partitions(connection, [(partition_id, row)])
            return row.marks

        marks: PartitionMarks = await self._writer.run(operation)
        return marks

    async def retain(
        self,
        topic_id: UUID,
        partition: int,
        *,
        before_timestamp: int | None,
        max_bytes: int | None,
        limit: int,
    ) -> Retained:
        def operation(connection: sqlite3.Connection) -> Retained:
            partition_id, row = rows.read_partition(connection, (topic_id, partition))
            plan = index_rules.plan_retention(
                row,
                list(rows.extents_from(connection, partition_id, 0, limit + 1)),
                before_timestamp=before_timestamp,
                max_bytes=max_bytes,
                limit=limit,
            )
            if plan.dropped:
                rows.write_partitions(connection, [(partition_id, plan.row)])
                self._drop(connection, partition_id, plan.dropped)
            return plan.retained

        retained: Retained = await self._writer.run(operation)
        return retained

    async def forget_partitions(self, *, limit: int) -> int:
        def operation(connection: sqlite3.Connection) -> int:
            dropped = 0
            while dropped < limit:
                partition_id = rows.forgotten_partition(connection)
                if partition_id is None:
                    break
                dropped += self._forget(connection, partition_id, limit - dropped)
            return dropped

        dropped: int = await self._writer.run(operation)
        return dropped

    def _forget(self, connection: sqlite3.Connection, partition_id: int, limit: int) -> int:
        """Drop at most `limit` rows of a partition, its own the last; how many."""
        gone = list(rows.extents_from(connection, partition_id, 0, limit))
        self._drop(connection, partition_id, gone)
        dropped = len(gone)
        dropped += rows.drop_producers(connection, partition_id, limit - dropped)
        if dropped < limit:
            rows.drop_partition(connection, partition_id)
            dropped += 1
        return dropped

    def _drop(
        self, connection: sqlite3.Connection, partition_id: int, gone: Sequence[Extent]
    ) -> None:
        rows.drop_extents(connection, partition_id, gone)
        objects.release(connection, index_rules.references(gone), self._clock.now_ms())

    async def forget_producers(self, *, idle_ms: int, limit: int) -> int:
        last_ms = self._clock.now_ms() - idle_ms
        forgotten: int = await self._writer.run(
            lambda connection: rows.drop_idle_producers(connection, last_ms, limit)
        )
        return forgotten

    async def swap_extents(self, swap: SegmentSwap) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            found = objects.read_object(connection, swap.object_id)
            if found is None:
                raise ObjectLeaseLost(swap.object_id)
            if index_rules.is_swapped(swap, found.state):
                return
            partition_id, row = rows.read_partition(connection, (swap.topic_id, swap.partition))
            first, count = swap.replaced[0].base_offset, len(swap.replaced)
            there = list(rows.extents_from(connection, partition_id, first, count))
            changed = index_rules.plan_swap(swap, row, there)
            rows.write_partitions(connection, [(partition_id, changed)])
            self._drop(connection, partition_id, there)
            rows.write_extents(connection, [(partition_id, one) for one in swap.extents])
            objects.write_object(
                connection,
                swap.object_id,
                state="committed",
                kind="segment",
                size_bytes=swap.size_bytes,
                extents=len(swap.extents),
                now_ms=self._clock.now_ms(),
            )

        await self._writer.run(operation)

    async def backlogs(self, *, min_extents: int, limit: int) -> list[Backlog]:
        found: list[tuple[bytes, int, int, int, int]] = await self._writer.run(
            lambda connection: rows.read_backlogs(connection, min_extents, limit)
        )
        return [Backlog(UUID(bytes=topic_id), *rest) for topic_id, *rest in found]

    async def condemn(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> list[Condemned]:
        def operation(connection: sqlite3.Connection) -> list[Condemned]:
            now_ms = self._clock.now_ms()
            left = limit - len(objects.read_deleting(connection, limit))
            left -= objects.mark_deleting(
                connection, objects.PENDING, now_ms - pending_grace_ms, left, now_ms
            )
            objects.mark_deleting(
                connection, objects.UNREFERENCED, now_ms - unreferenced_grace_ms, left, now_ms
            )
            objects.drop_answers(connection, now_ms - COMMIT_ANSWER_KEPT_MS, limit)
            return objects.read_deleting(connection, limit)

        condemned: list[Condemned] = await self._writer.run(operation)
        return condemned

    async def forget_objects(self, object_ids: Sequence[int]) -> None:
        await self._writer.run(lambda connection: objects.forget_objects(connection, object_ids))

    async def object_totals(self) -> list[ObjectTotals]:
        totals: list[ObjectTotals] = await self._writer.run(objects.read_totals)
        return totals

    async def referenced_keys(self, *, after: str, limit: int) -> list[tuple[str, ObjectLease]]:
        keys: list[tuple[str, ObjectLease]] = await self._writer.run(
            lambda connection: objects.read_keys(connection, after, limit)
        )
        return keys
