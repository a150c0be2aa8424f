"""Quotas over diskless topics: they apply as elsewhere, and delayed requests read nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.broker.diskless.conftest import Cluster
from tests.broker.test_quotas import limit
from tests.broker.wire_client import batch, fetch_request, produce_request
from tests.diskless.faults import FaultyStore

Create = Callable[..., Awaitable[Any]]


class CountingStore(FaultyStore):
    """Counts reads."""

    gets = 0

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        self.gets += 1
        return await super().get(key, start, size_bytes)


async def test_producers_of_diskless_topics_keep_their_quotas(
    cluster: Cluster, create: Create
) -> None:
    await create("t")
    client = await cluster.connect(cluster.brokers[0])
    await limit(client, "producer_byte_rate", 100)
    answer = await client.call("Produce", 9, produce_request("t", batch(b"x" * 2000)))
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert answer.throttle_time.total_seconds() > 5


async def test_a_consumer_above_its_quota_has_nothing_read_from_the_store(
    cluster: Cluster,
) -> None:
    store = cluster.objects = CountingStore(cluster.objects)
    first = await cluster.connect(await cluster.start())
    for name in ("t", "u"):
        topic = {
            "name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [],
            "configs": [{"name": "diskless.enable", "value": "true"}],
        }  # fmt: skip
        await first.call("CreateTopics", 7, {"topics": [topic], "timeout": 5000})
        await first.produce(name, batch(b"x" * 5000))
    other = await cluster.start()
    cold = await cluster.connect(other)
    await limit(cold, "consumer_byte_rate", 450)
    answer = await cold.call("Fetch", 12, fetch_request({("t", 0): 0}, max_wait=30_000))
    assert len(answer.responses[0].partitions[0].records) > 5000
    assert answer.throttle_time.total_seconds() > 0.5
    read = store.gets
    assert read > 0
    again = await cluster.connect(other)
    answer = await again.call("Fetch", 12, fetch_request({("u", 0): 0}, max_wait=30_000))
    assert (answer.responses, store.gets) == ((), read)
    assert answer.throttle_time.total_seconds() > 0
    await limit(first, "consumer_byte_rate", None)
    await other.cluster.refresh()
    free = await cluster.connect(other)
    answer = await free.call("Fetch", 12, fetch_request({("u", 0): 0}, max_wait=30_000))
    assert len(answer.responses[0].partitions[0].records) > 5000
    assert store.gets > read
