"""Requests about partitions that other brokers lead, answered as Apache Kafka does."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from penstock.base.crc import crc32c
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.topics import admin
from penstock.client.appender import Appender
from penstock.client.producer_partitions import ProducerPartition
from tests.broker.test_replicated import SECONDS, Cluster, has, until
from tests.broker.wire_client import WireClient, batch

pytestmark = pytest.mark.timeout(300)
PRODUCER_ID = 4711


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


async def metadata(client: WireClient, topic: str) -> tuple[int, int]:
    """Leader and leader epoch of a topic's one partition."""
    asked = {
        "topics": [{"topic_id": None, "name": topic}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    row = (await client.call("Metadata", 12, asked)).topics[0].partitions[0]
    described = await client.call(
        "DescribeTopicPartitions",
        0,
        {"topics": [{"name": topic}], "response_partition_limit": 10, "cursor": None},
    )
    same = described.topics[0].partitions[0]
    assert (same.leader_id, same.leader_epoch) == (row.leader_id, row.leader_epoch)
    return row.leader_id, row.leader_epoch


async def latest(client: WireClient, topic: str, epoch: int) -> Any:
    partition = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": -1}
    body = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": [partition]}],
    }
    return (await client.call("ListOffsets", 7, body)).topics[0].partitions[0]


async def test_the_first_epoch_of_a_new_topic_is_the_one_that_serves(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka's 0054_offset_time asks for offsets right after the creation, with that epoch."""
    monkeypatch.setattr(admin, "LED_SECONDS", SECONDS)
    for topic in ("a", "b", "c"):
        spec: dict[str, Any] = {
            "name": topic, "num_partitions": 1, "replication_factor": 3, "assignments": [],
            "configs": [],
        }  # fmt: skip
        await cluster.clients[1].call("CreateTopics", 7, {"topics": [spec], "timeout": 5000})
        leader, epoch = await metadata(cluster.clients[1], topic)
        row = await latest(cluster.clients[leader], topic, epoch)
        assert row.error_code.name == "none"
        assert (row.offset, row.leader_epoch) == (0, epoch)
        assert await metadata(cluster.clients[1], topic) == (leader, epoch)


def idempotent(*values: bytes) -> bytes:
    """The first batch of a producer."""
    data = bytearray(batch(*values))
    struct.pack_into(">qhi", data, 43, PRODUCER_ID, 0, 0)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


async def producers(client: WireClient) -> Any:
    request = {"topics": [{"name": "t", "partition_indexes": [0]}]}
    return (await client.call("DescribeProducers", 0, request)).topics[0].partitions[0]


async def test_followers_describe_producers(cluster: Cluster) -> None:
    """kafka-transactions.sh find-hanging --broker-id asks whichever broker it is given."""
    leader = await cluster.create()
    await cluster.send(idempotent(b"one", b"two"))
    for node_id, client in cluster.clients.items():
        await until(partial(has, cluster.log(node_id), 2))
        found = await producers(client)
        assert not found.error_code, found
        assert [producer.producer_id for producer in found.active_producers] == [PRODUCER_ID]
        assert (found.error_message is None) == (node_id == leader)


async def test_a_former_leader_is_not_taken_for_the_leader(cluster: Cluster) -> None:
    """A commit of a sink asks the leader for what is committed; the copy of a follower may lag."""
    leader = await cluster.create()
    await cluster.send(idempotent(b"one", b"two"))
    appender = Appender(":".join(map(str, cluster.brokers[leader].kafka_address)))
    await appender.start()
    where = ProducerPartition(PRODUCER_ID, 0, "t", 0, idempotent=True)
    assert await appender.last_sequence(where) == 1
    successor = next(node_id for node_id in cluster.brokers if node_id != leader)
    replicas = cluster.brokers[leader].replicas
    assert isinstance(replicas, Replicas)
    await replicas.hand_over({cluster.log(leader): successor}, SECONDS)
    await cluster.led(by=successor)
    await until(lambda: cluster.brokers[leader].partitions.followed("t", 0) is not None)
    assert await appender.last_sequence(where) == 1
    assert list(appender._session.leaders_of("t", [0])) == [successor]
    await appender.stop(0)


async def delete_records(client: WireClient, topic: str, offset: int, timeout: int) -> str:
    partition = {"partition_index": 0, "offset": offset}
    body = {"topics": [{"name": topic, "partitions": [partition]}], "timeout": timeout}
    answer = await client.call("DeleteRecords", 2, body)
    return str(answer.topics[0].partitions[0].error_code.name)


async def test_finished_deletions_are_reported_without_waiting(
    cluster: Cluster,
) -> None:
    """Apache Kafka looks once whether all replicas have deleted, whatever the timeout."""
    await cluster.create_single("single")
    for _ in range(5):
        await cluster.produce(b"value", "single")
    single = cluster.brokers[1].cluster.image.topics["single"].partitions[0].leader
    for offset in (1, 3, 5):
        assert await delete_records(cluster.clients[single], "single", offset, 0) == "none"
    leader = await cluster.create()
    for _ in range(5):
        await cluster.produce(b"value")
    assert await delete_records(cluster.clients[leader], "t", 2, 0) in ("none", "request_timed_out")
    async with asyncio.timeout(SECONDS):
        while (said := await delete_records(cluster.clients[leader], "t", 2, 0)) != "none":
            assert said == "request_timed_out"
    assert await delete_records(cluster.clients[leader], "t", 4, 10_000) == "none"


async def coordinated_by_another(cluster: Cluster, leader: int) -> tuple[str, int]:
    """A group that another broker than this one coordinates, and which."""
    for number in range(100):
        group = f"g{number}"
        body = {"key_type": 0, "coordinator_keys": [group]}
        answer = await cluster.clients[1].call("FindCoordinator", 4, body)
        node_id = answer.coordinators[0].node_id
        if node_id not in (leader, -1):
            return group, node_id
    raise AssertionError("broker %d coordinates all groups", leader)


async def test_share_groups_show_the_lag_of_partitions_that_others_lead(cluster: Cluster) -> None:
    leader = await cluster.create()
    await cluster.produce(b"0")
    for number in range(1, 5):
        await cluster.produce(b"%d" % number)
    group, coordinator = await coordinated_by_another(cluster, leader)
    client = cluster.clients[coordinator]
    partition = {"partition_index": 0, "start_offset": 2}
    topics = [{"topic_name": "t", "partitions": [partition]}]
    altered = await client.call("AlterShareGroupOffsets", 0, {"group_id": group, "topics": topics})
    assert altered.error_code.name == "none", altered.error_message
    asked = {"groups": [{"group_id": group, "topics": None}]}
    described = await client.call("DescribeShareGroupOffsets", 1, asked)
    [row] = described.groups[0].topics[0].partitions
    assert (row.start_offset, row.lag) == (2, 3)
    # A leader that does not answer leaves the lag unknown.
    silent = await cluster.fall_silent(leader)
    await silent.stop()
    described = await client.call("DescribeShareGroupOffsets", 1, asked)
    assert described.groups[0].topics[0].partitions[0].start_offset == 2


async def test_groups_show_the_lag_of_partitions_that_others_lead(
    tmp_path: Path, postgres_url: str
) -> None:
    """Over HTTP, where the total left out what the coordinator does not lead."""
    cluster = Cluster(tmp_path, postgres_url)
    cluster.settings["admin.listener"] = "127.0.0.1:0"
    async with cluster.running(1, 2, 3):
        leader = await cluster.create()
        for number in range(5):
            await cluster.produce(b"%d" % number)
        group, coordinator = await coordinated_by_another(cluster, leader)
        partition = {
            "partition_index": 0, "committed_offset": 2, "committed_leader_epoch": -1,
            "committed_metadata": None,
        }  # fmt: skip
        body = {
            "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
            "group_instance_id": None, "topics": [{"name": "t", "partitions": [partition]}],
        }  # fmt: skip
        await cluster.clients[coordinator].call("OffsetCommit", 8, body)
        address = cluster.brokers[coordinator].admin_address
        assert address is not None
        url = f"http://{address[0]}:{address[1]}"

        def get(path: str) -> str:
            with urlopen(url + path, timeout=30) as answer:
                return str(answer.read().decode())

        shown = json.loads(await asyncio.to_thread(get, f"/v1/groups/{group}"))
        assert [row["high_watermark"] for row in shown["offsets"]] == [5]
        assert shown["lag_records"] == 3
        labels = f'consumergroup="{group}",partition="0",topic="t"'
        lag = f"kafka_consumergroup_lag{{{labels}}} 3.0"
        assert lag in await asyncio.to_thread(get, "/metrics")
        await cluster.produce(b"5")
        assert lag in await asyncio.to_thread(get, "/metrics"), "the leader was asked again"
        shown = json.loads(await asyncio.to_thread(get, f"/v1/groups/{group}"))
        assert shown["lag_records"] == 4
