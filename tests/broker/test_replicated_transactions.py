"""Transactions on replicated partitions: markers are written by any leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.broker.net.errors import NotLeader
from penstock.client import Client
from tests.broker.test_replicated import Cluster, until
from tests.broker.transactions import committed_values

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


def stable_end(cluster: Cluster) -> int:
    """Return the end of all decided transactions of the topic; 0 without a leader, or before its
    high watermark is there."""
    leader = cluster.leader("t")
    try:
        partition = cluster.brokers[leader].partitions.partition("t", 0)
    except (KeyError, NotLeader):
        return 0
    end = partition.last_stable_offset
    return end if end == partition.high_watermark else 0


@pytest.mark.parametrize("commit", [True, False])
async def test_a_leader_goes_before_its_marker_is_written(cluster: Cluster, commit: bool) -> None:
    leader = await cluster.create()
    addresses = [":".join(map(str, broker.kafka_address)) for broker in cluster.brokers.values()]
    client = Client(addresses)
    producer = client.transactional("tx")
    await asyncio.to_thread(producer.begin)
    rows = pa.table({"value": [b"one", b"two"]})
    await asyncio.to_thread(producer.write_arrow, "t", rows)
    silent = await cluster.fall_silent(leader)
    ended = asyncio.create_task(asyncio.to_thread(producer.commit if commit else producer.abort))
    following = await cluster.led()
    assert following != leader
    await ended
    await until(lambda: stable_end(cluster) == 3)
    servers = ",".join(addresses)
    read = await asyncio.to_thread(committed_values, servers, "t", 1, 2 if commit else 0)
    assert read == ([b"one", b"two"] if commit else [])
    await asyncio.to_thread(client.close)
    await silent.stop()
