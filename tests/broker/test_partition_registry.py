"""Served partitions follow the image by deltas: unchanged ones stay the same objects."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.broker.metadata import ClusterMetadata
from penstock.broker.net.errors import NotLeader, UnknownTopicOrPartition
from penstock.broker.partitions.registry import PartitionRegistry
from penstock.control import MemoryControlPlane
from penstock.partitions import GroupCommits, LocalPartition
from tests.broker.fake_store import FakeStore


class Bed:
    """A broker's metadata and partitions over a control plane and a store in memory."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.control = MemoryControlPlane()
        store: Any = self.store
        self.registry = PartitionRegistry(node_id=1, store=store, commits=GroupCommits(store))
        self.cluster = ClusterMetadata(self.control, self.registry)

    async def topic(self, name: str, *leaders: int, number: int) -> UUID:
        topic_id = UUID(int=number)
        await self.control.create_topic(
            name=name, topic_id=topic_id, partitions=[[leader] for leader in leaders], configs={}
        )
        await self.cluster.refresh()
        return topic_id


@pytest.fixture
async def bed() -> Bed:
    bed = Bed()
    await bed.control.start()
    await bed.cluster.refresh()
    return bed


async def test_topics_that_do_not_change_are_not_touched(bed: Bed) -> None:
    await bed.topic("a", 1, 1, number=1)
    before = bed.registry.topics["a"]
    generation = bed.registry.generation
    await bed.topic("b", 1, number=2)
    assert bed.registry.topics["a"] is before
    assert bed.registry.generation > generation


async def test_partitions_that_do_not_change_stay_when_their_topic_does(bed: Bed) -> None:
    topic_id = await bed.topic("a", 1, 1, number=1)
    before = list(bed.registry.topics["a"].partitions)
    await bed.control.create_partitions(topic_id=topic_id, expected_count=2, new=[[1], [2]])
    await bed.cluster.refresh()
    after = bed.registry.topics["a"].partitions
    assert after[:2] == before
    assert after[2] is not None
    assert after[3] is None
    assert bed.registry.topics_by_id[topic_id.bytes] is bed.registry.topics["a"]
    assert bed.registry.topics_by_name[b"a"] is bed.registry.topics["a"]
    with pytest.raises(NotLeader):
        bed.registry.partition("a", 3)


async def test_a_recreated_topic_has_its_own_logs(bed: Bed) -> None:
    old = await bed.topic("a", 1, 1, 1, number=1)
    was = bed.registry.partition("a", 0)
    await bed.control.delete_topic(old)
    new = await bed.topic("a", 1, number=2)
    assert bed.registry.partition("a", 0) is not was
    assert list(bed.store.partitions) == [TopicPartition("a", 0)]
    assert bed.store.partitions[TopicPartition("a", 0)].topic_id == new
    assert set(bed.registry.topics_by_id) == {new.bytes}
    with pytest.raises(UnknownTopicOrPartition):
        bed.registry.partition("a", 1)


async def test_a_topic_that_is_gone_is_forgotten(bed: Bed) -> None:
    topic_id = await bed.topic("a", 1, number=1)
    await bed.topic("b", 1, number=2)
    await bed.control.delete_topic(topic_id)
    await bed.cluster.refresh()
    assert set(bed.registry.topics) == {"b"}
    assert set(bed.registry.topics_by_name) == {b"b"}
    assert set(bed.store.partitions) == {TopicPartition("b", 0)}


async def test_a_log_that_could_not_be_made_is_tried_with_the_next_change_of_its_topic(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PenstockError("no room")

    with monkeypatch.context() as full:
        full.setattr(bed.store, "create", refuse)
        topic_id = await bed.topic("a", 1, number=1)
    assert bed.registry.topics["a"].partitions == [None]
    await bed.control.set_topic_configs(
        topic_id=topic_id, configs={"retention.ms": "1"}, expected=None
    )
    await bed.cluster.refresh()
    assert bed.registry.topics["a"].partitions != [None]


async def test_a_partition_stays_the_same_while_its_log_does(bed: Bed) -> None:
    await bed.topic("a", 1, number=1)
    served = bed.registry.topics["a"]
    (before,) = served.partitions
    row = replace(served.topic.partitions[0], leader_epoch=7, isr=(1, 2))
    (after,) = bed.registry._open(replace(served.topic, partitions=(row,))).partitions
    assert after is before  # fetches that wait for it are woken by it
    assert isinstance(after, LocalPartition)
    assert after.leader_epoch == 7
