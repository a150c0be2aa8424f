"""Topics that become diskless, in PostgreSQL: one transaction under the locks of metadata.

Locks are taken in the order of all diskless transactions: metadata, objects, partitions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from penstock.control import diskless_switch_rules as switch_rules
from penstock.control import postgres_diskless_objects as objects
from penstock.control import postgres_diskless_tables as rows
from penstock.control import postgres_sinks as sinks
from penstock.control import postgres_tables as tables
from penstock.control.diskless_values import TopicSwitch
from penstock.control.errors import ObjectLeaseLost
from penstock.control.postgres_connections import Connection, Connections
from penstock.control.values import MetadataImage, Topic

T = TypeVar("T")


class PostgresDisklessSwitch:
    """What the switch of a topic asks for."""

    @property
    @abstractmethod
    def _database(self) -> Connections:
        """Where work runs."""

    @abstractmethod
    async def _change(
        self,
        change: Callable[[Connection, MetadataImage, UUID], Awaitable[tuple[MetadataImage, T]]],
    ) -> T:
        """Apply a change to the newest image under the locks of metadata; what it answers."""

    async def renew_leases(self, object_ids: Sequence[int]) -> None:
        async def work(connection: Connection) -> None:
            lost = set(object_ids) - await objects.renew_leases(connection, object_ids)
            if lost:
                raise ObjectLeaseLost(min(lost))

        await self._database.transaction(work)

    async def switch_topic(self, switch: TopicSwitch) -> Topic:
        switch_rules.check_switch(switch)

        async def change(
            connection: Connection, image: MetadataImage, stamp: UUID
        ) -> tuple[MetadataImage, Topic]:
            ids = [one.object_id for one in switch_rules.objects_of(switch)]
            plan = switch_rules.plan_switch(
                image,
                switch,
                states=await objects.lock_states(connection, ids),
                sinks=await sinks.read_sinks(connection),
            )
            if not plan.is_made:
                await _write(connection, switch, plan)
                await tables.write_topic(connection, plan.topic, stamp)
            return plan.image, plan.topic

        return await self._change(change)


async def _write(
    connection: Connection, switch: TopicSwitch, plan: switch_rules.SwitchPlan
) -> None:
    references = switch_rules.references_of(switch)
    await objects.write_segments(
        connection,
        [(one.object_id, one.size_bytes, references[one.object_id])
         for one in switch_rules.objects_of(switch)],
    )  # fmt: skip
    await rows.add_partitions(connection, plan.rows)
    found = await rows.lock_partitions(connection, plan.rows)
    for part in switch.partitions:
        key = (switch.topic_id, part.partition)
        partition_id = found[key].partition_id
        await rows.write_partition(connection, partition_id, plan.rows[key])
        await rows.write_extents(connection, partition_id, part.extents)
        await rows.write_producers(connection, partition_id, part.producers)
