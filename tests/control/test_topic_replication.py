"""A diskless topic gets replicas: one contract for all forms."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.control import (
    CommitAnswer,
    EpochClaim,
    InvalidQuorum,
    InvalidReplicas,
    MigrationParticipant,
    MigrationRefused,
    MigrationRequest,
    NotWritable,
    SinkCommit,
    SinkTarget,
    StaleBroker,
    StaleMigration,
    StaleTopic,
    Topic,
    TopicReplication,
    UnknownTopic,
    Watermarks,
)
from penstock.control.values.epochs import PartitionEpoch
from tests.control.diskless import (
    BROKER,
    DISKLESS,
    INCARNATION,
    LOCAL,
    TOPIC,
    Plane,
    Sequenced,
    entry,
    errors,
    put,
    written,
)
from tests.control.test_topic_participants import PROCESSES, SECOND, THIRD, register

PLACED = [(SECOND, BROKER, THIRD)] * 3
REQUEST = MigrationRequest(TOPIC, UUID(int=100), BROKER, INCARNATION)
LOCAL_AGAIN = {"diskless.enable": "false"}


async def ordered(plane: Plane) -> None:
    """A diskless topic with five records in two partitions, which three brokers are to have."""
    for broker_id in (SECOND, THIRD):
        await register(plane, broker_id, PROCESSES[broker_id])
    by = Sequenced(31, 0, epoch=2)
    await put(plane, entry(0, by=by), entry(1, at=100))
    assert await plane.open_migration(REQUEST, PLACED) == REQUEST


def share(broker_id: int, incarnation: UUID | None = None) -> MigrationParticipant:
    return MigrationParticipant(
        broker_id=broker_id,
        incarnation=incarnation or PROCESSES[broker_id],
        state="fenced",
    )


async def fenced(plane: Plane) -> None:
    """Store FENCED shares of all three brokers."""
    await ordered(plane)
    await plane.fence_topic(REQUEST)
    for broker_id in (SECOND, THIRD):
        await plane.join_migration(REQUEST, share(broker_id))


def switch(**values: object) -> TopicReplication:
    made = TopicReplication(
        topic_id=TOPIC,
        broker_id=BROKER,
        incarnation=INCARNATION,
        expected=DISKLESS,
        configs=LOCAL_AGAIN,
        min_insync_replicas=2,
        migration_id=REQUEST.migration_id,
    )
    return replace(made, **values)


async def flights(plane: Plane) -> Topic:
    return (await plane.image()).topics["flights"]


async def test_an_order_leaves_a_topic_as_it_is(plane: Plane) -> None:
    await ordered(plane)
    topic = await flights(plane)
    assert [(partition.target, partition.move) for partition in topic.partitions] == [
        (PLACED[0], 0)
    ] * 3
    assert errors(await put(plane, entry(0))) == [None]
    assert await plane.delete_records(TOPIC, 0, 5) == Watermarks(5, 10, 200)


async def test_a_fence_stops_what_moves_ends_and_goes_with_the_request(plane: Plane) -> None:
    await ordered(plane)
    await plane.fence_topic(REQUEST)
    version = (await plane.image()).version
    await plane.fence_topic(REQUEST)
    assert (await plane.image()).version == version
    assert errors(await put(plane, entry(0), entry(2, at=100))) == ["not_leader_or_follower"] * 2
    with pytest.raises(NotWritable, match="'flights' is becoming replicated"):
        await plane.delete_records(TOPIC, 0, 5)
    keys = [(TOPIC, partition) for partition in range(3)]
    marks = [Watermarks(0, 5, 100), Watermarks(0, 5, 100), Watermarks(0, 0, 0)]
    assert await plane.watermarks(keys) == marks
    await plane.close_migration(REQUEST)
    assert [
        (partition.target, partition.move) for partition in (await flights(plane)).partitions
    ] == [((), 0)] * 3
    assert errors(await put(plane, entry(0), entry(2, at=100))) == [None, None]
    with pytest.raises(StaleMigration):
        await plane.fence_topic(REQUEST)


async def test_the_switch_gives_replicas_and_drops_the_index(plane: Plane) -> None:
    await fenced(plane)
    topic = await plane.replicate_topic(switch())
    assert topic.configs == LOCAL_AGAIN
    assert {
        (partition.leader, partition.leader_epoch, partition.replicas, partition.isr)
        for partition in topic.partitions
    } == {(SECOND, 1, PLACED[0], PLACED[0])}
    assert {(partition.target, partition.move) for partition in topic.partitions} == {((), 0)}
    assert await plane.replicate_topic(switch()) == topic
    assert await plane.running_migrations() == []
    chains = await plane.partition_chains([(TOPIC, 0)])
    incarnation = PROCESSES[SECOND]
    first = PartitionEpoch(1, 0, None, PLACED[0], 2, SECOND, incarnation)
    assert chains[TOPIC, 0].epochs == (first,)
    claimed = await plane.claim_epochs(
        [EpochClaim(TOPIC, 0, 1)], broker_id=SECOND, incarnation=incarnation
    )
    assert claimed.chains[TOPIC, 0].reservation.reserved == 2
    assert errors(await put(plane, entry(0))) == ["not_leader_or_follower"]
    with pytest.raises(NotWritable):
        await plane.delete_records(TOPIC, 0, 5)
    assert await plane.watermarks([(TOPIC, 0)]) == [Watermarks(0, 0, 0)]
    assert await plane.remembered_producers(TOPIC, 0) == []
    while await plane.forget_partitions(limit=2):
        pass
    [objects] = [
        object_total
        for object_total in await plane.object_totals()
        if object_total.state == "committed"
    ]
    marked = await plane.mark_for_deletion(pending_grace_ms=10**9, unreferenced_grace_ms=0, limit=9)
    assert len(marked) >= objects.objects


async def test_producers_are_returned_with_their_batches(plane: Plane) -> None:
    await ordered(plane)
    [(producer_id, producer)] = await plane.remembered_producers(TOPIC, 0)
    assert (producer_id, producer.epoch) == (31, 2)
    assert [(batch.first_sequence, batch.last_offset) for batch in producer.batches] == [(0, 4)]


@pytest.mark.parametrize(
    ("shares", "missing"),
    [
        ([share(SECOND)], THIRD),
        ([share(SECOND), share(THIRD, UUID(int=99))], THIRD),
        ([share(THIRD), replace(share(SECOND), state="ready")], SECOND),
    ],
    ids=["none", "of a process that is gone", "not yet"],
)
async def test_all_copies_must_be_there(
    plane: Plane, shares: list[MigrationParticipant], missing: int
) -> None:
    await ordered(plane)
    await plane.fence_topic(REQUEST)
    for participant in shares:
        await plane.join_migration(REQUEST, participant)
    with pytest.raises(MigrationRefused, match=rf"flights-0: brokers \[{missing}\]"):
        await plane.replicate_topic(switch())
    assert (await flights(plane)).configs == DISKLESS


async def test_a_switch_must_find_what_it_expects(plane: Plane) -> None:
    await ordered(plane)
    with pytest.raises(StaleMigration):  # no broker has fenced it
        await plane.replicate_topic(switch())
    await plane.fence_topic(REQUEST)
    for broker_id in (SECOND, THIRD):
        await plane.join_migration(REQUEST, share(broker_id))
    for refused, values in (
        (StaleMigration, {"migration_id": UUID(int=101)}),
        (StaleBroker, {"incarnation": UUID(int=99)}),
        (UnknownTopic, {"topic_id": UUID(int=99)}),
        (StaleTopic, {"expected": {}}),
        (InvalidQuorum, {"min_insync_replicas": 4}),
    ):
        with pytest.raises(refused):
            await plane.replicate_topic(switch(**values))
    assert (await flights(plane)).configs == DISKLESS
    await plane.close_migration(REQUEST)
    with pytest.raises(StaleMigration):
        await plane.replicate_topic(switch())


async def test_what_cannot_be_ordered(plane: Plane) -> None:
    for refused, topic_id, targets in (
        (StaleTopic, LOCAL, PLACED),
        (StaleTopic, TOPIC, PLACED[:2]),
        (StaleTopic, TOPIC, []),
        (InvalidReplicas, TOPIC, [(1, 2), (), (1,)]),
        (InvalidReplicas, TOPIC, [(1, 2), (2, 2), (1,)]),
        (UnknownTopic, UUID(int=99), PLACED),
    ):
        with pytest.raises(refused):
            await plane.open_migration(REQUEST._replace(topic_id=topic_id), targets)
    assert await plane.running_migrations() == []


async def test_partitions_that_came_since_have_no_order(plane: Plane) -> None:
    await ordered(plane)
    await plane.create_partitions(topic_id=TOPIC, expected_count=3, new=[[BROKER]])
    with pytest.raises(StaleTopic, match=r"partitions without target replicas.*\[3\]"):
        await plane.fence_topic(REQUEST)


async def test_an_unfinished_sink_commit_is_waited_for(plane: Plane) -> None:
    await ordered(plane)
    target = SinkTarget(
        topic="flights", topic_id=TOPIC, partition=0, producer_id=1, base_sequence=0, records=1
    )
    intent = SinkCommit(
        query_id="q", owner=None, batch_id=3, state="intent", targets=(target,), manifest=b"m"
    )
    await plane.save_sink_commit(intent, expected_version=0)
    with pytest.raises(MigrationRefused, match="query 'q' has not finished its commit of batch 3"):
        await plane.fence_topic(REQUEST)


async def test_a_living_brokers_request_goes_first(plane: Plane) -> None:
    await fenced(plane)
    later = MigrationRequest(TOPIC, UUID(int=102), SECOND, PROCESSES[SECOND])
    assert await plane.open_migration(later, PLACED) == REQUEST
    again = UUID(int=44)
    await register(plane, BROKER, again)
    assert await plane.open_migration(later, PLACED) == later
    assert {partition.move for partition in (await flights(plane)).partitions} == {0}
    assert errors(await put_by(plane, again)) == [None]


async def put_by(plane: Plane, incarnation: UUID) -> CommitAnswer:
    [key] = await plane.lease_objects(broker_id=BROKER, incarnation=incarnation, count=1)
    return await plane.commit_object(written(key, (entry(0),)))


async def test_there_and_back_again(plane: Plane) -> None:
    """The dropped index does not affect the new one."""
    await fenced(plane)
    topic = await plane.replicate_topic(switch())
    assert await plane.watermarks([(TOPIC, 0)]) == [Watermarks(0, 0, 0)]
    await plane.set_topic_configs(topic_id=TOPIC, configs=DISKLESS, expected=topic.configs)
    by = Sequenced(31, 0, epoch=1)  # an epoch of before what was remembered
    assert errors(await put(plane, entry(0, by=by))) == [None]
    assert await plane.watermarks([(TOPIC, 0)]) == [Watermarks(0, 5, 100)]
