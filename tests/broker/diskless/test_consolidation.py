"""Consumers before, during and after consolidation read the same bytes from any broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from tests.broker.diskless.conftest import Cluster
from tests.broker.diskless.test_positions import T0, position
from tests.broker.diskless.test_records import _creation, fetched
from tests.broker.wire_client import WireClient, batch

REQUESTS = 40
CONSOLIDATING: dict[str, Any] = {
    "diskless_consolidation_interval_ms": 20,
    "diskless_consolidation_min_extents": 2,
    "diskless_consolidation_segment_bytes": 1 << 20,
    "diskless_sweep_interval_ms": 20,
    "diskless_sweep_unreferenced_grace_ms": 0,
}


async def log_of(client: WireClient, *, max_bytes: int) -> bytes:
    """Read everything from the beginning to the end, in responses of this size."""
    records = b""
    offset = 0
    while offset < 2 * REQUESTS:
        got = await fetched(client, "t", offset, partition_max_bytes=max_bytes)
        assert got.error_code == 0
        assert got.records
        records += got.records
        last = got.records
        while last:
            size_bytes = int.from_bytes(last[8:12], "big") + 12
            offset = int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big") + 1
            last = last[size_bytes:]
    return records


async def kinds(cluster: Cluster) -> list[str]:
    image = await cluster.control.image()
    topic_id = image.topics["t"].topic_id
    found = await cluster.control.extents(topic_id, 0, start=0, end=2**62, limit=10_000)
    return [extent.kind for extent in found]


async def wal_objects(cluster: Cluster) -> list[str]:
    return [info.key async for info in cluster.objects.list("wal/")]


@pytest.fixture(params=["create", "append"])
async def writer(
    cluster: Cluster, request: pytest.FixtureRequest
) -> tuple[BrokerServer, WireClient]:
    """Make a broker that does not consolidate, with a log of many objects."""
    broker = await cluster.start(diskless_consolidation_interval_ms=0)
    client = await cluster.connect(broker)
    creation = _creation("t")
    if request.param == "append":
        creation["topics"][0]["configs"].append(
            {"name": "message.timestamp.type", "value": "LogAppendTime"}
        )
    await client.call("CreateTopics", 7, creation)
    for number in range(REQUESTS):
        sent = batch(b"%d" % number * 200, b"b", timestamp_ms=T0 + number)
        assert (await client.produce("t", sent)).base_offset == 2 * number
    return broker, client


async def test_a_consumer_gets_the_same_before_during_and_after(
    cluster: Cluster, writer: tuple[BrokerServer, WireClient]
) -> None:
    _, client = writer
    before = await log_of(client, max_bytes=1 << 20)
    appended = (await position(client, T0 + 7))[1] != T0 + 7
    times = [await position(client, T0 + number) for number in (0, 7, REQUESTS - 1)]
    assert len(await kinds(cluster)) == REQUESTS
    age: dict[str, Any] = {"diskless_consolidation_min_age_ms": 0} if appended else {}
    consolidating = await cluster.start(**CONSOLIDATING, **age)
    await consolidating.cluster.refresh()
    async with asyncio.timeout(60):
        over = False
        while not over:
            over = "wal" not in await kinds(cluster) and not await wal_objects(cluster)
            for max_bytes in (1, 3_000, 1 << 20):
                assert await log_of(client, max_bytes=max_bytes) == before
    assert await kinds(cluster) == ["segment"]
    # A broker that has read nothing yet, and those that knew the extents of before.
    fresh = await cluster.start(diskless_consolidation_interval_ms=0)
    await fresh.cluster.refresh()
    for broker in cluster.brokers:
        reader = await cluster.connect(broker)
        for max_bytes in (1, 3_000, 1 << 20):
            assert await log_of(reader, max_bytes=max_bytes) == before
        assert [await position(reader, T0 + n) for n in (0, 7, REQUESTS - 1)] == times
    values = {sample.metric.name: sample.value for sample in consolidating.samples()}
    assert values["penstock_diskless_consolidation_extents_total"] == REQUESTS
    assert values["penstock_diskless_consolidation_segments_total"] == 1
