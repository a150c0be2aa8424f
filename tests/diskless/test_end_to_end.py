"""Two brokers' writers and sweepers over PostgreSQL and S3: written, verified, cleared away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.control.postgres import PostgresControlPlane
from penstock.diskless.gc import Collection, RetentionTarget
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.topics.verification import Verifier
from penstock.diskless.writing import ObjectWriter
from penstock.objects import ObjectStore, open_store
from tests.diskless.submissions import TOPIC, Sent
from tests.diskless.world import QUICK, answered, guard_of
from tests.s3 import S3Server

PARTITIONS = 4
SETTINGS = DisklessSettings(**{**QUICK, "sweep_unreferenced_grace_ms": 0, "orphan_grace_ms": 0})


class Broker:
    """The part of one broker that writes and clears away."""

    def __init__(self, number: int, url: str, store: ObjectStore) -> None:
        self.number = number
        self.incarnation = UUID(int=1000 + number)
        self.plane = PostgresControlPlane(url)
        self.store = store

    async def start(self) -> None:
        await self.plane.start()
        await self.plane.register_broker(
            broker_id=self.number, host="h", port=1, rack=None, incarnation=self.incarnation
        )
        image = await self.plane.image()
        if "orders" not in image.topics:
            await self.plane.create_topic(
                name="orders",
                topic_id=TOPIC,
                partitions=[[1]] * PARTITIONS,
                configs={"diskless.enable": "true"},
            )
        self.writer = ObjectWriter(
            SETTINGS,
            plane=self.plane,
            store=self.store,
            broker_id=self.number,
            incarnation=self.incarnation,
            clock=SYSTEM_CLOCK,
            randomness=SYSTEM_RANDOMNESS,
            on_commit=lambda answer: None,
            keep=lambda key, pieces: None,
        )
        self.writer.attach(asyncio.get_running_loop())
        self.collection = Collection(
            SETTINGS,
            plane=self.plane,
            store=self.store,
            guard=guard_of(self.plane, self.store, cluster_id=image.cluster_id),
            clock=SYSTEM_CLOCK,
            targets=lambda: [RetentionTarget(TOPIC, index, -1, 0) for index in range(PARTITIONS)],
            on_watermarks=lambda key, watermarks: None,
        )
        await self.collection.start()

    def send(self, **options: Any) -> Sent:
        sent = Sent(**options)
        self.writer.submit(sent.submission)
        return sent

    async def stop(self) -> None:
        await self.writer.stop()
        await self.plane.close()


@pytest.fixture
async def store(s3: S3Server) -> AsyncIterator[ObjectStore]:
    opened = open_store(s3.fresh_url(), options=s3.options())
    yield opened
    await opened.close()


async def keys(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list("wal/")]


async def test_brokers_write_verify_and_clear_away(postgres_url: str, store: ObjectStore) -> None:
    brokers = [Broker(number, postgres_url, store) for number in (1, 2)]
    for broker in brokers:
        await broker.start()
    sent: list[Sent] = []
    for index in range(60):
        sent.append(
            brokers[index % 2].send(
                partition=index % PARTITIONS,
                producer_id=index % 2,
                sequence=index // PARTITIONS,
                fill=index,
                size=5_000,
            )
        )
        if index % 10 == 9:
            await answered(sent)
    assert all(submitted.placed.error is None for submitted in sent)
    again = brokers[0].send(partition=0, producer_id=0, sequence=14, fill=56, size=5_000)
    await answered([again])
    assert again.placed.duplicate
    assert again.placed.base_offset == sent[56].placed.base_offset

    plane = brokers[1].plane
    for partition in range(PARTITIONS):
        log = b""
        for extent in await plane.extents(TOPIC, partition, start=0, end=99, limit=99):
            log += await store.get(extent.key, extent.byte_offset, extent.size_bytes)
        mine = sorted(sent[partition::PARTITIONS], key=lambda one: one.placed.base_offset)
        assert [submitted.placed.base_offset for submitted in mine] == list(range(15))
        assert log == b"".join(submitted.data for submitted in mine)
    verifier = Verifier(plane=plane, store=store, checksums=True)
    names = [(f"orders-{index}", (TOPIC, index)) for index in range(PARTITIONS)]
    await verifier.verify(names)
    assert verifier.findings == []
    assert verifier.verified_bytes == 60 * 5_061

    await store.put("wal/zz/orphan", [b"123"])
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("UPDATE diskless_objects SET changed_ms = changed_ms - 86400000")
    await connection.close()
    for broker in brokers:
        await broker.writer.stop()
    await asyncio.gather(*[job.run() for broker in brokers for job in broker.collection.jobs()])
    for broker in brokers:
        await broker.collection.sweeper.sweep()
        await broker.collection.id_markers.note()
        await broker.collection.orphans.collect()
        assert broker.collection.counters.failures == 0
    assert await keys(store) == []
    assert await plane.object_totals() == []
    assert [
        mark.log_start_offset for mark in await plane.watermarks([key for _, key in names])
    ] == ([15] * PARTITIONS)
    for broker in brokers:
        await broker.stop()
