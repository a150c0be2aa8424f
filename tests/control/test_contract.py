"""Contract of all implementations of the control plane."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from penstock.base.errors import InvalidError, InvalidTopicName
from penstock.control import (
    Broker,
    CommittedOffset,
    ControlPlane,
    InvalidPartitions,
    InvalidReplicas,
    StaleBroker,
    StaleConfigs,
    StaleTopic,
    TooLarge,
    Topic,
    TopicExists,
    TopicIdTaken,
    UnknownTopic,
)
from penstock.control.access import bindings_of, change_acls
from penstock.control.rules.metadata import ENTITY_CONFIGS_MAX
from penstock.security.acls import AclBinding
from tests.security.access import allow

A, B, C = (UUID(int=number) for number in (1, 2, 3))


async def create(
    control: ControlPlane,
    name: str = "flights",
    topic_id: UUID = A,
    partitions: Sequence[Sequence[int]] = ((1,), (1,)),
    configs: Mapping[str, str] | None = None,
) -> Topic:
    return await control.create_topic(
        name=name, topic_id=topic_id, partitions=partitions, configs=configs or {}
    )


def offset(
    partition: int, value: int, *, topic: str = "flights", topic_id: UUID = A, **more: Any
) -> CommittedOffset:
    return CommittedOffset(
        topic_id=topic_id, topic=topic, partition=partition, offset=value, **more
    )


async def test_a_new_plane_is_empty_and_knows_its_cluster(control: ControlPlane) -> None:
    image = await control.image()
    assert image.cluster_id
    assert (image.brokers, dict(image.topics), dict(image.broker_configs)) == ((), {}, {})


async def test_an_open_plane_answers_a_ping(control: ControlPlane) -> None:
    await control.ping(1.0)


async def test_a_created_topic_is_in_the_image(control: ControlPlane) -> None:
    before = await control.image()
    topic = await create(control, partitions=[[3, 1], [1, 3]], configs={"retention.ms": "5"})
    after = await control.image()
    assert after.version == before.version + 1
    assert after.topics == {"flights": topic}
    assert after.topic_by_id(A) == topic
    assert [(p.index, p.leader, p.leader_epoch, p.replicas, p.isr) for p in topic.partitions] == [
        (0, 3, 0, (3, 1), (3, 1)),
        (1, 1, 0, (1, 3), (1, 3)),
    ]
    assert topic.configs == {"retention.ms": "5"}
    assert await control.image() is after


async def test_a_name_is_taken_once(control: ControlPlane) -> None:
    await create(control)
    with pytest.raises(TopicExists, match="'flights' already exists") as caught:
        await create(control, topic_id=B)
    assert caught.value.code == "topic_already_exists"
    assert (await control.image()).topic_by_id(B) is None


async def test_deleting_a_topic_forgets_the_offsets_in_it(control: ControlPlane) -> None:
    await create(control)
    await create(control, name="other", topic_id=B)
    both = [offset(0, 5), offset(0, 6, topic="other", topic_id=B)]
    await control.commit_offsets(group_id="g", offsets=both)
    deleted = await control.delete_topic(A)
    assert deleted.name == "flights"
    assert list((await control.image()).topics) == ["other"]
    assert [o.topic for o in await control.committed_offsets("g", None)] == ["other"]
    with pytest.raises(UnknownTopic):
        await control.delete_topic(A)
    recreated = await create(control, topic_id=C)
    assert recreated.topic_id == C


async def test_partitions_are_added_by_compare_and_set(control: ControlPlane) -> None:
    await create(control)
    topic = await control.create_partitions(topic_id=A, expected_count=2, new=[[1], [1]])
    assert [p.index for p in topic.partitions] == [0, 1, 2, 3]
    with pytest.raises(StaleTopic, match="partition count"):
        await control.create_partitions(topic_id=A, expected_count=2, new=[[1]])
    with pytest.raises(UnknownTopic):
        await control.create_partitions(topic_id=B, expected_count=2, new=[[1]])
    assert len((await control.image()).topics["flights"].partitions) == 4


async def test_topic_configs_are_replaced_by_compare_and_set(control: ControlPlane) -> None:
    await create(control, configs={"a": "1"})
    await control.set_topic_configs(topic_id=A, configs={"b": "2"}, expected={"a": "1"})
    with pytest.raises(StaleTopic, match="config"):
        await control.set_topic_configs(topic_id=A, configs={}, expected={"a": "1"})
    await control.set_topic_configs(topic_id=A, configs={"c": "3"}, expected=None)
    assert (await control.image()).topics["flights"].configs == {"c": "3"}
    with pytest.raises(UnknownTopic):
        await control.set_topic_configs(topic_id=B, configs={}, expected=None)


async def test_broker_configs_are_replaced_by_compare_and_set(control: ControlPlane) -> None:
    await control.set_broker_configs(broker="", configs={"a": "1"}, expected={})
    await control.set_broker_configs(broker="1", configs={"a": "2"}, expected=None)
    with pytest.raises(StaleConfigs):
        await control.set_broker_configs(broker="", configs={}, expected={})
    assert (await control.image()).broker_configs == {"": {"a": "1"}, "1": {"a": "2"}}


async def test_configs_of_entities_are_replaced_by_compare_and_set(control: ControlPlane) -> None:
    change = partial(control.set_entity_configs, kind="quota")
    await change(changes={"a": {"x": "1"}, "b": {"x": "ü"}}, expected={})
    known = (await control.image()).entity_configs
    assert known == {("quota", "a"): {"x": "1"}, ("quota", "b"): {"x": "ü"}}
    with pytest.raises(StaleConfigs, match="quota b changed"):
        await change(changes={"a": {}, "b": {}}, expected={"a": {"x": "1"}})
    assert (await control.image()).entity_configs is known
    await create(control)
    assert (await control.image()).entity_configs is known
    await change(changes={"a": {}}, expected={"a": {"x": "1"}})
    await control.set_entity_configs(kind="other", changes={"a": {"y": "2"}}, expected={})
    left = {("quota", "b"): {"x": "ü"}, ("other", "a"): {"y": "2"}}
    assert (await control.image()).entity_configs == left
    version = (await control.image()).version
    await change(changes={"a": {}}, expected={})
    assert (await control.image()).version == version


async def test_configs_of_entities_are_bounded(control: ControlPlane) -> None:
    change = partial(control.set_entity_configs, kind="quota")
    with pytest.raises(InvalidError, match="have 16385 characters; the limit is 16384"):
        await change(changes={"a": {"x": "y" * 16_383}}, expected={})
    most = {str(number): {"x": "1"} for number in range(ENTITY_CONFIGS_MAX)}
    await change(changes=most, expected={})
    with pytest.raises(InvalidError, match="there would be 10001"):
        await change(changes={"one more": {"x": "1"}}, expected={})
    await change(changes={"1": {"x": "2"}}, expected={"1": {"x": "1"}})
    assert len((await control.image()).entity_configs) == ENTITY_CONFIGS_MAX


def acl(name: str) -> AclBinding:
    return allow("read", "topic", name, "ä", permission="deny")


async def test_acls_are_added_and_removed_by_compare_and_set(control: ControlPlane) -> None:
    await change_acls(control, lambda known: ([acl("b"), acl("a")], ()))
    assert bindings_of(await control.image()) == [acl("a"), acl("b")]
    version = (await control.image()).version
    await change_acls(control, lambda known: ([acl("a")], ()))
    assert (await control.image()).version == version
    await change_acls(control, lambda known: ([acl("c")], known[:1]))
    assert bindings_of(await control.image()) == [acl("b"), acl("c")]


async def test_changes_of_acls_at_the_same_time_are_all_there(control: ControlPlane) -> None:
    async def add(name: str) -> None:
        await change_acls(control, lambda known: ([acl(name)], ()))

    await asyncio.gather(*(add(name) for name in "abcdef"))
    assert [binding.name for binding in bindings_of(await control.image())] == list("abcdef")


async def test_every_incarnation_of_a_broker_gets_a_higher_epoch(control: ControlPlane) -> None:
    async def register(incarnation: UUID, port: int = 9092) -> int:
        broker = await control.register_broker(
            broker_id=1, host="h", port=port, rack="r", incarnation=incarnation
        )
        return broker.epoch

    first = await register(A)
    assert await register(A) == first
    second = await register(B)
    assert second > first
    with pytest.raises(StaleBroker):
        await control.unregister_broker(broker_id=1, incarnation=A)
    await control.unregister_broker(broker_id=1, incarnation=B)
    await control.unregister_broker(broker_id=1, incarnation=B)
    assert (await control.image()).brokers == ()
    assert await register(C) > second
    (broker,) = (await control.image()).brokers
    assert (broker.host, broker.port, broker.rack, broker.incarnation) == ("h", 9092, "r", C)
    assert (await control.image()).broker(1) == broker


async def test_a_broker_has_an_address_for_each_listener(control: ControlPlane) -> None:
    endpoints = (("IN", "near", 9092), ("OUT", "far", 9093))

    async def register(*endpoints: tuple[str, str, int]) -> Broker:
        return await control.register_broker(
            broker_id=1, host="near", port=9092, rack=None, incarnation=A, endpoints=endpoints
        )

    plain = await register()
    assert plain.roles == ("ingestion", "persistence")
    broker = await register(*endpoints)
    assert broker.epoch > plain.epoch
    assert await register(*endpoints) == broker
    (found,) = (await control.image()).brokers
    assert found == broker
    assert [found.endpoint(name) for name in ("IN", "OUT", "ELSE")] == [
        ("near", 9092), ("far", 9093), ("near", 9092)
    ]  # fmt: skip
    assert plain.endpoint("OUT") == ("near", 9092)


async def test_a_broker_says_what_it_is_for(control: ControlPlane) -> None:
    register = partial(
        control.register_broker, broker_id=1, host="near", port=9092, rack=None, incarnation=A
    )
    broker = await register(roles=("persistence",))
    assert await register(roles=("persistence",)) == broker
    image = await control.image()
    assert image.brokers == image.storing == image.serving == (broker,), (
        "no other broker could serve"
    )
    await control.register_broker(
        broker_id=2, host="h", port=1, rack=None, incarnation=B, roles=("ingestion",)
    )
    image = await control.image()
    assert [broker.broker_id for broker in image.serving] == [2]
    assert [broker.broker_id for broker in image.storing] == [1]
    assert (await register()).epoch > broker.epoch


async def test_producer_ids_are_never_handed_out_twice(control: ControlPlane) -> None:
    ranges = await asyncio.gather(*(control.allocate_producer_ids(7) for _ in range(50)))
    ids = [producer_id for block in ranges for producer_id in block]
    assert len(ids) == len(set(ids)) == 350
    assert min(ids) >= 0


async def test_the_newest_commit_of_a_partition_wins(control: ControlPlane) -> None:
    await create(control)
    await control.commit_offsets(group_id="g", offsets=[offset(0, 5), offset(1, 7)])
    newer = offset(0, 9, metadata="why", leader_epoch=3, commit_timestamp_ms=77)
    await control.commit_offsets(group_id="g", offsets=[newer])
    await control.commit_offsets(group_id="h", offsets=[offset(0, 1)])
    assert await control.committed_offsets("g", None) == [newer, offset(1, 7)]
    assert await control.committed_offsets("g", [("flights", 1), ("flights", 9)]) == [offset(1, 7)]
    assert await control.committed_offsets("nobody", None) == []
    assert await control.offset_group_ids() == ["g", "h"]


async def test_groups_commit_together_and_the_last_commit_of_each_wins(
    control: ControlPlane,
) -> None:
    commits = [("h", [offset(0, 5)]), ("g", [offset(1, 7), offset(0, 1)]), ("g", [offset(0, 6)])]
    await control.commit_offsets_of(commits)
    assert await control.committed_offsets("g", None) == [offset(0, 6), offset(1, 7)]
    assert await control.committed_offsets("h", None) == [offset(0, 5)]
    with pytest.raises(TooLarge):
        await control.commit_offsets_of([("g", [offset(0, 9)]), ("h", [offset(0, 1)] * 100_000)])
    assert await control.committed_offsets("g", None) == [offset(0, 6), offset(1, 7)]


async def test_offsets_are_deleted_and_expire(control: ControlPlane) -> None:
    offsets = [offset(0, 5, expire_timestamp_ms=100), offset(1, 6, expire_timestamp_ms=200)]
    await control.commit_offsets(group_id="g", offsets=[*offsets, offset(2, 7), offset(3, 8)])
    await control.delete_offsets(group_id="g", partitions=[("flights", 3), ("flights", 9)])
    assert await control.expire_offsets(now_ms=99, limit=10) == 0
    assert await control.expire_offsets(now_ms=200, limit=1) == 1
    assert await control.expire_offsets(now_ms=200, limit=10) == 1
    assert [o.partition for o in await control.committed_offsets("g", None)] == [2]


async def test_of_many_that_race_one_wins(control: ControlPlane) -> None:
    async def attempt(number: int) -> bool:
        try:
            await create(control, topic_id=UUID(int=100 + number))
        except TopicExists:
            return False
        return True

    outcomes = await asyncio.gather(*(attempt(number) for number in range(40)))
    assert outcomes.count(True) == 1
    winner = outcomes.index(True)
    assert (await control.image()).topics["flights"].topic_id == UUID(int=100 + winner)


async def test_an_operation_that_is_refused_does_not_undo_its_neighbours(
    control: ControlPlane,
) -> None:
    await create(control)
    results = await asyncio.gather(
        create(control, name="b", topic_id=B),
        create(control, name="flights", topic_id=C),
        control.delete_topic(UUID(int=99)),
        control.commit_offsets(group_id="g", offsets=[offset(0, 3)]),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == [
        "Topic",
        "TopicExists",
        "UnknownTopic",
        "NoneType",
    ]
    assert sorted((await control.image()).topics) == ["b", "flights"]
    assert await control.committed_offsets("g", None) == [offset(0, 3)]


async def test_close_may_be_called_twice(control: ControlPlane) -> None:
    await control.close()
    await control.close()


async def test_an_id_is_taken_once(control: ControlPlane) -> None:
    await create(control)
    with pytest.raises(TopicIdTaken, match="'flights'"):
        await create(control, name="other")
    assert list((await control.image()).topics) == ["flights"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250])
async def test_topic_names_follow_kafkas_rules(control: ControlPlane, name: str) -> None:
    with pytest.raises(InvalidTopicName):
        await create(control, name=name)
    assert (await control.image()).version == 0


@pytest.mark.parametrize("replicas", [[], [1, 1], [-1], [2, -1]])
async def test_replicas_are_brokers_each_once(control: ControlPlane, replicas: list[int]) -> None:
    with pytest.raises(InvalidReplicas, match="flights-1"):
        await create(control, partitions=[[1], replicas])
    await create(control)
    with pytest.raises(InvalidReplicas, match="flights-2"):
        await control.create_partitions(topic_id=A, expected_count=2, new=[replicas])


async def test_a_topic_has_partitions(control: ControlPlane) -> None:
    with pytest.raises(InvalidPartitions):
        await create(control, partitions=[])
    with pytest.raises(InvalidPartitions, match="100001"):
        await create(control, partitions=[[1]] * 100_001)
    await create(control)
    with pytest.raises(InvalidPartitions):
        await control.create_partitions(topic_id=A, expected_count=2, new=[])


@pytest.mark.parametrize("count", [-1, 0, 1_000_001])
async def test_producer_ids_are_allocated_in_sound_numbers(
    control: ControlPlane, count: int
) -> None:
    with pytest.raises(InvalidError, match=str(count)):
        await control.allocate_producer_ids(count)
    assert await control.allocate_producer_ids(1) == range(1)


async def test_a_commit_to_an_earlier_topic_of_the_name_is_dropped(control: ControlPlane) -> None:
    await create(control)
    await control.delete_topic(A)
    await control.commit_offsets(group_id="early", offsets=[offset(0, 5)])
    await create(control, topic_id=B)
    await control.commit_offsets(group_id="late", offsets=[offset(0, 6)])
    current = offset(0, 7, topic_id=B)
    await control.commit_offsets(group_id="now", offsets=[offset(1, 8), current])
    assert await control.committed_offsets("early", None) == []
    assert await control.committed_offsets("late", None) == []
    assert await control.committed_offsets("now", None) == [current]


async def test_a_call_has_a_size(control: ControlPlane) -> None:
    with pytest.raises(TooLarge, match="100001"):
        await control.commit_offsets(group_id="g", offsets=[offset(0, 1)] * 100_001)
    with pytest.raises(TooLarge, match="100001"):
        await control.delete_offsets(group_id="g", partitions=[("t", 0)] * 100_001)
    assert await control.committed_offsets("g", None) == []


async def test_many_tasks_compare_and_set_one_value(control: ControlPlane) -> None:
    await create(control, configs={"count": "0"})

    async def add_one() -> int:
        attempts = 0
        while True:
            attempts += 1
            configs = (await control.image()).topics["flights"].configs
            counted = {"count": str(int(configs["count"]) + 1)}
            try:
                await control.set_topic_configs(topic_id=A, configs=counted, expected=configs)
            except StaleTopic:
                continue
            return attempts

    attempts = await asyncio.gather(*(add_one() for _ in range(20)))
    assert (await control.image()).topics["flights"].configs == {"count": "20"}
    assert (await control.image()).version == 21
    assert sum(attempts) >= 20


async def test_it_starts_again_after_it_was_closed(control: ControlPlane) -> None:
    await create(control)
    image = await control.image()
    await control.close()
    await control.start()
    assert await control.image() == image
    await create(control, name="other", topic_id=B)
