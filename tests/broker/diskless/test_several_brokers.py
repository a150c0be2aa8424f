"""Two brokers over one plane and one store: each serves every partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from penstock.control.values.diskless import CommitAnswer, ObjectCommit
from tests.broker.diskless.conftest import Cluster
from tests.broker.diskless.test_records import _creation, fetched, offsets
from tests.broker.wire_client import WireClient, batch
from tests.storage.batches import batch as numbered


class Pair:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.brokers: list[BrokerServer] = []
        self.clients: list[WireClient] = []

    async def start(self) -> None:
        for _ in range(2):
            self.brokers.append(await self.cluster.start())
        for broker in self.brokers:
            self.clients.append(await self.cluster.connect(broker))
        await self.clients[0].call("CreateTopics", 7, _creation("t"))
        await self.brokers[1].cluster.refresh()


@pytest.fixture
async def pair(cluster: Cluster) -> Pair:
    pair = Pair(cluster)
    await pair.start()
    return pair


async def test_what_one_broker_takes_the_other_serves(pair: Pair) -> None:
    for number in range(6):
        done = await pair.clients[number % 2].produce("t", batch(b"x"))
        assert done.base_offset == number
    for client in pair.clients:
        got = await fetched(client, "t", min_bytes=1)
        following = (offsets(got.records) or [-1])[-1] + 1
        assert offsets(got.records) == list(range(following))
        while following < 6:
            more = offsets((await fetched(client, "t", following)).records)
            assert more[0] == following
            following = more[-1] + 1


async def test_a_producer_continues_at_the_other_broker(pair: Pair) -> None:
    def sent(sequence: int) -> bytes:
        return bytes(numbered(1, producer_id=7, epoch=0, sequence=sequence))

    assert (await pair.clients[0].produce("t", sent(0))).base_offset == 0
    assert (await pair.clients[1].produce("t", sent(0))).base_offset == 0
    assert (await pair.clients[1].produce("t", sent(1))).base_offset == 1
    assert (await pair.clients[0].produce("t", sent(1))).base_offset == 1


async def test_positions_and_the_end_are_looked_up(pair: Pair) -> None:
    await pair.clients[0].produce("t", batch(b"a", b"b"))
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    answer = await pair.clients[1].call(
        "ListOffsets",
        7,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": "t", "partitions": [row]}],
        },
    )
    assert answer.topics[0].partitions[0].offset == 2
    # An offset that this broker has not heard of is asked for before it is refused.
    await pair.clients[0].produce("t", batch(b"c"))
    assert offsets((await fetched(pair.clients[1], "t", 2)).records) == [2]


async def test_a_waiter_at_the_other_broker_is_woken_by_polling(pair: Pair) -> None:
    waiting = asyncio.create_task(fetched(pair.clients[1], "t", max_wait=30_000))
    async with asyncio.timeout(60):
        while not len(pair.brokers[1].fetch_hub):
            await asyncio.sleep(0.001)
    await pair.clients[0].produce("t", batch(b"a"))
    async with asyncio.timeout(60):
        assert offsets((await waiting).records) == [0]


async def test_a_notification_wakes_waiters(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plane notifies other brokers of commits, as a database does; none polls."""
    monkeypatch.setattr("penstock.diskless.topics.service.WATERMARKS_SECONDS", 3600.0)
    listeners: list[Callable[..., None]] = []
    plane = cluster.control
    original = plane.commit_object

    async def commit(commit: ObjectCommit) -> CommitAnswer:
        answer = await original(commit)
        rows = [(*key, watermarks) for key, watermarks in answer.watermarks.items()]
        for listener in listeners:
            listener(rows)
        return answer

    def watch(on_image: Any, on_watermarks: Callable[..., None]) -> None:
        listeners.append(on_watermarks)

    plane.commit_object = commit  # type: ignore[method-assign]
    plane.watch = watch  # type: ignore[method-assign]
    pair = Pair(cluster)
    await pair.start()
    waiting = asyncio.create_task(fetched(pair.clients[1], "t", max_wait=30_000))
    async with asyncio.timeout(60):
        while not len(pair.brokers[1].fetch_hub):
            await asyncio.sleep(0.001)
    await pair.clients[0].produce("t", batch(b"a"))
    async with asyncio.timeout(60):
        assert offsets((await waiting).records) == [0]


async def test_a_notice_of_the_image_brings_topics(cluster: Cluster) -> None:
    pair = Pair(cluster)
    await pair.start()
    await pair.clients[0].call("CreateTopics", 7, _creation("u"))
    pair.brokers[1]._image_noticed()
    async with asyncio.timeout(60):
        while "u" not in pair.brokers[1].partitions.topics:
            await asyncio.sleep(0.001)
    assert (await pair.clients[1].produce("u", batch(b"a"))).base_offset == 0


async def test_a_broker_that_stops_is_no_leader_any_more(pair: Pair) -> None:
    await pair.brokers[0].stop()
    await pair.brokers[1].cluster.refresh()
    left = pair.brokers[1]
    shown = left.cluster.shown(left.partitions.topics["t"].topic)
    assert [partition.leader for partition in shown] == [2]
    assert (await pair.clients[1].produce("t", batch(b"a"))).error_code == 0


async def test_a_broker_taken_for_dead_continues_after_its_registration(
    cluster: Cluster,
) -> None:
    broker = await cluster.start(
        {"broker.session.timeout.ms": 300, "broker.heartbeat.interval.ms": 100},
        diskless_lease_block_objects=2,
    )
    client = await cluster.connect(broker)
    await client.call("CreateTopics", 7, _creation("t"))
    await client.produce("t", batch(b"x"))
    incarnation = broker._incarnation
    await cluster.control.unregister_broker(broker_id=1, incarnation=incarnation)
    for number in range(1, 8):  # more objects than there are keys in hand
        done = await client.produce("t", batch(b"x"))
        assert (done.error_code, done.base_offset) == (0, number)
    assert [found.broker_id for found in (await cluster.control.image()).brokers] == [1]
