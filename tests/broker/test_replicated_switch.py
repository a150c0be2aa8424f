"""A topic with three replicas becomes diskless, whichever broker leads meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.broker.configuration.configs import TopicConfigs
from penstock.broker.migration.leader import MigrationLeader
from penstock.control.postgres import PostgresControlPlane
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.topics.service import DisklessService
from penstock.objects import FetchSettings, MemoryStore
from penstock.records import split_batches
from tests.broker.diskless.conftest import QUICK
from tests.broker.diskless.test_configs import altered
from tests.broker.test_replicated import Cluster, until
from tests.broker.wire_client import WireClient
from tests.storage.batches import batch as numbered

pytestmark = pytest.mark.timeout(300)


class StoreCluster(Cluster):
    """Three brokers that share an object store."""

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root, url)
        self.objects = MemoryStore()

    def diskless(
        self, node_id: int, control: PostgresControlPlane, configs: TopicConfigs
    ) -> DisklessService:
        return DisklessService(
            load(DisklessSettings, QUICK),
            load(FetchSettings, {}),
            plane=control,
            open_store=lambda: self.objects,
            clock=SYSTEM_CLOCK,
            randomness=SYSTEM_RANDOMNESS,
            broker_id=node_id,
            config_of=configs.config_of,
            store_url="memory://objects",
        )

    async def switch(self, node_id: int, *, diskless: bool = True) -> Any:
        client = await WireClient.connect(self.brokers[node_id].kafka_address)
        try:
            return await altered(client, "t", diskless_enable="true" if diskless else "false")
        finally:
            await client.close()

    def known_as(self, *, diskless: bool) -> bool:
        """Whether all brokers know of the topic as one of this kind."""
        return all(
            broker.partitions.topics["t"].diskless is diskless for broker in self.brokers.values()
        )

    async def offsets(self, node_id: int, end: int) -> list[int]:
        """Return the offsets of all records below an end, as a consumer gets them."""
        found: list[int] = []
        async with asyncio.timeout(60):
            while not found or found[-1] + 1 < end:
                start = found[-1] + 1 if found else 0
                row = await self.clients[node_id].fetch("t", start, max_wait=100)
                for header in split_batches(row.records or b""):
                    found += range(header.base_offset, header.next_offset)
        return found


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[StoreCluster]:
    made = StoreCluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


@pytest.mark.parametrize("asked", ["leader", "follower"])
async def test_all_that_is_acknowledged_becomes_diskless(cluster: StoreCluster, asked: str) -> None:
    leader = await cluster.create()
    for number in range(20):
        assert await cluster.produce(b"value %d" % number) == number
    epoch = cluster.brokers[leader].cluster.image.topics["t"].partitions[0].leader_epoch
    node_id = leader if asked == "leader" else leader % 3 + 1
    answer = await cluster.switch(node_id)
    assert (answer.error_code, answer.error_message) == (0, None)
    await until(lambda: cluster.known_as(diskless=True))
    assert await cluster.produce(b"diskless") == 20
    for broker in cluster.brokers:
        assert await cluster.offsets(broker, 21) == list(range(21))
    servers = cluster.brokers.values()
    await until(lambda: not any([server.store.partitions for server in servers]))
    row = cluster.brokers[leader].cluster.image.topics["t"].partitions[0]
    assert row.leader_epoch > epoch
    batches = split_batches(await cluster.values(leader))
    assert {batch.partition_leader_epoch for batch in batches} == {row.leader_epoch}, "none fell"
    key = cluster.brokers[leader].cluster.image.topics["t"].topic_id, 0
    assert await cluster.brokers[leader].control.partition_chains([key]) == {}
    assert all([not server.replicas.replication.logs for server in servers if server.replicas])


async def test_idempotent_producers_are_known_on_the_other_side(cluster: StoreCluster) -> None:
    leader = await cluster.create()
    first, again = [bytes(numbered(1, producer_id=7, epoch=0, sequence=0)) for _ in range(2)]
    assert (await cluster.clients[leader].produce("t", first, acks=-1)).base_offset == 0
    assert (await cluster.switch(leader)).error_code == 0
    done = await cluster.clients[leader].produce("t", again, acks=-1)
    assert (done.error_code, done.base_offset) == (0, 0)
    assert await cluster.produce(b"two") == 1


def before_commit(monkeypatch: pytest.MonkeyPatch, step: Callable[[], Any]) -> None:
    """Do something once the leader has copied all and takes no more, and nothing is committed."""
    commit = MigrationLeader._commit

    async def stepping(self: MigrationLeader) -> None:
        await step()
        await commit(self)

    monkeypatch.setattr(MigrationLeader, "_commit", stepping)


async def test_a_leader_that_was_opened_before_the_commit_refuses_it(
    cluster: StoreCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy lacks what the next leader has acknowledged."""
    leader = await cluster.create()
    for number in range(5):
        await cluster.produce(b"value %d" % number)
    successor = leader % 3 + 1
    offsets = []

    async def another_leads() -> None:
        log = cluster.log(successor)
        replicas = cluster.brokers[successor].replicas
        assert replicas is not None
        replicas.replication.claim([log.key])
        await cluster.led(by=successor)
        offsets.append(await cluster.produce(b"acknowledged by the next leader"))

    before_commit(monkeypatch, another_leads)
    answer = await cluster.switch(leader)
    assert answer.error_code != 0
    assert offsets == [5]
    assert cluster.known_as(diskless=False)
    assert await cluster.produce(b"goes on") == 6
    assert await cluster.offsets(successor, 7) == list(range(7))


async def test_a_claim_that_comes_before_the_commit_opens_nothing_after_it(
    cluster: StoreCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has fenced the replicas, and finds no epochs any more."""
    leader = await cluster.create()
    for number in range(5):
        await cluster.produce(b"value %d" % number)
    successor = leader % 3 + 1
    replicas = cluster.brokers[successor].replicas
    assert replicas is not None
    opened = asyncio.Event()
    control = cluster.brokers[successor].control
    open_epochs = control.open_epochs

    async def late(openings: Any, **process: Any) -> Any:
        await opened.wait()
        return await open_epochs(openings, **process)

    monkeypatch.setattr(control, "open_epochs", late)

    async def another_claims() -> None:
        log = cluster.log(successor)
        epoch = log.copy.core.promised
        replicas.replication.claim([log.key])
        await until(lambda: cluster.log(leader).copy.core.promised > epoch)

    before_commit(monkeypatch, another_claims)
    answer = await cluster.switch(leader)
    assert (answer.error_code, answer.error_message) == (0, None)
    opened.set()
    await until(lambda: cluster.known_as(diskless=True))
    assert await cluster.produce(b"diskless") == 5
    for broker in cluster.brokers:
        assert await cluster.offsets(broker, 6) == list(range(6))
