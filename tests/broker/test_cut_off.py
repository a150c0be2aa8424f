"""Leaders that other brokers cannot reach, while all are registered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.partitions.replicas import Replicas
from penstock.control import ControlUnavailable, MetadataImage
from penstock.replication.links import Links
from tests.broker.test_replicated import SECONDS, Cluster, has, until
from tests.broker.test_replicated import cluster as cluster
from tests.broker.test_replicated_faults import lead_anew
from tests.broker.wire_client import batch

pytestmark = pytest.mark.timeout(300)


def links(cluster: Cluster, node_id: int) -> Links:
    replicas = cluster.brokers[node_id].replicas
    assert isinstance(replicas, Replicas)
    return replicas.replication.links


def cut(cluster: Cluster, node_id: int) -> None:
    """Cut a broker off from the others, but not from the control plane and its clients."""
    own = links(cluster, node_id)
    own.refusal_of = lambda greeting, expected: "a cut"  # type: ignore[method-assign]
    for link in list(own._open):
        link.close("a cut")


def heal(cluster: Cluster, node_id: int) -> None:
    del links(cluster, node_id).refusal_of


def leads(cluster: Cluster, node_id: int) -> bool:
    leading = cluster.log(node_id).leading
    return leading is not None and leading.leads


async def produces(cluster: Cluster, node_id: int, value: bytes) -> str:
    answer = await cluster.clients[node_id].produce("t", batch(value), acks=-1)
    return str(answer.error_code.name)


async def test_a_leader_cut_off_from_its_followers_is_replaced(cluster: Cluster) -> None:
    leader = await cluster.create()
    assert await produces(cluster, leader, b"before") == "none"
    copies = [cluster.log(node_id) for node_id in (1, 2, 3)]
    await until(lambda: all(has(replica, 1) and not replica.copy.core.limbo for replica in copies))
    cut(cluster, leader)
    others = [broker_id for broker_id in (1, 2, 3) if broker_id != leader]
    await until(lambda: cluster.leader() in others)
    successor = await cluster.led()
    assert await produces(cluster, successor, b"meanwhile") == "none"
    assert await produces(cluster, leader, b"in vain") == "not_leader_or_follower"
    image = cluster.brokers[successor].cluster.image
    assert [broker.broker_id for broker in image.brokers] == [1, 2, 3], "all are registered"
    heal(cluster, leader)
    await until(lambda: cluster.log(leader).log.log_end_offset == 2)
    assert cluster.leader() == successor


async def test_an_isolated_broker_closes_connections_of_clients(cluster: Cluster) -> None:
    """Cut off from the database, too: clients that reach it must not stay with it."""
    leader = await cluster.create()
    assert await produces(cluster, leader, b"before") == "none"
    copies = [cluster.log(node_id) for node_id in (1, 2, 3)]
    await until(lambda: all(has(replica, 1) and not replica.copy.core.limbo for replica in copies))
    server, client = cluster.brokers[leader], cluster.clients[leader]
    known = server.cluster.image

    async def stale() -> MetadataImage:
        return known

    async def away(*_: object, **__: object) -> Any:
        raise ControlUnavailable("away")

    server.cluster.control.image = stale  # type: ignore[method-assign]
    server.cluster.control.resign = away  # type: ignore[method-assign]
    assert server._liveness is not None
    await server._liveness.stop()
    cut(cluster, leader)
    await until(lambda: cluster.log(leader).leading.may_be_over())  # type: ignore[union-attr]
    own = cluster.log(leader).leading
    assert own is not None
    assert own.leads
    assert await produces(cluster, leader, b"in vain") == "not_leader_or_follower"
    assert (await client.fetch("t", 1)).error_code.name == "not_leader_or_follower"
    assert (await client.fetch("t", 0)).records, "what is there is read"
    end = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    asked = [{"name": "t", "partitions": [end]}]
    request = {"replica_id": -1, "isolation_level": 0, "topics": asked}
    answer = await client.call("ListOffsets", 6, request)
    assert answer.topics[0].partitions[0].error_code.name == "not_leader_or_follower"
    await client.call("Metadata", 9, {"topics": [{"name": "t"}]})
    assert await client.closed_by_server(), "or it would ask here again"
    others = [node_id for node_id in (1, 2, 3) if node_id != leader]
    await until(lambda: any(leads(cluster, node_id) for node_id in others))


async def test_a_broker_without_the_database_returns_the_leader_that_it_follows(
    cluster: Cluster,
) -> None:
    """A client that asks it alone would otherwise be sent to it for as long as that lasts."""
    await cluster.create()
    leader = 3  # which is dialled by the others, and dials none
    await until(lambda: 3 in cluster.brokers[1].cluster.image.topics["t"].partitions[0].isr)
    if cluster.leader() != leader:
        await lead_anew(cluster, leader)
    await cluster.led(by=leader)
    assert await produces(cluster, leader, b"before") == "none"
    server, client = cluster.brokers[leader], cluster.clients[leader]
    await until(lambda: server.cluster.image.topics["t"].partitions[0].leader == leader)
    control, known = server.cluster.control, server.cluster.image

    async def stale() -> MetadataImage:
        return known

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "image", stale)
        assert server._liveness is not None
        await server._liveness.stop()
        await until(lambda: cluster.leader() not in (0, leader))
        successor = cluster.leader()

        async def named() -> tuple[int, int]:
            (topic,) = (await client.call("Metadata", 9, {"topics": [{"name": "t"}]})).topics
            (row,) = topic.partitions
            return int(row.leader_id), int(row.leader_epoch)

        async with asyncio.timeout(SECONDS):
            while (await named())[0] != successor:
                await asyncio.sleep(0.01)
        led = cluster.log(successor).leading
        assert led is not None
        assert await named() == (successor, led.core.epoch)
        assert await produces(cluster, leader, b"in vain") == "not_leader_or_follower"
        row = await client.produce("t", batch(b"in vain"), version=12)
        assert row.current_leader.leader_id == successor
    await server.cluster.refresh()
    (row,) = server.cluster.image.topics["t"].partitions
    assert (row.leader, row.leader_epoch) == (successor, led.core.epoch)


async def test_a_successor_without_a_quorum_resigns_too(cluster: Cluster) -> None:
    """Each broker tries for a while, until one with a quorum leads."""
    leader = await cluster.create()
    for node_id in (1, 2, 3):
        cut(cluster, node_id)
    named: set[int] = set()

    def all_were() -> bool:
        named.add(cluster.brokers[1].cluster.image.topics["t"].partitions[0].leader)
        return len(named) == 3

    await until(all_were)
    for node_id in (1, 2, 3):
        heal(cluster, node_id)
    await until(lambda: cluster.leader() > 0)
    assert await produces(cluster, cluster.leader(), b"again") == "none"
    assert leader in named
