"""DescribeProducers: the idempotent and transactional producers of partitions (KIP-664).

A follower responds from its own log, which may lag behind the leader's. Such a response has the
error code 0 and an error message. Penstock's own client (`client/appender.py`) recognises it by the
message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.broker.connection import RequestContext
from penstock.broker.errors import error_fields

if TYPE_CHECKING:
    from penstock.broker.partition_registry import PartitionRegistry

Entry = dict[str, Any]


class Producers(Struct, frozen=True, kw_only=True):
    node_id: int
    partitions: PartitionRegistry

    async def describe_producers(self, context: RequestContext, request: Any) -> Entry:
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        await self._described(topic.name, index)
                        for index in topic.partition_indexes
                    ],
                }
                for topic in request.topics
            ]
        }

    async def _described(self, topic: str, index: int) -> Entry:
        note = None
        try:
            followed = self.partitions.followed(topic, index)
            if followed is None:
                producers = await self.partitions.partition(topic, index).producers()
            else:
                producers = followed.log.producers()
                note = f"broker {self.node_id} is a follower of {topic}-{index}: may be outdated"
        except PenstockError as error:
            return {"partition_index": index, **error_fields(error), "active_producers": ()}
        return {
            "partition_index": index,
            "error_message": note,
            "active_producers": [
                {
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.producer_epoch,
                    "last_sequence": producer.last_sequence,
                    "last_timestamp": producer.last_timestamp,
                    "coordinator_epoch": producer.coordinator_epoch,
                    "current_txn_start_offset": producer.txn_start_offset,
                }
                for producer in producers
            ],
        }
