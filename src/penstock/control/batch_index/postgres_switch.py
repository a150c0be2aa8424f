"""Topics that become diskless, in PostgreSQL: one transaction under the locks of metadata.

Locks are taken in the order of all diskless transactions: metadata, a topic's switch,
objects, partitions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from penstock.control.batch_index import postgres_objects as objects
from penstock.control.batch_index import postgres_switch_tables as switches
from penstock.control.batch_index import postgres_tables as rows
from penstock.control.batch_index import switch_rules
from penstock.control.batch_index.switch_values import (
    RunningSwitch,
    SwitchRequest,
    SwitchShare,
    TopicSwitch,
)
from penstock.control.drivers.postgres_connections import (
    BEGIN_SNAPSHOT,
    Connection,
    Connections,
    run,
)
from penstock.control.sink_commits import operations as sinks
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

    async def open_switch(self, request: SwitchRequest) -> SwitchRequest:
        async def change(
            connection: Connection, image: MetadataImage, stamp: UUID
        ) -> tuple[MetadataImage, SwitchRequest]:
            found = await switches.lock_request(connection, request.topic_id)
            if found == request:
                return image, found
            first = switch_rules.check_request(image, request, found)
            if first is None:
                await switches.write_request(connection, request)
            return image, first or request

        return await self._change(change)

    async def running_switches(self) -> list[RunningSwitch]:
        return await self._database.transaction(switches.read_running, begin=BEGIN_SNAPSHOT)

    async def join_switch(self, request: SwitchRequest, share: SwitchShare) -> None:
        async def work(connection: Connection) -> None:
            found = await switches.lock_request(connection, request.topic_id)
            switch_rules.check_share(request, found, share)
            await switches.write_share(connection, request.topic_id, share)

        await self._database.transaction(work)

    async def close_switch(self, request: SwitchRequest) -> None:
        async def work(connection: Connection) -> None:
            if await switches.lock_request(connection, request.topic_id) == request:
                await switches.delete_request(connection, request.topic_id)

        await self._database.transaction(work)

    async def switch_topic(self, switch: TopicSwitch) -> Topic:
        switch_rules.check_partitions(switch.topic_id, switch.partitions)

        async def change(
            connection: Connection, image: MetadataImage, stamp: UUID
        ) -> tuple[MetadataImage, Topic]:
            shares = switch_rules.all_shares(
                switch,
                await switches.lock_request(connection, switch.topic_id),
                await switches.read_shares(connection, switch.topic_id),
            )
            parts = [part for share in shares for part in share.partitions]
            ids = [one.object_id for one in switch_rules.objects_of(parts or switch.partitions)]
            plan = switch_rules.plan_switch(
                image,
                switch,
                shares,
                states=await objects.lock_states(connection, ids),
                sinks=await run(connection, sinks.read_all()),
            )
            if not plan.is_made:
                await _write(connection, plan)
                await switches.delete_request(connection, switch.topic_id)
            return plan.image, plan.topic

        return await self._change(change)


async def _write(connection: Connection, plan: switch_rules.SwitchPlan) -> None:
    await objects.write_segments(connection, plan.objects)
    await rows.add_partitions(connection, plan.rows)
    found = await rows.lock_partitions(connection, plan.rows)
    for part in plan.partitions:
        key = (plan.topic.topic_id, part.partition)
        partition_id = found[key].partition_id
        await rows.write_partition(connection, partition_id, plan.rows[key])
        await rows.write_extents(connection, partition_id, part.extents)
        await rows.write_producers(connection, partition_id, part.producers)
