"""ListOffsets, OffsetForLeaderEpoch and DescribeProducers.

Timestamps below 0 have special meanings (`records/extents.py`). If the version of the request
does not include such a timestamp, the partition returns UNSUPPORTED_VERSION, as in Kafka.

Source: `ListOffsetsRequest.json`; KIP-79, KIP-101, KIP-207, KIP-320, KIP-405, KIP-734.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.broker.metadata.leaders import check_epoch
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import error_fields, error_of
from penstock.partitions import look_up_watermarks
from penstock.records.extents import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    READ_COMMITTED,
)
from penstock.wire.kafka.framing import UnsupportedVersion

if TYPE_CHECKING:
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.partitions import Partition
    from penstock.storage import OffsetAndTimestamp


logger = logging.getLogger(__name__)

SPECIAL_FROM: Final[Mapping[int, int]] = {
    LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip
"""First version of ListOffsets with each special timestamp."""


class ListOffsets(Struct, frozen=True, kw_only=True):
    partitions: PartitionRegistry

    async def list_offsets(self, context: RequestContext, request: Any) -> dict[str, Any]:
        """Return for each partition the offset at a timestamp, or an error.

        An offset has the record's timestamp and leader epoch.
        """
        committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
        served = _Served(self.partitions)
        await served.look_up(
            (topic.name, item.partition_index)
            for topic in request.topics
            for item in topic.partitions
        )
        topics = []
        later: list[tuple[dict[str, Any], Awaitable[OffsetAndTimestamp | None]]] = []
        for topic in request.topics:
            partitions = []
            for item in topic.partitions:
                answer = {"partition_index": item.partition_index}
                partitions.append(answer)
                try:
                    _check_known(item.timestamp, context.version)
                    partition = served.partition(topic.name, item.partition_index, item)
                    found = partition.position(item.timestamp, committed=committed)
                except Exception as error:
                    answer["error_code"] = _error(error)
                    continue
                if isinstance(found, Awaitable):
                    later.append((answer, found))
                else:
                    _set_position(answer, found)
            topics.append({"name": topic.name, "partitions": partitions})
        ended = await asyncio.gather(*(position for _, position in later), return_exceptions=True)
        for (answer, _), outcome in zip(later, ended, strict=True):
            if isinstance(outcome, BaseException):
                answer["error_code"] = _error(outcome)
            else:
                _set_position(answer, outcome)
        return {"topics": topics}

    async def offset_for_leader_epoch(
        self, context: RequestContext, request: Any
    ) -> dict[str, Any]:
        """Return for each partition the end offset of the requested leader epoch, or an error."""
        served = _Served(self.partitions)
        await served.look_up(
            (topic.topic, item.partition) for topic in request.topics for item in topic.partitions
        )
        topics = []
        for topic in request.topics:
            partitions = []
            for item in topic.partitions:
                answer = {"partition": item.partition}
                try:
                    partition = served.partition(topic.topic, item.partition, item)
                    epoch, end_offset = partition.end_offset_for_epoch(item.leader_epoch)
                    answer |= {"leader_epoch": epoch, "end_offset": end_offset}
                except Exception as error:
                    answer["error_code"] = _error(error)
                partitions.append(answer)
            topics.append({"topic": topic.topic, "partitions": partitions})
        return {"topics": topics}


def _set_position(answer: dict[str, Any], found: OffsetAndTimestamp | None) -> None:
    offset, timestamp, epoch = found or (-1, -1, -1)
    answer |= {"offset": offset, "timestamp": timestamp, "leader_epoch": epoch}


def _check_known(timestamp: int, version: int) -> None:
    """Raise UnsupportedVersion if a request of `version` may not contain a special timestamp."""
    if timestamp < 0 and version < SPECIAL_FROM.get(timestamp, version + 1):
        raise UnsupportedVersion(f"timestamp {timestamp} is not supported in version {version}")


class _Served:
    """Partitions of a request, after a look-up of their high watermarks.

    If the look-up fails, its error is the error of each partition that needs it.
    """

    def __init__(self, partitions: PartitionRegistry) -> None:
        self._partitions = partitions
        self._failed: PenstockError | None = None

    async def look_up(self, asked: Iterable[tuple[str, int]]) -> None:
        topics = self._partitions.topics
        try:
            await look_up_watermarks(
                topics[name].partitions[index]
                for name, index in asked
                if name in topics and 0 <= index < len(topics[name].partitions)
            )
        except PenstockError as error:
            self._failed = error

    def partition(self, topic: str, index: int, item: Any) -> Partition:
        """Return a partition after a check of the leader epoch in its request `item`."""
        partition = self._partitions.partition(topic, index)
        check_epoch(partition, getattr(item, "current_leader_epoch", -1))
        if self._failed is not None and partition.look_up is not None:
            raise self._failed
        return partition


def _error(error: BaseException) -> int:
    if not isinstance(error, PenstockError):
        logger.error("looking up an offset failed", exc_info=error)
    return error_of(error)[0]


# DescribeProducers: the idempotent and transactional producers of partitions (KIP-664).
#
# A follower responds from its own log, which may lag behind the leader's. Such a response has the
# error code 0 and an error message. Penstock's own client (`client/appender.py`) recognises it by
# the message.


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
