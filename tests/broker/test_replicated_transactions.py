"""Transactions of replicated partitions: every copy knows them, and who leads next goes on."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from penstock.broker.server import BrokerServer
from penstock.partitions import ReplicatedPartition
from penstock.records import split_batches
from penstock.replication.errors import NotLeading, TooFewReplicas
from tests.broker.test_replicated import Cluster, has, until
from tests.broker.test_replicated import cluster as cluster
from tests.broker.test_replicated_racks import fetch
from tests.broker.test_replicated_racks import racks as racks
from tests.broker.transactions import Verifier, aborted, end, fetch_committed, produce, sent
from tests.broker.wire_client import batch

pytestmark = pytest.mark.timeout(300)


def partition_of(broker: BrokerServer) -> ReplicatedPartition:
    found = broker.partitions.with_log("t", 0)
    assert isinstance(found, ReplicatedPartition)
    return found


async def created(cluster: Cluster) -> tuple[int, Verifier]:
    """A topic and its leader; one verifier for all."""
    verifier = Verifier()
    for broker in cluster.brokers.values():
        broker.verifier = verifier
    leader = await cluster.create()
    await cluster.whole("t")
    return leader, verifier


async def some_transactions(cluster: Cluster, leader: int) -> None:
    """Aborted, committed and open ones, up to offset 9; the open one has been since 2."""
    client, partition = cluster.clients[leader], partition_of(cluster.brokers[leader])
    for producer_id in (8, 9, 7, 10):
        row = await produce(client, sent(b"%d a" % producer_id, producer_id=producer_id))
        assert row.error_code.name == "none"
    await end(partition, commit=False, producer_id=8)
    await end(partition, commit=True, producer_id=9)
    await produce(client, sent(b"10 b", producer_id=10, sequence=1))
    await end(partition, commit=False, producer_id=10)
    await client.produce("t", batch(b"plain"))


async def test_who_leads_next_goes_on_with_open_transactions(cluster: Cluster) -> None:
    leader, verifier = await created(cluster)
    await some_transactions(cluster, leader)
    logs = {one: cluster.log(one) for one in (1, 2, 3)}
    for log in logs.values():
        await until(partial(has, log, 9))
        assert log.log.aborted(0, 9) == logs[leader].log.aborted(0, 9)
        assert log.log.producers() == [
            one._replace(last_timestamp=other.last_timestamp)
            for one, other in zip(logs[leader].log.producers(), log.log.producers(), strict=True)
        ]
    before = await fetch_committed(cluster.clients[leader])
    assert (before.last_stable_offset, aborted(before)) == (2, [(8, 0)])
    await cluster.stop(leader)
    following = await cluster.led()
    client, partition = cluster.clients[following], partition_of(cluster.brokers[following])
    await until(lambda: partition.high_watermark == 9)
    row = await fetch_committed(client)
    assert (row.last_stable_offset, aborted(row)) == (2, [(8, 0)])
    assert bytes(row.records) == bytes(before.records)
    # The transaction goes on without another verification, and in its order.
    asked = len(verifier.asked)
    row = await produce(client, sent(b"7 c", sequence=2))
    assert row.error_code.name == "out_of_order_sequence_number"
    row = await produce(client, sent(b"7 b", sequence=1))
    assert (row.error_code.name, len(verifier.asked)) == ("none", asked)
    await end(partition, commit=False)
    row = await fetch_committed(client)
    assert row.last_stable_offset == partition.high_watermark == 11
    assert aborted(row) == [(8, 0), (7, 2), (10, 3)]
    # The former leader comes back, and knows what was decided without it.
    await cluster.start(leader)
    await until(lambda: has(cluster.log(leader), 11))
    assert cluster.log(leader).log.aborted(0, 11) == cluster.log(following).log.aborted(0, 11)


async def test_a_marker_counts_when_a_quorum_has_it(cluster: Cluster) -> None:
    leader, _ = await created(cluster)
    await produce(cluster.clients[leader], sent(b"one"))
    partition = partition_of(cluster.brokers[leader])
    silent = await cluster.fall_silent(leader)
    with pytest.raises((NotLeading, TooFewReplicas)):
        await end(partition, commit=True)
    assert partition.last_stable_offset == 0
    following = await cluster.led()
    await end(partition_of(cluster.brokers[following]), commit=True)
    row = await fetch_committed(cluster.clients[following])
    assert (row.last_stable_offset, row.high_watermark) == (2, 2)
    assert split_batches(bytes(row.records))[-1].is_control
    with pytest.raises((NotLeading, TooFewReplicas)):
        await end(partition, commit=True)
    await silent.stop()


async def test_readers_wait_for_a_marker_that_is_on_its_way(cluster: Cluster) -> None:
    leader, _ = await created(cluster)
    client = cluster.clients[leader]
    await produce(client, sent(b"one"))
    waiting = asyncio.create_task(fetch_committed(client, max_wait=60_000))
    await end(partition_of(cluster.brokers[leader]), commit=False)
    row = await waiting
    assert (row.last_stable_offset, aborted(row)) == (2, [(7, 0)])


async def test_a_follower_answers_readers_of_committed_records(racks: Cluster) -> None:
    leader, _ = await created(racks)
    follower = next(one for one in (1, 2, 3) if one != leader)
    await some_transactions(racks, leader)
    await until(partial(has, racks.log(follower), 9))
    rack = f"rack-{follower}"
    row = await fetch(racks, follower, 0, rack, isolation_level=1)
    assert (row.last_stable_offset, row.high_watermark, aborted(row)) == (2, 9, [(8, 0)])
    await end(partition_of(racks.brokers[leader]), commit=True)
    await until(partial(has, racks.log(follower), 10))
    row = await fetch(racks, follower, 0, rack, isolation_level=1)
    assert (row.last_stable_offset, aborted(row)) == (10, [(8, 0), (10, 3)])
