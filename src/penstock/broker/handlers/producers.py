"""DescribeProducers: the idempotent producers that a partition remembers.

Source: KIP-664.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.base.errors import PenstockError
from penstock.broker.connection import RequestContext
from penstock.broker.errors import error_of

if TYPE_CHECKING:
    from penstock.broker.partition_registry import PartitionRegistry

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these handlers use."""

    partitions: PartitionRegistry


async def describe_producers(parts: Parts, context: RequestContext, request: Any) -> Entry:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    await _described(parts, topic.name, index) for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
    }


async def _described(parts: Parts, topic: str, index: int) -> Entry:
    try:
        producers = await parts.partitions.partition(topic, index).producers()
    except PenstockError as error:
        number, message = error_of(error)
        return {
            "partition_index": index,
            "error_code": number,
            "error_message": message,
            "active_producers": (),
        }
    return {
        "partition_index": index,
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
