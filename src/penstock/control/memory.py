"""The control plane in memory: for tests, and the plainest reading of the port."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.control import rules, sink_rules
from penstock.control.memory_diskless import MemoryDiskless
from penstock.control.port import MarksListener
from penstock.control.values import (
    Broker,
    CommittedOffset,
    GroupRecord,
    MetadataImage,
    SinkCommit,
    Topic,
)


class MemoryControlPlane(MemoryDiskless):
    """Holds everything in this object; nothing outlives it."""

    def __init__(
        self,
        *,
        cluster_id: str = "penstock-in-memory",
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        super().__init__(clock=clock, randomness=randomness)
        self._image = MetadataImage(version=0, cluster_id=cluster_id)
        self._broker_epochs: dict[int, int] = {}
        self._renewed_ms: dict[int, int] = {}
        self._next_producer_id = 0
        self._offsets: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self._groups: dict[str, GroupRecord] = {}
        self._highest_group_version = 0

    async def start(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def ping(self, within_seconds: float) -> None:
        """There is nothing that could be away."""

    async def image(self) -> MetadataImage:
        return self._image

    def watch(self, on_image: Callable[[], None], on_marks: MarksListener) -> None:
        """Nobody else changes anything here."""

    async def register_broker(
        self, *, broker_id: int, host: str, port: int, rack: str | None, incarnation: UUID
    ) -> Broker:
        self._image, broker = rules.register_broker(
            self._image,
            broker_id=broker_id,
            host=host,
            port=port,
            rack=rack,
            incarnation=incarnation,
            highest_epoch=self._broker_epochs.get(broker_id, 0),
        )
        self._broker_epochs[broker_id] = broker.epoch
        self._renewed_ms[broker_id] = self._clock.now_ms()
        return broker

    async def unregister_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        self._image = rules.unregister_broker(
            self._image, broker_id=broker_id, incarnation=incarnation
        )

    async def renew_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        rules.check_incarnation(self._image, broker_id=broker_id, incarnation=incarnation)
        self._renewed_ms[broker_id] = self._clock.now_ms()

    async def expire_brokers(self, timeout_ms: int) -> list[int]:
        before_ms = self._clock.now_ms() - timeout_ms
        known = [broker.broker_id for broker in self._image.brokers]
        expired = [broker_id for broker_id in known if self._renewed_ms[broker_id] < before_ms]
        self._image = rules.expire_brokers(self._image, expired)
        return expired

    async def create_topic(
        self,
        *,
        name: str,
        topic_id: UUID,
        partitions: Sequence[Sequence[int]],
        configs: Mapping[str, str],
        internal: bool = False,
    ) -> Topic:
        self._image, topic = rules.create_topic(
            self._image,
            name=name,
            topic_id=topic_id,
            partitions=partitions,
            configs=configs,
            internal=internal,
        )
        self._forget_offsets(name)
        return topic

    async def delete_topic(self, topic_id: UUID) -> Topic:
        self._image, topic = rules.delete_topic(self._image, topic_id)
        self._forget_offsets(topic.name)
        return topic

    async def create_partitions(
        self, *, topic_id: UUID, expected_count: int, new: Sequence[Sequence[int]]
    ) -> Topic:
        self._image, topic = rules.create_partitions(
            self._image, topic_id=topic_id, expected_count=expected_count, new=new
        )
        return topic

    async def set_topic_configs(
        self, *, topic_id: UUID, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> Topic:
        self._image, topic = rules.set_topic_configs(
            self._image, topic_id=topic_id, configs=configs, expected=expected
        )
        return topic

    async def set_broker_configs(
        self, *, broker: str, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> None:
        self._image = rules.set_broker_configs(
            self._image, broker=broker, configs=configs, expected=expected
        )

    async def allocate_producer_ids(self, count: int) -> range:
        allocated = rules.producer_ids(self._next_producer_id, count)
        self._next_producer_id = allocated.stop
        return allocated

    async def commit_offsets(
        self,
        *,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        membership: int | None = None,
    ) -> None:
        rules.check_membership(self._image, membership)
        current = rules.current_offsets(self._image, offsets)
        known = self._offsets.setdefault(group_id, {})
        known.update({(one.topic, one.partition): one for one in current})

    async def committed_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> list[CommittedOffset]:
        known = self._offsets.get(group_id, {})
        keys = sorted(known if partitions is None else set(partitions) & known.keys())
        return [known[key] for key in keys]

    async def delete_offsets(
        self,
        *,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        membership: int | None = None,
    ) -> None:
        rules.check_offset_count(len(partitions))
        rules.check_membership(self._image, membership)
        known = self._offsets.get(group_id, {})
        for key in partitions:
            known.pop(key, None)

    async def offset_group_ids(self) -> list[str]:
        return sorted(group_id for group_id, offsets in self._offsets.items() if offsets)

    async def save_group(
        self, record: GroupRecord, *, expected_version: int, membership: int | None = None
    ) -> int:
        rules.check_membership(self._image, membership)
        known = self._groups.get(record.group_id)
        version = rules.next_group_version(
            record,
            found=known.version if known else 0,
            expected=expected_version,
            highest=self._highest_group_version,
        )
        self._highest_group_version = version
        self._groups[record.group_id] = dataclasses.replace(record, version=version)
        return version

    async def groups(self) -> list[GroupRecord]:
        return [self._groups[group_id] for group_id in sorted(self._groups)]

    async def delete_group(self, group_id: str, *, membership: int | None = None) -> None:
        rules.check_membership(self._image, membership)
        self._groups.pop(group_id, None)
        self._offsets.pop(group_id, None)

    async def expire_offsets(self, *, now_ms: int, limit: int) -> int:
        expired = [
            (offsets, key)
            for offsets in self._offsets.values()
            for key, one in offsets.items()
            if one.expire_timestamp_ms is not None and one.expire_timestamp_ms <= now_ms
        ][:limit]
        for offsets, key in expired:
            del offsets[key]
        return len(expired)

    async def sink_commit(self, query_id: str) -> SinkCommit | None:
        return self._sinks.get(query_id)

    async def save_sink_commit(self, record: SinkCommit, *, expected_version: int) -> int:
        return self._save_sink(record, self._next_sink_version(record, expected_version)).version

    async def sink_commits(self) -> list[SinkCommit]:
        return [
            dataclasses.replace(self._sinks[query_id], manifest=b"")
            for query_id in sorted(self._sinks)
        ]

    async def delete_sink_commit(self, query_id: str, *, expected_version: int) -> None:
        found = self._sinks.get(query_id)
        if found is not None:
            sink_rules.check_sink_version(query_id, found=found, expected=expected_version)
            del self._sinks[query_id]

    def _forget_offsets(self, topic: str) -> None:
        for offsets in self._offsets.values():
            for key in [key for key in offsets if key[0] == topic]:
                del offsets[key]
