"""A local topic becomes diskless: one contract for all forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from struct import pack
from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.control import (
    FindRequest,
    InvalidCommit,
    MigratedObject,
    MigratedPartition,
    MigrationRefused,
    ObjectLease,
    ObjectLeaseLost,
    ObjectTotals,
    SinkCommit,
    SinkTarget,
    StaleBroker,
    StaleTopic,
    TopicMigration,
    UnknownTopic,
    Watermarks,
)
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer, ProducerBatch
from tests.control.diskless import (
    BROKER,
    DISKLESS,
    INCARNATION,
    LOCAL,
    Plane,
    Sequenced,
    entry,
    errors,
    put,
)

PRODUCER = Producer(2, (ProducerBatch(0, 4, 9, 4, 700),), 1)
FOREVER_MS = 10**9


def extent(key: ObjectLease, base_offset: int, at: int = 0, count: int = 5) -> Extent:
    """Return an extent of one batch of 100 bytes."""
    return Extent(
        key.object_id, key.key, "segment", at, 100, base_offset, base_offset + count, 700, -1,
        pack("<ii", 100, count),
    )  # fmt: skip


async def copied(plane: Plane, partition: int = 0, *, start: int = 0) -> MigratedPartition:
    """A log of two batches at the offsets 5 to 14, in two objects."""
    first = await plane.lease_segment(LOCAL, partition, base_offset=5)
    second = await plane.lease_segment(LOCAL, partition, base_offset=10)
    return MigratedPartition(
        partition=partition,
        leader_epoch=0,
        log_start_offset=start or 5,
        high_watermark=15,
        objects=(MigratedObject(first.object_id, 100), MigratedObject(second.object_id, 120)),
        extents=(extent(first, 5), extent(second, 10, at=20)),
        producers={31: PRODUCER},
    )


def empty(partition: int) -> MigratedPartition:
    return MigratedPartition(
        partition=partition, leader_epoch=0, log_start_offset=3, high_watermark=3
    )


def switch_of(*partitions: MigratedPartition) -> TopicMigration:
    return TopicMigration(
        topic_id=LOCAL,
        broker_id=BROKER,
        incarnation=INCARNATION,
        expected={},
        configs={**DISKLESS, "retention.ms": "5"},
        partitions=partitions,
    )


async def ready(plane: Plane) -> TopicMigration:
    return switch_of(await copied(plane, start=7), empty(1), empty(2))


async def test_log_is_found_where_it_was(plane: Plane) -> None:
    topic = await plane.migrate_topic(await ready(plane))
    image = await plane.image()
    assert image.topics["local"] == topic
    assert topic.configs == {"diskless.enable": "true", "retention.ms": "5"}
    assert [partition.leader_epoch for partition in topic.partitions] == [1, 1, 1]
    assert await plane.watermarks([(LOCAL, 0), (LOCAL, 1)]) == [
        Watermarks(7, 15, 200),
        Watermarks(3, 3, 0),
    ]
    [found] = await plane.find([FindRequest(LOCAL, 0, 7, 10_000)])
    assert [
        (found_extent.base_offset, found_extent.next_offset, found_extent.kind)
        for found_extent in found.extents
    ] == [
        (5, 10, "segment"),
        (10, 15, "segment"),
    ]
    assert ObjectTotals("committed", "segment", 2, 220) in await plane.object_totals()


async def test_retry_across_the_switch_is_a_duplicate(plane: Plane) -> None:
    await plane.migrate_topic(await ready(plane))
    answer = await put(
        plane,
        entry(0, (80, 5), by=Sequenced(31, 0, epoch=2), topic_id=LOCAL),
        entry(0, (80, 5), by=Sequenced(31, 5, epoch=2), topic_id=LOCAL),
        entry(1, (80, 2), topic_id=LOCAL),
    )
    assert [(result.base_offset, result.duplicate) for result in answer.placed] == [
        (5, True),
        (15, False),
        (3, False),
    ]


async def test_switch_can_be_repeated(plane: Plane) -> None:
    migration = await ready(plane)
    first = await plane.migrate_topic(migration)
    before = await plane.image()
    assert await plane.migrate_topic(migration) == first
    assert await plane.image() == before


async def test_other_switch_of_a_diskless_topic_is_refused(plane: Plane) -> None:
    await plane.migrate_topic(await ready(plane))
    with pytest.raises(StaleTopic, match=r"diskless\.enable"):
        await plane.migrate_topic(await ready(plane))


async def assert_local(plane: Plane) -> None:
    """Assert that a rejected migration left no rows."""
    image = await plane.image()
    assert image.topics["local"].configs == {}
    assert [partition.leader_epoch for partition in image.topics["local"].partitions] == [0, 0, 0]
    assert await plane.watermarks([(LOCAL, 0)]) == [Watermarks(0, 0, 0)]
    answer = await put(plane, entry(topic_id=LOCAL))
    assert errors(answer) != [None]


async def test_stale_switches_change_nothing(plane: Plane) -> None:
    migration = await ready(plane)
    part = migration.partitions[0]
    for wrong, error in (
        (replace(migration, expected={"retention.ms": "1"}), StaleTopic),
        (replace(migration, partitions=migration.partitions[:2]), StaleTopic),
        (
            replace(
                migration, partitions=(replace(part, leader_epoch=1), *migration.partitions[1:])
            ),
            StaleTopic,
        ),
        (replace(migration, incarnation=UUID(int=99)), StaleBroker),
        (replace(migration, topic_id=UUID(int=77)), UnknownTopic),
    ):
        with pytest.raises(error):
            await plane.migrate_topic(wrong)
    await assert_local(plane)


async def test_logs_that_do_not_add_up_are_refused(plane: Plane) -> None:
    migration = await ready(plane)
    part = migration.partitions[0]
    first, second = part.extents
    for wrong in (
        replace(part, log_start_offset=4),
        replace(part, high_watermark=16),
        replace(part, extents=(second,)),
        replace(part, extents=(first, second._replace(base_offset=11))),
        replace(part, extents=(first, second._replace(byte_offset=21))),
        replace(part, extents=(first._replace(layout=b""), second)),
        replace(part, objects=part.objects[:1]),
    ):
        with pytest.raises(InvalidCommit):
            await plane.migrate_topic(
                replace(migration, partitions=(wrong, *migration.partitions[1:]))
            )
    await assert_local(plane)


async def test_swept_copy_is_refused(plane: Plane) -> None:
    migration = await ready(plane)
    await plane.mark_for_deletion(pending_grace_ms=0, unreferenced_grace_ms=FOREVER_MS, limit=99)
    with pytest.raises(ObjectLeaseLost):
        await plane.migrate_topic(migration)
    await assert_local(plane)


async def test_renewed_leases_are_not_swept(
    plane: Plane, elapse: Callable[[int], Awaitable[None]]
) -> None:
    old, young = [(await copied(plane)).objects for _ in range(2)]
    await elapse(100_000)
    await plane.renew_leases([leased.object_id for leased in young])
    swept = await plane.mark_for_deletion(
        pending_grace_ms=50_000, unreferenced_grace_ms=FOREVER_MS, limit=99
    )
    assert {leased.object_id for leased in old} <= {marked.object_id for marked in swept}
    assert not {leased.object_id for leased in young} & {marked.object_id for marked in swept}
    with pytest.raises(ObjectLeaseLost):
        await plane.renew_leases([young[0].object_id, old[0].object_id])


async def test_unfinished_sink_commit_is_waited_for(plane: Plane) -> None:
    target = SinkTarget(
        topic="local", topic_id=LOCAL, partition=0, producer_id=1, base_sequence=0, records=1
    )
    intent = SinkCommit(
        query_id="q", owner=None, batch_id=3, state="intent", targets=(target,), manifest=b"m"
    )
    version = await plane.save_sink_commit(intent, expected_version=0)
    migration = await ready(plane)
    with pytest.raises(MigrationRefused, match="'q' has not finished its commit of batch 3"):
        await plane.migrate_topic(migration)
    await assert_local(plane)
    done = replace(intent, state="done", manifest=b"")
    await plane.save_sink_commit(done, expected_version=version)
    assert (await plane.migrate_topic(migration)).configs == migration.configs
