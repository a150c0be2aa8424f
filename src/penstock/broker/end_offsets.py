"""Ends of partitions for consumers, whichever broker leads them.

A broker knows the ends of the partitions that it leads, and of diskless ones. It asks the leaders
of the others by ListOffsets, all leaders at the same time.
"""

from __future__ import annotations

import asyncio
import logging
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
"""Longest wait for the answers of other leaders; the ends of their partitions are unknown then."""


class EndOffsets:
    """Looks up the ends of partitions, here and at other brokers. Belongs to the event loop."""

    def __init__(
        self, node_id: int, cluster: ClusterMetadata, partitions: PartitionRegistry, peers: Peers
    ) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._partitions = partitions
        self._peers = peers

    async def of(self, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the ends of partitions, without those that no leader reports in time."""
        found: dict[TopicPartition, int] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        for place in places:
            end = self._partitions.high_watermark(place.topic, place.partition)
            leader = self._leader(place) if end is None else self._node_id
            if end is not None:
                found[place] = end
            elif leader not in (None, self._node_id):
                elsewhere.setdefault(leader, []).append(place)
        asked = [self._ask(leader, led) for leader, led in elsewhere.items()]
        for ends in await asyncio.gather(*asked):
            found |= ends
        return found

    def _leader(self, place: TopicPartition) -> int | None:
        topic = self._cluster.image.topics.get(place.topic)
        if topic is None or not 0 <= place.partition < len(topic.partitions):
            return None
        return topic.partitions[place.partition].leader

    async def _ask(self, leader: int, places: list[TopicPartition]) -> dict[TopicPartition, int]:
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
                for name, indexes in by_topic(places).items()
            ],
        }
        try:
            async with asyncio.timeout(ASK_SECONDS):
                answer: Any = await self._peers.call(leader, "ListOffsets", body)
        except (PenstockError, TimeoutError) as error:
            logger.warning("broker %d did not report the ends of its partitions: %s", leader, error)
            return {}
        return {
            TopicPartition(topic.name, int(row.partition_index)): int(row.offset)
            for topic in answer.topics
            for row in topic.partitions
            if not row.error_code
        }
