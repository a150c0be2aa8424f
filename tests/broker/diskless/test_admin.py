"""Diskless topics in the admin interface: views, health, metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from penstock.diskless.topics.serving import NotServing
from tests.broker.admin.test_admin import fetch
from tests.broker.diskless.conftest import Cluster
from tests.broker.handlers.conftest import readiness_of
from tests.broker.wire_client import WireClient, batch

Create = Callable[..., Awaitable[Any]]


@pytest.fixture
async def broker(cluster: Cluster) -> BrokerServer:
    return await cluster.start({"admin.listener": "127.0.0.1:0"})


async def get(broker: BrokerServer, path: str) -> Any:
    assert broker._admin is not None
    status, answer = await fetch(broker._admin, path)
    assert status == 200, answer
    return answer


async def test_views_show_place_and_size_of_a_diskless_topic(
    broker: BrokerServer, client: WireClient, create: Create
) -> None:
    await create("d", 2)
    await create("l", diskless_enable="false")
    sent = batch(b"a", b"b")
    await client.produce("d", sent, partition=1)
    topics = {topic["topic"]: topic for topic in (await get(broker, "/v1/topics"))["topics"]}
    assert [topics[name]["diskless"] for name in ("d", "l")] == [True, False]
    assert topics["d"]["size_bytes"] == len(sent)
    assert topics["d"]["offset_span"] == 2
    rows = (await get(broker, "/v1/topics/d"))["partitions"]
    assert [(row["leader"], row["leader_epoch"], row["high_watermark"]) for row in rows] == [
        (1, 0, 0),
        (1, 0, 2),
    ]


async def test_views_ask_for_what_other_brokers_took(
    cluster: Cluster, broker: BrokerServer, create: Create
) -> None:
    await create("d")
    other = await cluster.connect(await cluster.start())
    await other.produce("d", batch(b"a"))
    (row,) = (await get(broker, "/v1/topics/d"))["partitions"]
    assert row["high_watermark"] == 1


async def test_metrics_of_all_parts_are_scraped(
    broker: BrokerServer, client: WireClient, create: Create
) -> None:
    assert "penstock_diskless" not in await get(broker, "/metrics")
    await create("d")
    await client.produce("d", batch(b"a"))
    await client.fetch("d", 0, max_wait=30_000)
    text = await get(broker, "/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["penstock_diskless_objects_committed_total"]) == 1
    assert float(values["penstock_diskless_read_bytes_total"]) > 60
    assert float(values["penstock_diskless_known_extents"]) == 1
    assert values['kafka_topic_partition_current_offset{partition="0",topic="d"}'] == "1.0"


async def test_a_broker_without_a_store_says_so(
    cluster: Cluster, broker: BrokerServer, create: Create
) -> None:
    await create("d")
    readiness, service = readiness_of(broker), broker.diskless
    assert service is not None
    assert (await readiness.look()).good
    broker.assembly.diskless = None
    without = await readiness_of(broker).look()
    assert "no object store" in {check.name: check.cause for check in without.checks}["diskless"]
    service._serving.failed = NotServing("the bucket is gone")
    assert not (await readiness.look()).good
    assert readiness.alive().good


async def test_log_dirs_of_all_brokers_add_up(
    cluster: Cluster, broker: BrokerServer, client: WireClient, create: Create
) -> None:
    other = await cluster.connect(await cluster.start())
    await create("d", 8)
    await create("l", diskless_enable="false")
    data = batch(b"a" * 100)
    for partition in range(8):
        await client.produce("d", data, partition=partition)
    found: list[tuple[str, int, int]] = []
    for connection in (client, other):
        answer = await connection.call("DescribeLogDirs", 4, {"topics": None})
        local, remote = answer.results
        assert "d" not in {topic.name for topic in local.topics}
        assert (remote.error_code, remote.total_bytes, remote.usable_bytes) == (0, -1, -1)
        found += [
            (topic.name, row.partition_index, row.partition_size)
            for topic in remote.topics
            for row in topic.partitions
        ]
    assert sorted(found) == [("d", partition, len(data)) for partition in range(8)]
