"""Facts about partitions at their leaders, for the lag of groups: end offsets and unread records.

Partitions that this broker leads are read in memory, others by requests to their leaders. The end
is the last stable offset, because consumers of transactions cannot read records above it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.broker.net.errors import error_number
from penstock.broker.transactions.link import ASK_SECONDS
from penstock.records.extents import EARLIEST, READ_COMMITTED
from penstock.records.header import HEADER_BYTES, decode_header
from penstock.storage.files.values import Later

if TYPE_CHECKING:
    from penstock.base.ids import TopicPartition
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.peers import Peers
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.transactions.link import EndOffsets
    from penstock.partitions import Partition

logger = logging.getLogger(__name__)

FETCH_WAIT_MS: Final = 500
"""Time for a leader to load the first unread record from an object store or an archive."""
FETCH_BYTES: Final = 1
"""Bytes to fetch of a partition: one batch, whatever its size."""
CONTROL_BATCHES_MAX: Final = 16
"""Batches without records, such as transaction markers, that are skipped to find a record."""


class Unread(Struct, frozen=True, kw_only=True):
    """First unread record of a group in a partition.

    `timestamp_ms` is its timestamp; -1 if it is unknown. `start` is the first offset of the log.
    `empty` is true if only batches without records are left, so that the group has read everything.
    A record inside of a batch counts with the timestamp of the batch's first record.
    """

    timestamp_ms: int = -1
    start: int | None = None
    empty: bool = False


NOTHING_KNOWN: Final = Unread()


class GroupLogs(Struct, frozen=True, kw_only=True):
    """Look-up of facts about partitions; belongs to the event loop."""

    cluster: ClusterMetadata
    partitions: PartitionRegistry
    peers: Peers
    end_offsets: EndOffsets

    def here(self, where: TopicPartition) -> Partition | None:
        """Return a partition whose offsets this broker knows; None for others."""
        if self.partitions.high_watermark(where.topic, where.partition) is None:
            return None
        return self.partitions.topics[where.topic].partitions[where.partition]

    def end_here(self, where: TopicPartition) -> int | None:
        partition = self.here(where)
        return None if partition is None else partition.last_stable_offset

    async def ends_elsewhere(
        self, places: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the ends of partitions that this broker does not know, if leaders respond."""
        return await self.end_offsets.of(places, READ_COMMITTED)

    async def unread(self, where: TopicPartition, offset: int) -> Unread:
        """Return the first record of a partition that a group with a committed offset reads."""
        for _ in range(CONTROL_BATCHES_MAX):
            partition = self.here(where)
            found = None if partition is None else _batches(partition, offset)
            if found is None:
                found = await self._fetched(where, offset)
            if found is None:
                return NOTHING_KNOWN
            records, start, end = found
            if offset >= end:
                return Unread(start=start, empty=True)
            if offset < start and not records:
                offset = start
                continue
            offset = max(offset, start)
            at, after = 0, offset
            while at + HEADER_BYTES <= len(records):
                header = decode_header(records, at)
                if header.next_offset > offset and header.record_count and not header.is_control:
                    exact = header.delete_horizon_ms is None and header.timestamp_type == 0
                    timestamp = header.base_timestamp if exact else header.max_timestamp
                    return Unread(timestamp_ms=timestamp, start=start)
                at, after = at + header.size_bytes, max(after, header.next_offset)
            if after == offset:
                return Unread(start=start)
            offset = after
        return NOTHING_KNOWN

    async def _fetched(
        self, where: TopicPartition, offset: int
    ) -> tuple[memoryview, int, int] | None:
        """Return records from `offset`, the log's start and its end, as the leader sends them."""
        leader, topic = self.end_offsets.leader(where), self.cluster.image.topics.get(where.topic)
        if leader is None or topic is None:
            return None
        partition = {
            "partition": where.partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": FETCH_BYTES,
        }
        body = {
            "replica_id": -1,
            "max_wait": FETCH_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES,
            "isolation_level": READ_COMMITTED,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {"topic_id": topic.topic_id, "topic": where.topic, "partitions": [partition]}
            ],
            "forgotten_topics_data": (),
            "rack_id": "",
        }
        try:
            async with asyncio.timeout(ASK_SECONDS):
                answer: Any = await self.peers.call(leader, "Fetch", body)
        except (PenstockError, TimeoutError) as error:
            logger.warning("broker %d did not send the first unread record of %s: %s", leader,
                           where, error)  # fmt: skip
            return None
        if answer.error_code:
            return None
        row = answer.responses[0].partitions[0]
        if int(row.error_code) == error_number("offset_out_of_range"):
            starts = await self.end_offsets.ask(leader, [where], timestamp=EARLIEST)
            start = starts.get(where, offset)
            return (memoryview(b""), start, start + 1) if offset < start else None
        if row.error_code:
            return None
        start = max(0, int(row.log_start_offset))
        return memoryview(row.records or b""), start, int(row.last_stable_offset)


def _batches(partition: Partition, offset: int) -> tuple[memoryview, int, int] | None:
    """Return the first batch at `offset`, the log's start and its end; None if it must be loaded
    first.
    """
    start, end = partition.log_start_offset, partition.last_stable_offset
    if offset >= end:
        return memoryview(b""), start, end
    try:
        read = partition.read(
            max(offset, start), max_bytes=FETCH_BYTES, end_offset=end, at_least_one=True
        )
    except PenstockError:
        return None
    if isinstance(read, Later):
        return None
    return memoryview(b"".join(read.buffers)), start, end
