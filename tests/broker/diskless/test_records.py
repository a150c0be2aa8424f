"""Produce and fetch of diskless topics, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.base.pause import pause
from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.server import BrokerServer
from penstock.diskless.topics import service as service_module
from penstock.objects import StoreUnavailable
from penstock.records import split_batches
from tests.broker.diskless.conftest import Cluster
from tests.broker.wire_client import WireClient, batch, fetch_request, produce_request
from tests.diskless.faults import FaultyStore
from tests.storage.batches import batch as numbered

Create = Callable[..., Awaitable[Any]]
WAIT = {"max_wait": 30_000}


def offsets(records: bytes | None) -> list[int]:
    return [
        header.base_offset + n
        for header in split_batches(records or b"")
        for n in range(header.record_count)
    ]


async def fetched(client: WireClient, topic: str, offset: int = 0, **changes: Any) -> Any:
    return await client.fetch(topic, offset, **{**WAIT, **changes})


async def test_what_is_produced_is_fetched(client: WireClient, create: Create) -> None:
    assert (await create("t")).error_code == 0
    done = await client.produce("t", batch(b"a", b"b"))
    assert (done.error_code, done.base_offset, done.log_start_offset) == (0, 0, 0)
    assert (await client.produce("t", batch(b"c"), acks=1)).base_offset == 2
    found = await fetched(client, "t")
    assert found.error_code == 0
    assert offsets(found.records) == [0, 1, 2]
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (3, 3, 0)
    assert all(header.partition_leader_epoch == 0 for header in split_batches(found.records))
    assert offsets((await fetched(client, "t", 2)).records) == [2]
    committed = await fetched(client, "t", 1, isolation_level=1)
    assert offsets(committed.records) == [0, 1, 2]
    assert committed.aborted_transactions == ()


async def test_no_file_of_a_diskless_topic_is_on_the_broker(
    cluster: Cluster, client: WireClient, create: Create
) -> None:
    await create("t", 3)
    await client.produce("t", batch(b"a"))
    assert not [path for path in cluster.root.rglob("t-*")]


async def test_a_consumer_at_the_end_is_woken_by_a_commit(
    cluster: Cluster, broker: BrokerServer, client: WireClient, create: Create
) -> None:
    await create("t")
    other = await cluster.connect(broker)
    waiting = asyncio.create_task(fetched(other, "t", max_wait=30_000))
    async with asyncio.timeout(60):
        while not len(broker.fetch_hub):
            await asyncio.sleep(0)
    await client.produce("t", batch(b"a"))
    async with asyncio.timeout(60):
        assert offsets((await waiting).records) == [0]


async def test_acks_0_is_written_and_not_answered(client: WireClient, create: Create) -> None:
    await create("t")
    client.writer.write(client.frame("Produce", 9, produce_request("t", batch(b"a"), acks=0)))
    assert offsets((await fetched(client, "t")).records) == [0]


async def test_acks_0_that_fails_closes_the_connection(
    cluster: Cluster, broker: BrokerServer, client: WireClient, create: Create
) -> None:
    await create("t")
    other = await cluster.connect(broker)
    damaged = bytearray(batch(b"a"))
    damaged[-1] ^= 1
    other.writer.write(other.frame("Produce", 9, produce_request("t", bytes(damaged), acks=0)))
    assert await other.closed_by_server()


def request_of(parts: dict[tuple[str, int], bytes], timeout: int = 10_000) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), records in parts.items():
        topics.setdefault(topic, []).append({"index": index, "records": records})
    return {
        "acks": -1,
        "timeout": timeout,
        "topic_data": [{"name": n, "partition_data": rows} for n, rows in topics.items()],
    }


def results_of(answer: Any) -> dict[tuple[str, int], tuple[int, int]]:
    return {
        (topic.name, row.index): (int(row.error_code), row.base_offset)
        for topic in answer.responses
        for row in topic.partition_responses
    }


async def test_one_request_has_local_and_diskless_partitions_and_errors_of_both(
    client: WireClient, create: Create
) -> None:
    await create("d", 2)
    await create("l", 2, diskless_enable="false")
    damaged = bytearray(batch(b"x"))
    damaged[-1] ^= 1
    parts = {
        ("d", 0): batch(b"a", b"b"),
        ("l", 0): batch(b"c"),
        ("d", 1): bytes(damaged),
        ("l", 1): bytes(damaged),
        ("d", 9): batch(b"d"),
        ("none", 0): batch(b"e"),
    }
    answer = await client.call("Produce", 9, request_of(parts))
    assert results_of(answer) == {
        ("d", 0): (0, 0),
        ("l", 0): (0, 0),
        ("d", 1): (2, -1),
        ("l", 1): (2, -1),
        ("d", 9): (3, -1),
        ("none", 0): (3, -1),
    }
    found = await client.call(
        "Fetch", 12, fetch_request({("d", 0): 0, ("l", 0): 0}, **WAIT, min_bytes=140)
    )
    got = {response.topic: offsets(response.partitions[0].records) for response in found.responses}
    assert got == {"d": [0, 1], "l": [0]}


async def test_a_repeated_batch_of_an_idempotent_producer_is_kept_once(
    client: WireClient, create: Create
) -> None:
    await create("t")

    def sent(sequence: int) -> bytes:
        return bytes(numbered(2, producer_id=5, epoch=0, sequence=sequence))

    assert (await client.produce("t", sent(0))).base_offset == 0
    assert (await client.produce("t", sent(2))).base_offset == 2
    assert (await client.produce("t", sent(0))).base_offset == 0
    gap = await client.produce("t", sent(9))
    assert gap.error_code == 45  # OUT_OF_ORDER_SEQUENCE_NUMBER
    assert offsets((await fetched(client, "t")).records) == [0, 1, 2, 3]
    described = await client.call(
        "DescribeProducers", 0, {"topics": [{"name": "t", "partition_indexes": [0]}]}
    )
    (producer,) = described.topics[0].partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (5, 0, 3)


async def test_a_store_that_fails_is_an_error_that_may_be_retried(tmp_path: Any) -> None:
    cluster = Cluster(tmp_path)
    store = FaultyStore(cluster.objects)
    cluster.objects = store
    try:
        broker = await cluster.start(diskless_write_timeout_ms=200)
        client = await cluster.connect(broker)
        await client.call("CreateTopics", 7, _creation("t"))
        await client.call("CreateTopics", 7, _creation("l", diskless="false"))
        store.script.extend(["fails"] * 1000)
        answer = await client.call(
            "Produce", 9, request_of({("t", 0): batch(b"a"), ("l", 0): batch(b"b")})
        )
        # REQUEST_TIMED_OUT: it may have been written; the local partition is not touched.
        assert results_of(answer) == {("t", 0): (7, -1), ("l", 0): (0, 0)}
        store.script.clear()
        again = bytes(numbered(1, producer_id=7, epoch=0, sequence=0))
        while (done := await client.produce("t", again)).error_code == 7:
            """It took longer than this broker's 200 ms."""
        assert (done.error_code, done.base_offset) == (0, 0)
    finally:
        await cluster.stop()


async def test_a_producer_gets_its_timeout_while_the_store_hangs(tmp_path: Any) -> None:
    cluster = Cluster(tmp_path)
    store = FaultyStore(cluster.objects)
    cluster.objects = store
    try:
        broker = await cluster.start()
        client = await cluster.connect(broker)
        await client.call("CreateTopics", 7, _creation("t"))
        store.script.append("hangs")
        answer = await client.call("Produce", 9, request_of({("t", 0): batch(b"a")}, timeout=50))
        assert results_of(answer) == {("t", 0): (7, -1)}
        assert not broker.produce_waiting
        # It is written after all, as the answer allows, and what follows is behind it.
        store.forever.set()
        assert (await client.produce("t", batch(b"b"))).base_offset == 1
    finally:
        await cluster.stop()


async def test_a_consumer_gets_as_much_as_it_asks_for_in_a_few_answers(
    client: WireClient, create: Create
) -> None:
    """Cached data is copied a little at a time; the rest is loaded meanwhile."""
    await create("t", 6)
    now_ms = SYSTEM_CLOCK.now_ms()
    for partition in range(6):
        sent = batch(b"x" * 900_000, timestamp_ms=now_ms)
        assert (await client.produce("t", sent, partition=partition)).error_code == 0
    at = {("t", partition): 0 for partition in range(6)}
    sizes: list[int] = []
    while any(offset == 0 for offset in at.values()):
        wanted = {place: offset for place, offset in at.items() if offset == 0}
        found = await client.call(
            "Fetch", 12, fetch_request(wanted, **WAIT, partition_max_bytes=1 << 24)
        )
        for row in found.responses[0].partitions:
            if row.records:
                at["t", row.partition_index] = 1
        sizes.append(sum(len(row.records or b"") for row in found.responses[0].partitions))
    assert len(sizes) <= 4
    assert sum(sizes) > 6 * 900_000


def _creation(topic: str, diskless: str = "true") -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [{"name": "diskless.enable", "value": diskless}],
            }
        ],
        "timeout": 5000,
    }


async def test_the_first_batch_is_whole_however_small_the_limits(
    client: WireClient, create: Create
) -> None:
    await create("t")
    for _ in range(2):
        await client.produce("t", batch(b"x" * 10_000))
    found = await fetched(client, "t", partition_max_bytes=1, max_bytes=1)
    assert offsets(found.records) == [0]
    found = await fetched(client, "t", 1, partition_max_bytes=1, max_bytes=1)
    assert offsets(found.records) == [1]


async def test_the_budget_of_a_request_is_for_all_its_partitions(
    client: WireClient, create: Create
) -> None:
    await create("t", 4)
    for partition in range(4):
        await client.produce("t", batch(b"x" * 10_000), partition=partition)
    at = {("t", partition): 0 for partition in range(4)}
    found = await client.call("Fetch", 12, fetch_request(at, **WAIT, max_bytes=21_000))
    sizes = [len(row.records or b"") for row in found.responses[0].partitions]
    assert sum(sizes) <= 21_000
    assert sum(1 for size in sizes if size) == 2


@pytest.mark.parametrize("offset", [4, 100])
async def test_an_offset_beyond_the_end_is_out_of_range(
    client: WireClient, create: Create, offset: int
) -> None:
    await create("t")
    await client.produce("t", batch(b"a", b"b", b"c"))
    assert (await fetched(client, "t", offset)).error_code == 1


async def test_a_request_that_outlasts_its_wait_is_answered_empty_and_the_next_has_it(
    tmp_path: Any,
) -> None:
    cluster = Cluster(tmp_path)
    gate = asyncio.Event()

    class Slow(FaultyStore):
        async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
            if key.startswith("wal/"):
                await gate.wait()
            return await self.inner.get(key, start, size_bytes)

    cluster.objects = Slow(cluster.objects)
    try:
        first = await cluster.start()
        client = await cluster.connect(first)
        await client.call("CreateTopics", 7, _creation("t"))
        await client.produce("t", batch(b"a"))
        # Another broker has not written it, so it has to load it.
        reader = await cluster.connect(await cluster.start())
        empty = await reader.fetch("t", 0, max_wait=50)
        assert (empty.error_code, empty.records or b"") == (0, b"")
        gate.set()
        assert offsets((await fetched(reader, "t")).records) == [0]
    finally:
        gate.set()
        await cluster.stop()


async def test_an_object_that_is_lost_is_an_error_of_its_partition_alone(
    cluster: Cluster, client: WireClient, create: Create
) -> None:
    await create("t", 2)
    await client.produce("t", batch(b"a"))
    keys = [info.key async for info in cluster.objects.list("wal/")]
    await client.produce("t", batch(b"b"), partition=1)
    await cluster.objects.delete(keys)
    # The writer's own broker has it in its cache; another one does not.
    reader = await cluster.connect(await cluster.start())
    found = await reader.call("Fetch", 12, fetch_request({("t", 0): 0, ("t", 1): 0}, **WAIT))
    got = {row.partition_index: row for row in found.responses[0].partitions}
    assert offsets(got[1].records) == [0]
    assert (await fetched(reader, "t")).error_code == 56  # KAFKA_STORAGE_ERROR


async def test_sessions_name_a_diskless_partition_once(client: WireClient, create: Create) -> None:
    await create("t")
    await client.produce("t", batch(b"a"))
    opened = await client.call("Fetch", 12, fetch_request({("t", 0): 0}, **WAIT, session_epoch=0))
    assert offsets(opened.responses[0].partitions[0].records) == [0]
    going_on = {**fetch_request({("t", 0): 1}), "max_wait": 10, "session_id": opened.session_id}
    empty = await client.call("Fetch", 12, {**going_on, "session_epoch": 1})
    assert empty.responses == ()
    await client.produce("t", batch(b"b"))
    more = await client.call("Fetch", 12, {**going_on, "session_epoch": 2, "max_wait": 30_000})
    assert offsets(more.responses[0].partitions[0].records) == [1]


async def test_a_deleted_topic_ends_its_waiting_fetches(
    cluster: Cluster, broker: BrokerServer, client: WireClient, create: Create
) -> None:
    await create("t")
    other = await cluster.connect(broker)
    waiting = asyncio.create_task(fetched(other, "t", max_wait=30_000))
    async with asyncio.timeout(60):
        while not len(broker.fetch_hub):
            await asyncio.sleep(0)
    await client.call("DeleteTopics", 5, {"topic_names": ["t"], "timeout": 5000})
    async with asyncio.timeout(60):
        assert (await waiting).error_code == 3
    assert broker.diskless is not None
    assert broker.diskless._partitions == {}


async def test_a_stop_finishes_what_is_being_written(cluster: Cluster) -> None:
    broker = await cluster.start(diskless_commit_interval_ms=200)
    client = await cluster.connect(broker)
    await client.call("CreateTopics", 7, _creation("t"))
    client.writer.write(client.frame("Produce", 9, produce_request("t", batch(b"a"))))
    async with asyncio.timeout(60):
        while not broker.produce_waiting:
            await asyncio.sleep(0)
    stopping = asyncio.create_task(broker.stop())
    answer = await client.response("Produce", 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    await stopping


async def test_an_object_store_that_is_away_is_named_and_taken_up_when_it_is_back(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def paused(seconds: float) -> None:
        await (go_on.wait() if seconds == service_module.ACTIVATION_SECONDS else pause(seconds))

    monkeypatch.setattr(service_module, "pause", paused)
    cluster = Cluster(tmp_path)

    class Away(FaultyStore):
        away = True

        def list(self, prefix: str, *, after: str = "") -> Any:
            if self.away:
                raise StoreUnavailable("the bucket does not answer")
            return self.inner.list(prefix, after=after)

    cluster.objects = store = Away(cluster.objects)
    try:
        broker = await cluster.start()
        client = await cluster.connect(broker)
        await client.call("CreateTopics", 7, _creation("t"))
        refused = await client.produce("t", batch(b"a"))
        assert refused.error_code == 56
        assert "the bucket does not answer" in refused.error_message
        service = broker.diskless
        assert service is not None
        assert "the bucket does not answer" in service.failure
        store.away = False
        go_on.set()
        async with asyncio.timeout(60):
            while service.failure:
                await asyncio.sleep(0.01)
        assert (await client.produce("t", batch(b"a"))).base_offset == 0
    finally:
        await cluster.stop()
