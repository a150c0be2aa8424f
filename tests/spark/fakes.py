"""A log in memory, for what the driver decides before any byte is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import pack

from penstock.base.ids import TopicPartition
from penstock.records.extents import EARLIEST, LATEST, Extent, file_extent
from penstock.records.transactions import AbortedRange
from penstock.spark.reads.extents import PartitionExtents
from penstock.spark.reads.log import TopicState


@dataclass
class FakeTopic:
    topic_id: str
    bounds: dict[int, tuple[int, int]]
    times: dict[int, Mapping[int, int]] = field(default_factory=dict)


@dataclass
class FakeLog:
    """`penstock.spark.reads.log.Log` over dictionaries; counts what it is asked.

    `open_records` are those behind the end of a partition, of transactions that are open.
    """

    by_name: dict[str, FakeTopic]
    requests: int = 0
    open_records: int = 0
    replicas: int = 1
    pauses: int = 0

    def topics(self, names: tuple[str, ...] | None) -> Mapping[str, TopicState]:
        return {
            name: TopicState(
                topic_id=topic.topic_id,
                leader_epochs=dict.fromkeys(topic.bounds, 7),
                replicas=self.replicas,
            )
            for name, topic in self.by_name.items()
            if names is None or name in names
        }

    def offsets(self, topic: str, at: int) -> Mapping[int, int]:
        self.requests += 1
        found = self.by_name[topic]
        if at in (EARLIEST, LATEST):
            return {index: bound[at - EARLIEST] for index, bound in found.bounds.items()}
        return {index: found.times.get(at, {}).get(index, -1) for index in found.bounds}

    def pause(self, seconds: float) -> None:
        self.pauses += 1

    def written(self, topic: str) -> Mapping[int, int]:
        bounds = self.by_name[topic].bounds
        return {index: end + self.open_records for index, (_, end) in bounds.items()}


@dataclass
class FakeExtents:
    """`ExtentSource` with batches of a fixed number of records and bytes in one file."""

    batch_records: int = 10
    record_bytes: int = 1_000
    requests: int = 0
    aborted: tuple[AbortedRange, ...] = ()

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        self.requests += 1
        low = start // self.batch_records * self.batch_records
        high = -(-end // self.batch_records) * self.batch_records
        extent = file_extent(
            f"/log/{at}",
            byte_offset=low * self.record_bytes,
            size_bytes=(high - low) * self.record_bytes,
            base_offset=low,
            next_offset=high,
        )
        return PartitionExtents(
            topic_id="id", log_start_offset=0, extents=(extent,), aborted=self.aborted
        )


def object_extent(
    object_id: int, base: int, *batches: tuple[int, int], byte_offset: int = 24
) -> Extent:
    """Batches of (bytes, offsets)."""
    return Extent(
        object_id, f"wal/{object_id}", "wal", byte_offset, sum(size for size, _ in batches),
        base, base + sum(count for _, count in batches), 7, -1,
        b"".join(pack("<ii", *batch) for batch in batches),
    )  # fmt: skip
