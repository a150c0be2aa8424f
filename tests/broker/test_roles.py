"""Brokers with some roles only get the partitions and groups of their roles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.groups.runtime.saving import owner_of
from penstock.broker.server import BrokerServer
from tests.broker.test_cluster_status import asked, facts
from tests.broker.test_drain import facts as said
from tests.broker.test_drain import ran
from tests.broker.test_replicated import knows, until
from tests.broker.test_replicated_moves import moved, order, row
from tests.broker.test_replicated_switch import StoreCluster

pytestmark = pytest.mark.timeout(300)
GROUPS = [f"group-{number}" for number in range(20)]


class RoleCluster(StoreCluster):
    """Cluster of brokers, some of them with configured roles."""

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root, url)
        self.roles: dict[int, str] = {}

    async def start(self, node_id: int) -> BrokerServer:
        self.settings["broker.roles"] = self.roles.get(node_id, "ingestion,persistence")
        return await super().start(node_id)

    async def asked_for(self, **spec: Any) -> tuple[str, str]:
        """Return the error of a topic's creation."""
        whole = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        body = {"topics": [{**whole, **spec}], "timeout": 5000}
        answer = await self.clients[1].call("CreateTopics", 7, body)
        return answer.topics[0].error_code.name, str(answer.topics[0].error_message)

    async def topic(self, name: str) -> Any:
        body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        return await self.clients[max(self.clients)].call("Metadata", 9, body)


def in_sync(broker: BrokerServer, copies: int) -> bool:
    """Whether so many copies have all that is acknowledged, by what the broker knows."""
    return len(broker.cluster.image.topics["t"].partitions[0].isr) == copies


async def all_in_sync(cluster: RoleCluster, copies: int) -> None:
    """Wait until all brokers know that: before, the doctor ends with status 1."""
    for broker in cluster.brokers.values():
        await until(partial(in_sync, broker, copies))


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[RoleCluster]:
    """Broker 1 has no replicas, 2 and 3 nothing else, 4 is as brokers are."""
    made = RoleCluster(tmp_path, postgres_url)
    made.roles = {1: "ingestion", 2: "persistence", 3: "persistence"}
    async with made.running(1, 2, 3, 4):
        yield made


async def test_replicas_are_placed_on_brokers_with_the_role(cluster: RoleCluster) -> None:
    assert await cluster.create() in (2, 3, 4)
    assert {*row(cluster).replicas} == {2, 3, 4}
    assert await cluster.produce(b"value") == 0
    assert (await cluster.asked_for(name="many", num_partitions=30))[0] == "none"
    [many] = (await cluster.topic("many")).topics
    assert {partition.leader_id for partition in many.partitions} == {2, 3, 4}
    refused = (
        "broker 1 cannot get replicas: its broker.roles = ingestion does not include persistence"
    )
    code, why = await cluster.asked_for(name="four", replication_factor=4)
    assert code == "invalid_replication_factor"
    assert "only 3 broker(s) can get replicas; broker(s) 1 are excluded" in why
    by_hand = [{"partition_index": 0, "broker_ids": [2, 1]}]
    code, why = await cluster.asked_for(
        name="by-hand", num_partitions=-1, replication_factor=-1, assignments=by_hand
    )
    assert (code, why) == ("invalid_replica_assignment", refused)
    assert await order(cluster, (2, 3, 1)) == ("invalid_replica_assignment", refused)
    grown = {"name": "many", "count": 31, "assignments": [{"broker_ids": [1]}]}
    body = {"topics": [grown], "timeout": 5000, "validate_only": False}
    answer = await cluster.clients[1].call("CreatePartitions", 3, body)
    assert answer.results[0].error_message == refused
    _, told = await ran(cluster, "topic", "reassign", "t", "--factor", "4", status=1)
    assert "t-0 cannot have 4 replicas: only 3 brokers are eligible" in told


async def test_what_needs_no_replica_goes_where_it_is_to(cluster: RoleCluster) -> None:
    diskless = [{"name": "diskless.enable", "value": "true"}]
    made = await cluster.asked_for(name="d", num_partitions=20, configs=diskless)
    assert made[0] == "none"
    answer = await cluster.topic("d")
    assert {partition.leader_id for partition in answer.topics[0].partitions} == {1, 4}
    assert answer.controller_id == 1
    assert {broker.node_id for broker in answer.brokers} == {1, 2, 3, 4}, "any may be asked"
    images = [broker.cluster.image for broker in cluster.brokers.values()]
    assert {owner_of(image, key).broker_id for image in images for key in GROUPS} == {1, 4}
    for gone in (1, 4):
        await cluster.stop(gone)
    left = list(cluster.brokers.values())
    for broker in left:
        await until(partial(knows, broker, 2))
    assert {owner_of(left[0].cluster.image, key).broker_id for key in GROUPS} == {2, 3}
    answer = await cluster.topic("d")
    assert {partition.leader_id for partition in answer.topics[0].partitions} == {2, 3}


@pytest.mark.long
async def test_a_broker_that_is_to_have_no_replicas_any_more(cluster: RoleCluster) -> None:
    leader = await cluster.create(factor=2, minimum=1)
    await cluster.produce(b"value")
    cluster.roles[leader] = "ingestion"
    await cluster.stop(leader)
    await cluster.start(leader)
    for broker in cluster.brokers.values():
        await until(partial(knows, broker, 4))
    await cluster.led()
    await all_in_sync(cluster, 2)
    found = {fact["broker"]: fact for fact in (await facts(cluster))["brokers"]}
    assert (found[leader]["roles"], found[leader]["copies"]) == (["ingestion"], 1)
    held = (
        f"broker {leader} has broker.roles = ingestion, but holds replicas of 1 partition,"
        " such as t-0"
    )
    assert held in await asked(cluster, "doctor")
    [move] = (await said(cluster, "cluster", "advise"))["moves"]
    assert (move["why"], leader in move["to"]) == ("broker is to go", False)
    assert 1 not in move["to"]
    await ran(cluster, "broker", "drain", str(leader))
    [other] = {2, 3, 4} - {*move["replicas"]}
    await moved(
        cluster, tuple(other if replica == leader else replica for replica in move["replicas"])
    )
    await all_in_sync(cluster, 2)
    assert held not in await asked(cluster, "doctor")
    assert await cluster.produce(b"goes on") == 1
