"""Topics that become diskless, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.control import diskless_switch_rules as switch_rules
from penstock.control.diskless_rules import PartitionRow, ProducerKey
from penstock.control.diskless_switch_values import (
    RunningSwitch,
    SwitchRequest,
    SwitchShare,
    TopicSwitch,
)
from penstock.control.diskless_values import DisklessExtent, PartitionKey
from penstock.control.errors import ObjectLeaseLost
from penstock.control.values import MetadataImage, SinkCommit, Topic
from penstock.records.idempotence import Producer

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.control.memory_diskless import StoredObject


class MemoryDisklessSwitch:
    """What the switch of a topic asks for."""

    _image: MetadataImage
    _clock: Clock
    _sinks: dict[str, SinkCommit]
    _objects: dict[int, StoredObject]
    _rows: dict[PartitionKey, PartitionRow]
    _extents: dict[PartitionKey, list[DisklessExtent]]
    _states: dict[ProducerKey, Producer]

    def __init__(self) -> None:
        self._switches: dict[UUID, SwitchRequest] = {}
        self._shares: dict[UUID, dict[int, SwitchShare]] = {}

    async def renew_leases(self, object_ids: Sequence[int]) -> None:
        for object_id in object_ids:
            row = self._objects.get(object_id)
            if row is None or row.state != "pending":
                raise ObjectLeaseLost(object_id)
            row.changed_ms = self._clock.now_ms()

    async def open_switch(self, request: SwitchRequest) -> SwitchRequest:
        found = self._switches.get(request.topic_id)
        if found == request:
            return found
        first = switch_rules.check_request(self._image, request, found)
        if first is None:
            self._switches[request.topic_id] = request
            self._shares[request.topic_id] = {}
        return first or request

    async def running_switches(self) -> list[RunningSwitch]:
        return [
            RunningSwitch(
                request,
                tuple(
                    replace(share, partitions=())
                    for _, share in sorted(self._shares[topic_id].items())
                ),
            )
            for topic_id, request in self._switches.items()
        ]

    async def join_switch(self, request: SwitchRequest, share: SwitchShare) -> None:
        switch_rules.check_share(request, self._switches.get(request.topic_id), share)
        self._shares[request.topic_id][share.broker_id] = share

    async def close_switch(self, request: SwitchRequest) -> None:
        if self._switches.get(request.topic_id) == request:
            self._forget(request.topic_id)

    def _forget(self, topic_id: UUID) -> None:
        self._switches.pop(topic_id, None)
        self._shares.pop(topic_id, None)

    async def switch_topic(self, switch: TopicSwitch) -> Topic:
        switch_rules.check_partitions(switch.topic_id, switch.partitions)
        shares = switch_rules.all_shares(
            switch,
            self._switches.get(switch.topic_id),
            self._shares.get(switch.topic_id, {}).values(),
        )
        plan = switch_rules.plan_switch(
            self._image,
            switch,
            shares,
            states={object_id: row.state for object_id, row in self._objects.items()},
            sinks=self._sinks.values(),
        )
        if plan.is_made:
            return plan.topic
        self._image, now_ms = plan.image, self._clock.now_ms()
        for object_id, size_bytes, references in plan.objects:
            row = self._objects[object_id]
            row.state, row.kind, row.changed_ms = "committed", "segment", now_ms
            row.size_bytes, row.references = size_bytes, references
        self._rows.update(plan.rows)
        for part in plan.partitions:
            key = (switch.topic_id, part.partition)
            self._extents[key] = list(part.extents)
            for producer_id, state in part.producers.items():
                self._states[*key, producer_id] = state._replace(seen_ms=now_ms)
        self._forget(switch.topic_id)
        return plan.topic
