"""Reassignments: requested, copied, completed, cancelled; and their failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.log.cluster import troubled
from penstock.base.ids import TopicPartition
from penstock.client import Client
from penstock.control import Partition
from tests.broker.test_replicated import Cluster, everything, has, knows, until
from tests.broker.test_replicated_handover import replicas

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def four(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3, 4):
        yield made


def via(cluster: Cluster) -> int:
    return next(iter(cluster.clients))


def row(cluster: Cluster, topic: str = "t") -> Partition:
    """Return the partition's row on the live broker with the lowest id."""
    return cluster.brokers[via(cluster)].cluster.image.topics[topic].partitions[0]


async def order(
    cluster: Cluster,
    brokers: Sequence[int] | None,
    *,
    topic: str = "t",
    partition: int = 0,
    change_factor: bool = True,
) -> tuple[str, str | None]:
    rows = [{"partition_index": partition, "replicas": brokers}]
    body = {
        "timeout": 10_000,
        "allow_replication_factor_change": change_factor,
        "topics": [{"name": topic, "partitions": rows}],
    }
    answer = await cluster.clients[via(cluster)].call("AlterPartitionReassignments", 1, body)
    assert answer.error_code.name == "none"
    [result] = answer.responses[0].partitions
    return result.error_code.name, result.error_message


async def ordered(cluster: Cluster, topics: Any = None) -> dict[tuple[str, int], tuple[Any, ...]]:
    body = {"timeout": 10_000, "topics": topics}
    answer = await cluster.clients[via(cluster)].call("ListPartitionReassignments", 0, body)
    return {
        (topic.name, partition.partition_index): (
            tuple(partition.replicas), tuple(partition.adding_replicas),
            tuple(partition.removing_replicas),
        )
        for topic in answer.topics
        for partition in topic.partitions
    }  # fmt: skip


async def moved(cluster: Cluster, target: tuple[int, ...], topic: str = "t") -> int:
    """Wait until a partition has these replicas, on all brokers; its leader."""

    def there() -> bool:
        rows = [
            broker.cluster.image.topics[topic].partitions[0] for broker in cluster.brokers.values()
        ]
        return all(partition.replicas == target and not partition.move for partition in rows)

    await until(there)
    await until(lambda: cluster.leader(topic) in target)
    return cluster.leader(topic)


def behind(cluster: Cluster, node_id: int) -> list[dict[str, Any]]:
    """Return the lag as shown by `penstock cluster status` and the doctor."""
    host, port = cluster.brokers[node_id].kafka_address
    with Client(f"{host}:{port}") as client:
        return list(troubled(client, client.metadata()))


def holds(cluster: Cluster, node_id: int, topic: str = "t") -> bool:
    return TopicPartition(topic, 0) in cluster.brokers[node_id].store.partitions


async def check(cluster: Cluster, brokers: Sequence[int], count: int, topic: str = "t") -> None:
    """Check that all replicas have all records, and other brokers none."""
    logs = [cluster.log(node_id, topic) for node_id in brokers]
    for log in logs:
        await until(partial(has, log, count))
    assert len({everything(log) for log in logs}) == 1
    for node_id in cluster.brokers:
        await until(lambda: holds(cluster, node_id, topic) == (node_id in brokers))  # noqa: B023


async def test_a_replica_moves_to_another_broker(four: Cluster) -> None:
    leader = await four.create()
    before = row(four).replicas
    added = next(broker_id for broker_id in (1, 2, 3, 4) if broker_id not in before)
    for number in range(20):
        await four.produce(b"value %d" % number)
    target = (leader, added, before[1])
    assert await order(four, target) == ("none", None)
    assert await moved(four, target) == leader
    assert await four.produce(b"after") == 20
    await check(four, target, 21)
    assert await ordered(four) == {}
    await until(lambda: set(row(four).isr) == set(target))
    # And the leader goes as well.
    target = (added, before[1], before[2])
    assert await order(four, target) == ("none", None)
    assert await moved(four, target) in target
    assert await four.produce(b"once more") == 21
    await check(four, target, 22)


async def test_all_replicas_may_be_others(four: Cluster) -> None:
    leader = await four.create(factor=2)
    before = row(four).replicas
    target = tuple(broker_id for broker_id in (1, 2, 3, 4) if broker_id not in before)
    for number in range(5):
        await four.produce(b"value %d" % number)
    assert await order(four, target) == ("none", None)
    assert await moved(four, target) != leader
    assert await four.produce(b"after") == 5
    await check(four, target, 6)


async def test_a_log_that_begins_above_zero_moves_as_well(four: Cluster) -> None:
    leader = await four.create()
    before = row(four).replicas
    added = next(broker_id for broker_id in (1, 2, 3, 4) if broker_id not in before)
    for number in range(20):
        await four.produce(b"value %d" % number)
    rows = [{"partition_index": 0, "offset": 12}]
    body = {"topics": [{"name": "t", "partitions": rows}], "timeout": 10_000}
    answer = await four.clients[leader].call("DeleteRecords", 2, body)
    assert answer.topics[0].partitions[0].low_watermark == 12
    target = (added, leader)
    assert await order(four, target) == ("none", None)
    await moved(four, target)
    assert await four.produce(b"after") == 20
    for node_id in target:
        await until(partial(has, four.log(node_id), 21))
    assert four.log(added).log.log_start_offset == 12


async def test_one_replica_becomes_three_and_one_again(four: Cluster) -> None:
    await four.create_single()
    [leader] = row(four).replicas
    assert [await four.produce(b"alone %d" % number) for number in range(3)] == [0, 1, 2]
    others = [broker_id for broker_id in (1, 2, 3, 4) if broker_id != leader]
    target = (others[0], leader, others[1])
    assert await order(four, target) == ("none", None)
    await moved(four, target)
    assert await four.produce(b"of three") == 3
    await check(four, target, 4)
    assert await order(four, (others[1],)) == ("none", None)
    assert await moved(four, (others[1],)) == others[1]
    assert await four.produce(b"alone again") == 4
    await check(four, (others[1],), 5)
    await four.stop(others[1])
    await four.start(others[1])
    assert await four.produce(b"after a restart") == 5


async def test_a_reassignment_waits_for_a_stopped_broker_and_is_cancelled(four: Cluster) -> None:
    leader = await four.create()
    before = row(four).replicas
    added = next(broker_id for broker_id in (1, 2, 3, 4) if broker_id not in before)
    await four.produce(b"before")
    target = (added, *before[:2])
    replicas(four, added).replication.rows_came = _nothing  # type: ignore[assignment,method-assign]
    assert await order(four, target) == ("none", None)
    await until(lambda: holds(four, added))
    await four.stop(added)
    await until(partial(knows, four.brokers[leader], 3))
    assert await four.produce(b"while it is off") == 1
    assert await ordered(four) == {("t", 0): ((*target, before[2]), (added,), (before[2],))}
    assert await ordered(four, [{"name": "t", "partition_indexes": [1]}]) == {}
    topics = [{"topic_id": None, "name": "t"}]
    answer = await four.clients[leader].call("Metadata", 12, {"topics": topics})
    [shown] = answer.topics[0].partitions
    assert tuple(shown.replica_nodes) == (*target, before[2])
    assert tuple(shown.offline_replicas) == (added,)
    (held_back,) = await asyncio.to_thread(behind, four, leader)
    assert (held_back["state"], held_back["needed"], added in held_back["replicas"]) == (
        "behind",
        2,
        True,
    )
    assert await order(four, None) == ("none", None)
    await four.start(added)
    await moved(four, before)
    assert await four.produce(b"after") == 2
    await check(four, before, 3)


async def test_the_next_leader_continues_a_reassignment(four: Cluster) -> None:
    leader = await four.create()
    before = row(four).replicas
    added = next(broker_id for broker_id in (1, 2, 3, 4) if broker_id not in before)
    for number in range(5):
        await four.produce(b"value %d" % number)
    replicas(four, leader)._moves.go_on = _nothing  # type: ignore[method-assign]
    staying = [broker_id for broker_id in before if broker_id != leader]
    target = (staying[0], added, staying[1])
    assert await order(four, target) == ("none", None)
    await until(lambda: holds(four, added))
    await four.stop(leader)
    assert await moved(four, target) in target
    await four.start(leader)
    assert await four.produce(b"after") == 5
    await check(four, target, 6)


async def test_a_reassignment_waits_for_a_slow_learner(
    four: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A claim for other replicas falls back to those that there are, and is made again."""
    leader = await four.create()
    before = row(four).replicas
    added = next(broker_id for broker_id in (1, 2, 3, 4) if broker_id not in before)
    await four.produce(b"before")
    target = (leader, added)
    learner = replicas(four, added).replication
    came, learner.rows_came = learner.rows_came, _nothing  # type: ignore[assignment,method-assign]
    assert await order(four, target) == ("none", None)
    own, log = replicas(four, leader), four.log(leader)
    await until(lambda: own._row(log.key).move)  # type: ignore[union-attr]
    own._moves._begun[log.key] = row(four).move
    own.replication.claim([log.key])
    await until(lambda: "did not receive the whole log in time" in caplog.text)
    assert await four.produce(b"meanwhile") == 1
    assert row(four).replicas == before
    learner.rows_came = came  # type: ignore[method-assign]
    await moved(four, target)
    await check(four, target, 2)


def _nothing(*_: Any) -> None: ...


async def test_invalid_reassignments_are_rejected(four: Cluster) -> None:
    await four.create()
    before = row(four).replicas
    for brokers, code, words in (
        ([], "invalid_replica_assignment", "the replica list is empty"),
        ([1, 1], "invalid_replica_assignment", "a broker appears more than once"),
        ([1, 9], "invalid_replica_assignment", "broker 9 is not registered"),
        ([1], "invalid_replication_factor", "min.insync.replicas = 2"),
        (None, "no_reassignment_in_progress", "t-0 has no reassignment in progress"),
    ):
        found, message = await order(four, brokers)
        assert found == code
        assert words in str(message)
    found, message = await order(four, [1, 2], change_factor=False)
    assert (found, "t-0 has 3 replicas, but the request has 2" in str(message)) == (
        "invalid_replication_factor",
        True,
    )
    assert (await order(four, [1], topic="none"))[0] == "unknown_topic_or_partition"
    assert (await order(four, [1], partition=1))[0] == "unknown_topic_or_partition"
    assert row(four).replicas == before
    assert await order(four, before[::-1]) == ("none", None)
    assert row(four).replicas == before[::-1]
