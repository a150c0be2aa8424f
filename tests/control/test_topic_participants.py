"""A local topic of several leaders becomes diskless: one contract for all forms."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.control import (
    InvalidCommit,
    MigratedObject,
    MigratedPartition,
    MigrationParticipant,
    MigrationRefused,
    MigrationRequest,
    ObjectLeaseLost,
    RunningMigration,
    StaleBroker,
    StaleMigration,
    StaleTopic,
    TopicMigration,
    UnknownTopic,
    Watermarks,
)
from tests.control.diskless import BROKER, DISKLESS, INCARNATION, Plane, Sequenced, entry, put
from tests.control.test_topic_migration import FOREVER_MS, PRODUCER, extent

SPREAD = UUID(int=21)
SECOND, THIRD = 2, 3
PROCESSES = {BROKER: INCARNATION, SECOND: UUID(int=12), THIRD: UUID(int=13)}
LEADERS = (BROKER, SECOND, BROKER, THIRD)
REQUEST = MigrationRequest(SPREAD, UUID(int=100), BROKER, INCARNATION)


async def spread(plane: Plane) -> None:
    """A local topic of four partitions that three brokers lead."""
    for broker_id in (SECOND, THIRD):
        await register(plane, broker_id, PROCESSES[broker_id])
    await plane.create_topic(
        name="spread", topic_id=SPREAD, partitions=[[leader] for leader in LEADERS], configs={}
    )


async def register(plane: Plane, broker_id: int, incarnation: UUID) -> None:
    await plane.register_broker(
        broker_id=broker_id, host="h", port=9, rack=None, incarnation=incarnation
    )


async def participant(plane: Plane, broker_id: int) -> MigrationParticipant:
    """A fenced share: a batch of five records at offset 5 in each partition."""
    parts = []
    for partition, leader in enumerate(LEADERS):
        if leader != broker_id:
            continue
        lease = await plane.lease_segment(SPREAD, partition, base_offset=5)
        parts.append(
            MigratedPartition(
                partition=partition,
                leader_epoch=0,
                log_start_offset=5,
                high_watermark=10,
                objects=(MigratedObject(lease.object_id, 100),),
                extents=(extent(lease, 5),),
                producers={31: PRODUCER._replace(seen_ms=broker_id)},
            )
        )
    return MigrationParticipant(
        broker_id=broker_id,
        incarnation=PROCESSES[broker_id],
        state="fenced",
        partitions=tuple(parts),
    )


def commit(own: MigrationParticipant, request: MigrationRequest | None = REQUEST) -> TopicMigration:
    return TopicMigration(
        topic_id=SPREAD,
        broker_id=own.broker_id,
        incarnation=own.incarnation,
        expected={},
        configs=DISKLESS,
        partitions=own.partitions,
        migration_id=None if request is None else request.migration_id,
    )


async def brought(plane: Plane) -> TopicMigration:
    """The commit of a switch to which all brokers have brought their shares."""
    await spread(plane)
    await plane.open_migration(REQUEST)
    for broker_id in (SECOND, THIRD):
        await plane.join_migration(REQUEST, await participant(plane, broker_id))
    return commit(await participant(plane, BROKER))


async def assert_local(plane: Plane) -> None:
    image = await plane.image()
    assert image.topics["spread"].configs == {}
    assert {partition.leader_epoch for partition in image.topics["spread"].partitions} == {0}
    assert await plane.watermarks([(SPREAD, 1)]) == [Watermarks(0, 0, 0)]


async def test_all_shares_are_committed_at_once(plane: Plane) -> None:
    migration = await brought(plane)
    topic = await plane.migrate_topic(migration)
    assert topic.configs == DISKLESS
    assert [(partition.leader, partition.leader_epoch) for partition in topic.partitions] == [
        (leader, 1) for leader in LEADERS
    ]
    assert (
        await plane.watermarks([(SPREAD, partition) for partition in range(4)])
        == [Watermarks(5, 10, 100)] * 4
    )
    assert await plane.running_migrations() == []
    assert await plane.migrate_topic(migration) == topic
    repeated = Sequenced(31, 0, epoch=2)
    answer = await put(
        plane, *[entry(partition, by=repeated, topic_id=SPREAD) for partition in range(4)]
    )
    assert [(result.base_offset, result.duplicate) for result in answer.placed] == [(5, True)] * 4


async def test_shares_are_seen_as_far_as_they_are(plane: Plane) -> None:
    await spread(plane)
    assert await plane.running_migrations() == []
    assert await plane.open_migration(REQUEST) == REQUEST
    assert await plane.running_migrations() == [RunningMigration(REQUEST, ())]
    early = MigrationParticipant(broker_id=THIRD, incarnation=PROCESSES[THIRD], state="copying")
    failed = MigrationParticipant(
        broker_id=SECOND, incarnation=PROCESSES[SECOND], state="failed", reason="no room"
    )
    await plane.join_migration(REQUEST, early)
    await plane.join_migration(REQUEST, failed)
    assert await plane.running_migrations() == [RunningMigration(REQUEST, (failed, early))]
    fenced = await participant(plane, THIRD)
    await plane.join_migration(REQUEST, fenced)
    [running] = await plane.running_migrations()
    assert running.participants == (failed, replace(fenced, partitions=()))


async def test_commit_needs_all_participants(plane: Plane) -> None:
    """A broker that has not brought its share, or took it back, or brought another's."""
    migration = await brought(plane)
    ready = MigrationParticipant(broker_id=THIRD, incarnation=PROCESSES[THIRD], state="ready")
    for other in (
        ready,
        replace(ready, state="failed"),
        replace(await participant(plane, SECOND), broker_id=THIRD, incarnation=PROCESSES[THIRD]),
    ):
        await plane.join_migration(REQUEST, other)
        with pytest.raises(StaleTopic, match="partition, leader, epoch"):
            await plane.migrate_topic(migration)
    with pytest.raises(StaleTopic):
        await plane.migrate_topic(replace(migration, migration_id=None))
    await assert_local(plane)
    await plane.join_migration(REQUEST, await participant(plane, THIRD))
    assert (await plane.migrate_topic(migration)).configs == DISKLESS


async def test_commit_of_a_closed_request_never_takes_effect(plane: Plane) -> None:
    migration = await brought(plane)
    await plane.close_migration(REQUEST._replace(migration_id=UUID(int=101)))
    assert len(await plane.running_migrations()) == 1
    await plane.close_migration(REQUEST)
    await plane.close_migration(REQUEST)
    assert await plane.running_migrations() == []
    with pytest.raises(StaleMigration):
        await plane.migrate_topic(migration)
    with pytest.raises(StaleMigration):
        await plane.join_migration(REQUEST, await participant(plane, SECOND))
    await assert_local(plane)


async def test_a_later_request_starts_over(plane: Plane) -> None:
    migration = await brought(plane)
    later = REQUEST._replace(migration_id=UUID(int=102))
    assert await plane.open_migration(later) == later
    assert await plane.running_migrations() == [RunningMigration(later, ())]
    with pytest.raises(StaleMigration):
        await plane.migrate_topic(migration)
    with pytest.raises(StaleMigration):
        await plane.join_migration(REQUEST, await participant(plane, SECOND))
    await assert_local(plane)


async def test_first_of_two_that_ask_coordinates(plane: Plane) -> None:
    await spread(plane)
    await plane.open_migration(REQUEST)
    other = MigrationRequest(SPREAD, UUID(int=103), SECOND, PROCESSES[SECOND])
    assert await plane.open_migration(other) == REQUEST
    await register(plane, BROKER, UUID(int=99))
    assert await plane.open_migration(other) == other
    with pytest.raises(StaleBroker):
        await plane.open_migration(REQUEST)
    with pytest.raises(UnknownTopic):
        await plane.open_migration(other._replace(topic_id=UUID(int=77)))


async def test_diskless_topic_is_not_asked_for(plane: Plane) -> None:
    """The broker has an outdated image."""
    await plane.migrate_topic(await brought(plane))
    later = MigrationRequest(SPREAD, UUID(int=105), SECOND, PROCESSES[SECOND])
    with pytest.raises(StaleTopic):
        await plane.open_migration(later)
    assert await plane.running_migrations() == []


async def test_share_of_a_process_that_died_is_refused(plane: Plane) -> None:
    """Its successor does not know of the fence, and may have taken records."""
    migration = await brought(plane)
    await register(plane, THIRD, UUID(int=98))
    with pytest.raises(MigrationRefused, match="broker 3 was registered by a newer incarnation"):
        await plane.migrate_topic(migration)
    await plane.unregister_broker(broker_id=THIRD, incarnation=UUID(int=98))
    with pytest.raises(MigrationRefused, match="broker 3 is not registered"):
        await plane.migrate_topic(migration)
    await assert_local(plane)


async def test_swept_share_is_refused(plane: Plane) -> None:
    migration = await brought(plane)
    await plane.mark_for_deletion(pending_grace_ms=0, unreferenced_grace_ms=FOREVER_MS, limit=99)
    with pytest.raises(ObjectLeaseLost):
        await plane.migrate_topic(migration)
    await assert_local(plane)


async def test_share_that_is_no_log_is_refused(plane: Plane) -> None:
    await spread(plane)
    await plane.open_migration(REQUEST)
    good = await participant(plane, SECOND)
    wrong = replace(good, partitions=(replace(good.partitions[0], high_watermark=11),))
    with pytest.raises(InvalidCommit, match="partition 1"):
        await plane.join_migration(REQUEST, wrong)
    assert await plane.running_migrations() == [RunningMigration(REQUEST, ())]


async def test_broker_that_leads_nothing_may_coordinate(plane: Plane) -> None:
    await spread(plane)
    fourth = UUID(int=14)
    await register(plane, 4, fourth)
    request = MigrationRequest(SPREAD, UUID(int=104), 4, fourth)
    await plane.open_migration(request)
    for broker_id in PROCESSES:
        await plane.join_migration(request, await participant(plane, broker_id))
    own = MigrationParticipant(broker_id=4, incarnation=fourth, state="fenced")
    topic = await plane.migrate_topic(commit(own, request))
    assert topic.configs == DISKLESS
    assert await plane.migrate_topic(commit(own, request)) == topic
