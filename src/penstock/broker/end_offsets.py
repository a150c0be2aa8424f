"""End offsets of partitions, from this broker or by ListOffsets requests to other leaders."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.broker.coordination.transaction_link import by_topic
from penstock.records.positions import LATEST

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.peers import Peers

logger = logging.getLogger(__name__)

ASK_SECONDS: Final = 3.0
"""Timeout of ListOffsets requests to other leaders. Without a response the offset is unknown."""

RECENT_SECONDS: Final = 15.0
"""Age up to which `recent` reuses the responses of other leaders, and missing responses."""


class EndOffsets:
    """Look-up of end offsets at this broker and other leaders. Belongs to the event loop."""

    def __init__(
        self, node_id: int, cluster: ClusterMetadata, partitions: PartitionRegistry, peers: Peers
    ) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._partitions = partitions
        self._peers = peers
        self._reported: Mapping[TopicPartition, int] = {}
        self._asked: frozenset[TopicPartition] = frozenset()
        self._asked_at = -math.inf

    async def recent(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the known end offsets; those from other leaders may be `RECENT_SECONDS` old."""
        requested = frozenset(topic_partitions)
        elsewhere = frozenset(self._elsewhere(requested))
        now = asyncio.get_running_loop().time()
        if now - self._asked_at >= RECENT_SECONDS or not elsewhere <= self._asked:
            self._asked, self._asked_at = elsewhere, now
            self._reported = await self.of(elsewhere)
        return self._here(requested) | {
            topic_partition: end
            for topic_partition, end in self._reported.items()
            if topic_partition in elsewhere
        }

    async def of(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offsets, without those that no leader returns in `ASK_SECONDS`."""
        requested = frozenset(topic_partitions)
        found = self._here(requested)
        led: dict[int, list[TopicPartition]] = {}
        for topic_partition, leader in self._elsewhere(requested).items():
            led.setdefault(leader, []).append(topic_partition)
        for ends in await asyncio.gather(*[self._ask(*asked) for asked in led.items()]):
            found |= ends
        return found

    def _here(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        ends = [
            (topic_partition, self._end(topic_partition)) for topic_partition in topic_partitions
        ]
        return {topic_partition: end for topic_partition, end in ends if end is not None}

    def _elsewhere(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the leader of each partition whose end offset this broker does not have."""
        leaders = [
            (topic_partition, self._leader(topic_partition))
            for topic_partition in topic_partitions
            if self._end(topic_partition) is None
        ]
        return {
            topic_partition: leader
            for topic_partition, leader in leaders
            if leader is not None and leader != self._node_id
        }

    def _end(self, topic_partition: TopicPartition) -> int | None:
        return self._partitions.high_watermark(topic_partition.topic, topic_partition.partition)

    def _leader(self, topic_partition: TopicPartition) -> int | None:
        topic = self._cluster.image.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition].leader

    async def _ask(
        self, leader: int, topic_partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": index, "timestamp": LATEST} for index in indexes
                    ],
                }
                for name, indexes in by_topic(topic_partitions).items()
            ],
        }
        try:
            async with asyncio.timeout(ASK_SECONDS):
                answer: Any = await self._peers.call(leader, "ListOffsets", body)
        except (PenstockError, TimeoutError) as error:
            logger.warning(
                "broker %d did not report the end offsets of its partitions: %s", leader, error
            )
            return {}
        return {
            TopicPartition(topic.name, int(row.partition_index)): int(row.offset)
            for topic in answer.topics
            for row in topic.partitions
            if not row.error_code
        }
