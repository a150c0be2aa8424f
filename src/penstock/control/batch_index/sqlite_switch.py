"""Topics that become diskless, in the SQLite form; one operation of the writer each."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod

from penstock.base.system import Clock
from penstock.control.batch_index import sqlite_objects as objects
from penstock.control.batch_index import sqlite_switch_tables as switches
from penstock.control.batch_index import sqlite_tables as rows
from penstock.control.batch_index import switch_rules
from penstock.control.batch_index.switch_values import (
    RunningSwitch,
    SwitchRequest,
    SwitchShare,
    TopicSwitch,
)
from penstock.control.drivers.sqlite_statements import run
from penstock.control.drivers.sqlite_writer import Writer
from penstock.control.sink_commits import operations as sinks
from penstock.control.values import MetadataImage, Topic


class SqliteDisklessSwitch:
    """What the switch of a topic asks for."""

    _writer: Writer
    _clock: Clock

    @abstractmethod
    def _current(self) -> MetadataImage:
        """The image that the next operation changes."""

    @abstractmethod
    def _change(self, connection: sqlite3.Connection, image: MetadataImage) -> None:
        """Make it another one."""

    async def open_switch(self, request: SwitchRequest) -> SwitchRequest:
        def operation(connection: sqlite3.Connection) -> SwitchRequest:
            found = switches.read_request(connection, request.topic_id)
            if found == request:
                return found
            first = switch_rules.check_request(self._current(), request, found)
            if first is None:
                switches.write_request(connection, request)
            return first or request

        opened: SwitchRequest = await self._writer.run(operation)
        return opened

    async def running_switches(self) -> list[RunningSwitch]:
        running: list[RunningSwitch] = await self._writer.run(switches.read_running)
        return running

    async def join_switch(self, request: SwitchRequest, share: SwitchShare) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            found = switches.read_request(connection, request.topic_id)
            switch_rules.check_share(request, found, share)
            switches.write_share(connection, request.topic_id, share)

        await self._writer.run(operation)

    async def close_switch(self, request: SwitchRequest) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            if switches.read_request(connection, request.topic_id) == request:
                switches.delete_request(connection, request.topic_id)

        await self._writer.run(operation)

    async def switch_topic(self, switch: TopicSwitch) -> Topic:
        switch_rules.check_partitions(switch.topic_id, switch.partitions)

        def operation(connection: sqlite3.Connection) -> Topic:
            shares = switch_rules.all_shares(
                switch,
                switches.read_request(connection, switch.topic_id),
                switches.read_shares(connection, switch.topic_id),
            )
            parts = [part for share in shares for part in share.partitions]
            found = [
                objects.read_object(connection, one.object_id)
                for one in switch_rules.objects_of(parts or switch.partitions)
            ]
            plan = switch_rules.plan_switch(
                self._current(),
                switch,
                shares,
                states={one.lease.object_id: one.state for one in found if one is not None},
                sinks=run(connection, sinks.read_all()),
            )
            if not plan.is_made:
                self._switch(connection, plan)
            return plan.topic

        topic: Topic = await self._writer.run(operation)
        return topic

    def _switch(self, connection: sqlite3.Connection, plan: switch_rules.SwitchPlan) -> None:
        now_ms = self._clock.now_ms()
        for object_id, size_bytes, references in plan.objects:
            objects.write_object(
                connection,
                object_id,
                state="committed",
                kind="segment",
                size_bytes=size_bytes,
                extents=references,
                now_ms=now_ms,
            )
        for part in plan.partitions:
            key = (plan.topic.topic_id, part.partition)
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
        switches.delete_request(connection, plan.topic.topic_id)
        self._change(connection, plan.image)
