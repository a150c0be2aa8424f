"""Consumers with a rack read committed records from the replica in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.test_replicated import Cluster, has, knows, until
from tests.broker.wire_client import WireClient, batch, fetch_request

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def racks(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    for node_id in (1, 2, 3):
        made.settings = {
            "broker.rack": f"rack-{node_id}",
            "group.consumer.assignment.interval.ms": 15_000,
        }
        await made.start(node_id)
    for server in made.brokers.values():
        await until(partial(knows, server, 3))
    yield made
    for node_id in list(made.brokers):
        await made.stop(node_id)


async def fetch(cluster: Cluster, node_id: int, offset: int, rack: str, **changes: Any) -> Any:
    return await cluster.clients[node_id].fetch("t", offset, rack_id=rack, **changes)


async def all_in_sync(cluster: Cluster, leader: int, end: int) -> None:
    await until(
        lambda: (
            len(cluster.brokers[leader].cluster.image.topics["t"].partitions[0].isr) == 3
            and all(has(cluster.log(node_id), end) for node_id in (1, 2, 3))
        )
    )


async def test_a_consumer_reads_from_the_replica_in_its_rack(racks: Cluster) -> None:
    leader = await racks.create()
    follower = next(broker_id for broker_id in (1, 2, 3) if broker_id != leader)
    for number in range(5):
        await racks.produce(b"value %d" % number)
    await all_in_sync(racks, leader, 5)
    sent = await fetch(racks, leader, 0, f"rack-{follower}")
    assert (sent.error_code.name, sent.preferred_read_replica) == ("none", follower)
    assert not sent.records
    for rack in (f"rack-{leader}", "", "elsewhere"):
        near = await fetch(racks, leader, 0, rack)
        assert near.preferred_read_replica == -1
        assert near.records
    epoch = racks.log(leader).leading.core.epoch  # type: ignore[union-attr]
    found = await fetch(racks, follower, 0, f"rack-{follower}", current_leader_epoch=epoch)
    assert found.error_code.name == "none"
    assert bytes(found.records) == bytes(near.records)
    assert (found.high_watermark, found.preferred_read_replica) == (5, -1)
    # Others than it are told who leads, and nothing is taken but by the leader.
    refused = await fetch(racks, follower, 0, "")
    assert refused.error_code.name == "not_leader_or_follower"
    row = await racks.clients[follower].produce("t", batch(b"here"))
    assert row.error_code.name == "not_leader_or_follower"
    old = await fetch(racks, follower, 0, "anywhere", current_leader_epoch=epoch - 1)
    assert old.error_code.name == "fenced_leader_epoch"
    request = fetch_request({("t", 0): 0}, current_leader_epoch=epoch - 1)
    del request["replica_id"]
    topic_id = racks.brokers[leader].cluster.image.topics["t"].topic_id
    request["topics"][0]["topic_id"] = topic_id
    answer = await racks.clients[leader].call("Fetch", 17, request)
    told = answer.responses[0].partitions[0]
    assert told.error_code.name == "fenced_leader_epoch"
    assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (leader, epoch)
    assert [node_endpoint.node_id for node_endpoint in answer.node_endpoints] == [leader]


async def test_a_follower_answers_what_it_learns_to_be_committed(racks: Cluster) -> None:
    leader = await racks.create()
    follower = next(broker_id for broker_id in (1, 2, 3) if broker_id != leader)
    await racks.produce(b"first")
    await all_in_sync(racks, leader, 1)
    rack = f"rack-{follower}"
    client = await WireClient.connect(racks.brokers[follower].kafka_address)
    waiting = asyncio.create_task(client.fetch("t", 1, rack_id=rack, max_wait=60_000))
    assert await racks.produce(b"second") == 1
    assert b"second" in bytes((await waiting).records)
    await client.close()
    # What may be committed elsewhere is not out of range: there is nothing of it yet.
    beyond = await fetch(racks, follower, 40, rack)
    assert beyond.error_code.name == "none"
    assert not beyond.records
    assert (await fetch(racks, leader, 40, "")).error_code.name == "offset_out_of_range"


async def test_clients_are_not_sent_to_an_offline_replica(racks: Cluster) -> None:
    leader = await racks.create()
    follower = next(broker_id for broker_id in (1, 2, 3) if broker_id != leader)
    await racks.produce(b"first")
    await all_in_sync(racks, leader, 1)
    await racks.stop(follower)
    await until(lambda: knows(racks.brokers[leader], 2))
    assert (await fetch(racks, leader, 0, f"rack-{follower}")).records
    wanted = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
    answer = await racks.clients[leader].call("Metadata", 9, wanted)
    assert answer.topics[0].partitions[0].offline_replicas == (follower,)
    pages = {"topics": [{"name": "t"}], "response_partition_limit": 10, "cursor": None}
    described = await racks.clients[leader].call("DescribeTopicPartitions", 0, pages)
    assert described.topics[0].partitions[0].offline_replicas == (follower,)


async def test_members_are_assigned_partitions_with_replicas_in_their_rack(racks: Cluster) -> None:
    await asyncio.to_thread(members_read_in_their_racks, racks)


def members_read_in_their_racks(racks: Cluster) -> None:
    places = [next(iter(broker.identity.endpoints.values())) for broker in racks.brokers.values()]
    bootstrap = ",".join(f"{host}:{port}" for host, port in places)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("alone", 9, 1)])["alone"].result(30)
    with ExitStack() as stack:
        members = {}
        for node_id in racks.brokers:
            members[node_id] = Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": "g",
                    "group.protocol": "consumer",
                    "client.rack": f"rack-{node_id}",
                    "log_level": 0,
                }
            )
            stack.callback(members[node_id].close)
            members[node_id].subscribe(["alone"])
        for _ in range(600):
            for member in members.values():
                member.poll(0.05)
            found = {name: {p.partition for p in m.assignment()} for name, m in members.items()}
            rows = next(iter(racks.brokers.values())).cluster.image.topics["alone"].partitions
            wanted = {
                broker_id: {row.index for row in rows if row.replicas == (broker_id,)}
                for broker_id in racks.brokers
            }
            if found == wanted:  # earlier members share all partitions until the last one joins
                break
        assert found == wanted
