"""The upkeep of the batch index in PostgreSQL: retention, swaps, sweeping, forgetting.

Each method is one transaction. Several brokers may run the same job at once: each leaves what
another one has locked. `postgres_index.py` says more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from uuid import UUID

from penstock.control.batch_index import index_rules
from penstock.control.batch_index import postgres_objects as objects
from penstock.control.batch_index import postgres_tables as rows
from penstock.control.batch_index.values import (
    Backlog,
    Condemned,
    ObjectLease,
    ObjectTotals,
    PartitionKey,
    PartitionMarks,
    Retained,
    SegmentSwap,
)
from penstock.control.drivers.postgres_connections import Connection, Connections
from penstock.control.errors import ObjectLeaseLost
from penstock.control.limits import COMMIT_ANSWER_KEPT_MS
from penstock.records.extents import Extent


class PostgresDisklessUpkeep:
    """What jobs beside the data path ask for."""

    @property
    @abstractmethod
    def _database(self) -> Connections:
        """Where work runs."""

    @abstractmethod
    def _tell(self, marks: Mapping[PartitionKey, PartitionMarks]) -> None:
        """Tell other brokers of partitions that have changed."""

    async def delete_records(
        self, topic_id: UUID, partition: int, before_offset: int
    ) -> PartitionMarks:
        key = (topic_id, partition)

        async def work(connection: Connection) -> PartitionMarks:
            partition_id, row = await _locked(connection, key)
            start = index_rules.deletion_start(row, topic_id, partition, before_offset)
            row = row._replace(log_start_offset=start)
            await rows.write_partition(connection, partition_id, row)
            return row.marks

        marks = await self._database.transaction(work)
        self._tell({key: marks})
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
        key = (topic_id, partition)

        async def work(connection: Connection) -> Retained:
            partition_id, row = await _locked(connection, key)
            plan = index_rules.plan_retention(
                row,
                await rows.extents_from(connection, partition_id, 0, limit + 1),
                before_timestamp=before_timestamp,
                max_bytes=max_bytes,
                limit=limit,
            )
            if plan.dropped:
                await rows.write_partition(connection, partition_id, plan.row)
                await _drop(connection, partition_id, plan.dropped)
            return plan.retained

        retained = await self._database.transaction(work)
        if retained.extents_dropped:
            self._tell({key: retained.marks})
        return retained

    async def forget_partitions(self, *, limit: int) -> int:
        async def work(connection: Connection) -> int:
            dropped = 0
            while dropped < limit:
                partition_id = await rows.forgotten_partition(connection)
                if partition_id is None:
                    break
                dropped += await _forget(connection, partition_id, limit - dropped)
            return dropped

        return await self._database.transaction(work)

    async def forget_producers(self, *, idle_ms: int, limit: int) -> int:
        return await self._database.transaction(
            lambda connection: rows.drop_idle_producers(connection, idle_ms, limit)
        )

    async def swap_extents(self, swap: SegmentSwap) -> None:
        key = (swap.topic_id, swap.partition)

        async def work(connection: Connection) -> None:
            partition_id, row = await _locked(connection, key)
            found = await objects.lock_object(connection, swap.object_id)
            if found is None:
                raise ObjectLeaseLost(swap.object_id)
            if index_rules.is_swapped(swap, found.state):
                return
            first, count = swap.replaced[0].base_offset, len(swap.replaced)
            there = await rows.extents_from(connection, partition_id, first, count)
            changed = index_rules.plan_swap(swap, row, there)
            await rows.write_partition(connection, partition_id, changed)
            await _drop(connection, partition_id, there)
            await rows.write_extents(connection, partition_id, swap.extents)
            await objects.write_object(
                connection,
                swap.object_id,
                state="committed",
                kind="segment",
                size_bytes=swap.size_bytes,
                extents=len(swap.extents),
            )

        await self._database.transaction(work)

    async def backlogs(self, *, min_extents: int, limit: int) -> list[Backlog]:
        found = await self._database.statement(
            lambda connection: rows.read_backlogs(connection, min_extents, limit)
        )
        return [Backlog._make(one) for one in found]

    async def condemn(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> list[Condemned]:
        async def work(connection: Connection) -> list[Condemned]:
            left = limit - len(await objects.read_deleting(connection, limit))
            left -= await objects.mark_deleting(connection, objects.PENDING, pending_grace_ms, left)
            await objects.mark_deleting(
                connection, objects.UNREFERENCED, unreferenced_grace_ms, left
            )
            await objects.drop_answers(connection, COMMIT_ANSWER_KEPT_MS, limit)
            return await objects.read_deleting(connection, limit)

        return await self._database.transaction(work)

    async def forget_objects(self, object_ids: Sequence[int]) -> None:
        await self._database.statement(
            lambda connection: objects.forget_objects(connection, object_ids)
        )

    async def object_totals(self) -> list[ObjectTotals]:
        return await self._database.statement(objects.read_totals)

    async def referenced_keys(self, *, after: str, limit: int) -> list[tuple[str, ObjectLease]]:
        return await self._database.statement(
            lambda connection: objects.read_keys(connection, after, limit)
        )


async def _locked(connection: Connection, key: PartitionKey) -> rows.LockedPartition:
    found = await rows.lock_partitions(connection, [key])
    return found.get(key, rows.ABSENT)


async def _forget(connection: Connection, partition_id: int, limit: int) -> int:
    """Drop at most `limit` rows of a partition, its own the last; how many."""
    gone = await rows.extents_from(connection, partition_id, 0, limit)
    await _drop(connection, partition_id, gone)
    dropped = len(gone)
    dropped += await rows.drop_producers(connection, partition_id, limit - dropped)
    if dropped < limit:
        await rows.drop_partition(connection, partition_id)
        dropped += 1
    return dropped


async def _drop(connection: Connection, partition_id: int, gone: Sequence[Extent]) -> None:
    await rows.drop_extents(connection, partition_id, gone)
    await objects.release(connection, index_rules.references(gone))
