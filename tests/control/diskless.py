"""Fixtures of diskless topics: entries, written objects, and a settable clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from typing import NamedTuple
from uuid import UUID

from penstock.control import (
    BatchEntry,
    CommitAnswer,
    ControlPlane,
    DisklessPlane,
    ObjectCommit,
    ObjectLease,
)
from penstock.records.appends import AppendResult

BROKER = 1
INCARNATION = UUID(int=11)
TOPIC = UUID(int=7)
OTHER = UUID(int=8)
LOCAL = UUID(int=9)
DISKLESS: Mapping[str, str] = {"diskless.enable": "true"}


Plane = ControlPlane
"""Both ports."""


class SetClock:
    """Shows what it is set to."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Sequenced(NamedTuple):
    """An idempotent producer and the first sequence of an entry."""

    producer_id: int
    sequence: int
    epoch: int = 0


async def furnish(plane: Plane, *, partitions: int = 3) -> None:
    """A broker, two diskless topics and a local one."""
    await plane.register_broker(
        broker_id=BROKER, host="h", port=9, rack=None, incarnation=INCARNATION
    )
    for name, topic_id, configs in (
        ("flights", TOPIC, DISKLESS),
        ("other", OTHER, DISKLESS),
        ("local", LOCAL, {}),
    ):
        await plane.create_topic(
            name=name, topic_id=topic_id, partitions=[[BROKER]] * partitions, configs=configs
        )


def entry(
    partition: int = 0,
    *batches: tuple[int, int],
    at: int = 0,
    by: Sequenced | None = None,
    topic_id: UUID = TOPIC,
    timestamp: int = 500,
    append_time: bool = False,
) -> BatchEntry:
    """An entry of batches of (bytes, offsets); of one of 100 bytes and 5 offsets if none."""
    layout = batches or ((100, 5),)
    count = sum(offsets for _, offsets in layout)
    made = BatchEntry(
        topic_id=topic_id,
        partition=partition,
        byte_offset=at,
        size_bytes=sum(size for size, _ in layout),
        offset_count=count,
        max_timestamp=timestamp,
        append_time=append_time,
        layout=b"".join(pack("<ii", *batch) for batch in layout),
    )
    if by is None:
        return made
    return made._replace(
        producer_id=by.producer_id,
        producer_epoch=by.epoch,
        base_sequence=by.sequence,
        last_sequence=(by.sequence + count - 1) % 2**31,
    )


def written(
    lease: ObjectLease, entries: Sequence[BatchEntry], *, now_ms: int = 900, spread: bool = False
) -> ObjectCommit:
    """An object in which the entries lie one behind the other, or apart where `spread`."""
    placed, end = [], 10
    for batches in entries:
        placed.append(batches._replace(byte_offset=end))
        end += batches.size_bytes + spread
    return ObjectCommit(
        object_id=lease.object_id, size_bytes=end + 30, entries=tuple(placed), now_ms=now_ms
    )


async def lease(plane: DisklessPlane, count: int = 1) -> list[ObjectLease]:
    return await plane.lease_objects(broker_id=BROKER, incarnation=INCARNATION, count=count)


async def put(
    plane: DisklessPlane, *entries: BatchEntry, now_ms: int = 900, spread: bool = False
) -> CommitAnswer:
    """Commit one object with these entries."""
    [key] = await lease(plane)
    return await plane.commit_object(written(key, entries, now_ms=now_ms, spread=spread))


async def wide_topic(plane: Plane, partitions: int) -> UUID:
    """A diskless topic with a partition for each case of a table."""
    topic_id = UUID(int=1000 + partitions)
    await plane.create_topic(
        name=f"wide-{partitions}",
        topic_id=topic_id,
        partitions=[[BROKER]] * partitions,
        configs=DISKLESS,
    )
    return topic_id


def bases(answer: CommitAnswer) -> list[int]:
    return [placed.base_offset for placed in answer.placed]


def errors(answer: CommitAnswer) -> list[str | None]:
    return [placed.error for placed in answer.placed]


def plain(base_offset: int, start: int = 0) -> AppendResult:
    """The place of an entry that was accepted and keeps its own times."""
    return AppendResult(base_offset, -1, start)
