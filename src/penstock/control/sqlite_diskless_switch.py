"""Topics that become diskless, in the SQLite form; one operation on the writer's thread each."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import Sequence

from penstock.base.system import Clock
from penstock.control import diskless_switch_rules as switch_rules
from penstock.control import sqlite_diskless_objects as objects
from penstock.control import sqlite_diskless_tables as rows
from penstock.control import sqlite_sinks as sinks
from penstock.control import sqlite_tables as tables
from penstock.control.diskless_values import TopicSwitch
from penstock.control.errors import ObjectLeaseLost
from penstock.control.sqlite_writer import SqliteWriter
from penstock.control.values import MetadataImage, Topic


class SqliteDisklessSwitch:
    """What the switch of a topic asks for."""

    _writer: SqliteWriter
    _clock: Clock

    @abstractmethod
    def _current(self) -> MetadataImage:
        """The image that the next operation changes."""

    @abstractmethod
    def _change(self, connection: sqlite3.Connection, image: MetadataImage) -> None:
        """Make it another one."""

    async def renew_leases(self, object_ids: Sequence[int]) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            for object_id in object_ids:
                if not objects.renew_lease(connection, object_id, self._clock.now_ms()):
                    raise ObjectLeaseLost(object_id)

        await self._writer.run(operation)

    async def switch_topic(self, switch: TopicSwitch) -> Topic:
        switch_rules.check_switch(switch)

        def operation(connection: sqlite3.Connection) -> Topic:
            found = [
                objects.read_object(connection, one.object_id)
                for one in switch_rules.objects_of(switch)
            ]
            plan = switch_rules.plan_switch(
                self._current(),
                switch,
                states={one.lease.object_id: one.state for one in found if one is not None},
                sinks=sinks.read_sinks(connection),
            )
            if not plan.is_made:
                self._switch(connection, switch, plan)
            return plan.topic

        topic: Topic = await self._writer.run(operation)
        return topic

    def _switch(
        self,
        connection: sqlite3.Connection,
        switch: TopicSwitch,
        plan: switch_rules.SwitchPlan,
    ) -> None:
        now_ms = self._clock.now_ms()
        references = switch_rules.references_of(switch)
        for object_id, size_bytes in switch_rules.objects_of(switch):
            objects.write_object(
                connection,
                object_id,
                state="committed",
                kind="segment",
                size_bytes=size_bytes,
                extents=references[object_id],
                now_ms=now_ms,
            )
        for part in switch.partitions:
            key = (switch.topic_id, part.partition)
            partition_id = rows.add_partition(connection, key)
            rows.write_partitions(connection, [(partition_id, plan.rows[key])])
            rows.write_extents(connection, [(partition_id, one) for one in part.extents])
            rows.write_producers(
                connection,
                [
                    (partition_id, producer_id, state._replace(seen_ms=now_ms))
                    for producer_id, state in part.producers.items()
                ],
            )
        tables.write_topic(connection, plan.topic)
        tables.write_epochs(connection, plan.topic)
        self._change(connection, plan.image)
