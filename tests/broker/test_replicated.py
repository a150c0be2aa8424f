"""Acknowledged records of topics with three replicas survive any one broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.base.files import MACHINE_FILES, Files
from penstock.base.metrics import Registry
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock
from penstock.broker.configuration.configs import TopicConfigs
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.handlers import metadata
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.server import BrokerServer
from penstock.client import Client
from penstock.control.postgres import PostgresControlPlane
from penstock.diskless.topics.service import DisklessService
from penstock.records import split_batches
from penstock.replication.service import ReplicatedLog
from penstock.storage import LogStore, StorageSettings
from tests.broker.wire_client import WireClient, batch

pytestmark = pytest.mark.timeout(300)
SECONDS = 90.0


class Cluster:
    """Three brokers, their directories and a client of each."""

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self.url = url
        self.files: dict[int, Files] = {}
        """Through which brokers reach their disks, if not as always."""
        self.clocks: dict[int, Clock] = {}
        """Of brokers whose clocks are not the machine's."""
        self.brokers: dict[int, BrokerServer] = {}
        self.clients: dict[int, WireClient] = {}
        self.settings: dict[str, Any] = {}
        """Of brokers that are started from now on."""
        self.storage = StorageSettings()

    async def start(self, node_id: int) -> BrokerServer:
        values = {
            "node.id": node_id,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "replication.listener": "127.0.0.1:0",
            "admin.listener": "",
            "shutdown.timeout.ms": 100,
            "broker.session.timeout.ms": 1_500,
            "broker.heartbeat.interval.ms": 100,
            **self.settings,
        }
        settings = load(BrokerSettings, values)
        clock = self.clocks.get(node_id, SYSTEM_CLOCK)
        configs = TopicConfigs(settings)
        control = PostgresControlPlane(self.url)
        server = BrokerServer(
            settings,
            control=control,
            store=LogStore.open(
                self.root / str(node_id),
                self.storage,
                clock=clock,
                config_of=configs.config_of,
                files=self.files.get(node_id, MACHINE_FILES),
            ),
            clock=clock,
            randomness=SYSTEM_RANDOMNESS,
            registry=Registry(),
            diskless=self.diskless(node_id, control, configs),
            **self.parts(node_id),
        )
        configs.bind(lambda: server.cluster.loaded)
        self.brokers[node_id] = server
        await server.start()
        self.clients[node_id] = await self.connect(server)
        return server

    async def connect(self, server: BrokerServer) -> WireClient:
        """A client of a broker."""
        return await WireClient.connect(server.kafka_address)

    def parts(self, node_id: int) -> dict[str, Any]:
        """More parts of a broker; none here."""
        return {}

    def diskless(
        self, node_id: int, control: PostgresControlPlane, configs: TopicConfigs
    ) -> DisklessService | None:
        """Service of diskless topics; none here."""
        return None

    @asynccontextmanager
    async def running(self, *node_ids: int) -> AsyncIterator[None]:
        """Brokers run, and know each other; those that still do at the end are stopped."""
        try:
            for node_id in node_ids:
                await self.start(node_id)
            for server in self.brokers.values():
                await until(partial(knows, server, len(node_ids)))
            yield
        finally:
            for node_id in list(self.brokers):
                await self.stop(node_id)

    async def stop(self, node_id: int) -> None:
        client = self.clients.pop(node_id, None)
        if client is not None:  # else it did not get as far
            await client.close()
        await self.brokers.pop(node_id).stop()

    async def fall_silent(self, node_id: int) -> BrokerServer:
        """Simulate a hanging process: no heartbeat, no link."""
        server = self.brokers.pop(node_id)
        await self.clients.pop(node_id).close()
        assert server._liveness is not None
        await server._liveness.stop()
        assert isinstance(server.replicas, Replicas)
        await server.replicas.replication.links.close()
        return server

    def log(self, node_id: int, topic: str = "t") -> ReplicatedLog:
        server = self.brokers[node_id]
        assert isinstance(server.replicas, Replicas)
        topic_id = server.cluster.image.topics[topic].topic_id
        found = [
            log for key, log in server.replicas.replication.logs.items()
            if key.topic_id == topic_id.bytes
        ]  # fmt: skip
        return found[0]

    async def whole(self, *topics: str) -> None:
        """Wait until every replica takes part, except those on failed disks.

        A replica that learns about its topic only after an epoch was opened looks like one with a
        lost disk: until it is repaired, the topic does not survive its leader.
        """
        for topic in topics:
            for node_id in self.brokers:
                await until(partial(self._takes_part, node_id, topic))

    def _takes_part(self, node_id: int, topic: str) -> bool:
        server = self.brokers[node_id]
        found = server.cluster.image.topics.get(topic)
        if found is None:
            return False
        assert isinstance(server.replicas, Replicas)
        if node_id not in found.partitions[0].replicas or server.replicas.replication.failed:
            return True
        try:
            log = self.log(node_id, topic)
        except IndexError:
            return False
        return log.log.replica.promised >= 0 and not log.copy.trouble

    def leader(self, topic: str = "t") -> int:
        """Return the actual leader; 0 without one."""
        for node_id in self.brokers:
            try:
                log = self.log(node_id, topic)
            except (KeyError, IndexError):
                continue
            if log.leading is not None and log.leading.leads:
                return node_id
        return 0

    async def create(
        self,
        topic: str = "t",
        *,
        factor: int = 3,
        minimum: int = 2,
        retention_ms: int = -1,
        more: Mapping[str, str] | None = None,
    ) -> int:
        """Create a topic of one partition; its leader, once all copies take part."""
        configs = {"min.insync.replicas": str(minimum), "retention.ms": str(retention_ms)}
        configs |= more or {}
        spec = {
            "name": topic,
            "num_partitions": 1,
            "replication_factor": factor,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in configs.items()],
        }
        client = next(iter(self.clients.values()))
        answer = await client.call("CreateTopics", 7, {"topics": [spec], "timeout": 5000})
        assert answer.topics[0].error_code.name == "none", answer.topics[0].error_message
        brokers = self.brokers.values()
        await until(lambda: all(topic in broker.cluster.image.topics for broker in brokers))
        await self.led(topic)
        await self.whole(topic)
        return await self.led(topic)

    async def create_single(self, topic: str = "t") -> None:
        """Create a topic of one partition with one replica."""
        await next(iter(self.clients.values())).create(topic)
        brokers = self.brokers.values()
        await until(lambda: all(topic in broker.cluster.image.topics for broker in brokers))

    async def led(self, topic: str = "t", *, by: int = 0) -> int:
        await until(lambda: self.leader(topic) == by if by else self.leader(topic) > 0)
        return self.leader(topic)

    async def produce(self, value: bytes, topic: str = "t", acks: int = -1) -> int:
        """Produce one record, wherever it takes; its offset."""
        return await self.send(batch(value), topic, acks)

    async def send(self, sent: bytes, topic: str = "t", acks: int = -1) -> int:
        """Produce a batch, wherever it takes; the offset of its first record."""
        async with asyncio.timeout(SECONDS):
            while True:
                for client in list(self.clients.values()):
                    row = await client.produce(topic, sent, acks=acks)
                    if row.error_code.name == "none":
                        return int(row.base_offset)
                    assert row.error_code.retriable, row
                await asyncio.sleep(0.01)

    async def values(self, node_id: int, topic: str = "t", *, start: int = 0) -> bytes:
        """Return what a consumer reads from an offset on, at a broker or its successor."""
        found, offset = b"", start
        async with asyncio.timeout(SECONDS):
            while True:
                row = await self.clients[node_id].fetch(topic, offset)
                if row.error_code.name == "not_leader_or_follower":
                    node_id = self.leader(topic) or node_id
                    await asyncio.sleep(0.01)
                    continue
                assert row.error_code.name == "none", row
                if not row.records:
                    return found
                found += bytes(row.records)
                offset = split_batches(row.records)[-1].next_offset


def knows(server: BrokerServer, count: int) -> bool:
    return len(server.cluster.image.brokers) == count


def has(log: ReplicatedLog, offset: int) -> bool:
    """Whether a copy has all below an offset durably, and knows that it is committed."""
    return log.log.durable_offset == log.copy.mark == offset


def everything(log: ReplicatedLog) -> bytes:
    """Return all batches of a replica."""
    found, offset = [], log.log.log_start_offset
    while offset < log.log.durable_offset:
        read = log.log.read(offset, max_bytes=1 << 20, end_offset=log.log.durable_offset)
        found += read.buffers
        offset = read.next_offset
    return b"".join(found)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


async def test_all_replicas_get_what_is_acknowledged(cluster: Cluster) -> None:
    leader = await cluster.create()
    offsets = [await cluster.produce(b"value %d" % number) for number in range(20)]
    assert offsets == list(range(20))
    read = await cluster.values(leader)
    assert all(b"value %d" % number in read for number in range(20))
    for node_id in (1, 2, 3):
        log = cluster.log(node_id)
        await until(partial(has, log, 20))
        assert log.log.state.epochs.entries == cluster.log(leader).log.state.epochs.entries
        assert everything(log) == read
    image = cluster.brokers[leader].cluster.image
    await until(lambda: len(image.topics["t"].partitions[0].isr) > 0)


async def test_another_replica_leads_after_the_leader_dies(cluster: Cluster) -> None:
    leader = await cluster.create()
    for number in range(10):
        await cluster.produce(b"before %d" % number)
    client = Client(
        [":".join(map(str, broker.kafka_address)) for broker in cluster.brokers.values()]
    )
    assert await asyncio.to_thread(client.list_offsets, "t") == {0: 10}
    await cluster.stop(leader)
    following = await cluster.led()
    assert following != leader
    assert await cluster.produce(b"after") == 10
    assert await asyncio.to_thread(client.list_offsets, "t") == {0: 11}, (
        "the leader is looked up again"
    )
    client.close()
    read = await cluster.values(following)
    assert all(b"before %d" % number in read for number in range(10))
    assert b"after" in read
    # The former leader comes back as a follower, and has everything.
    await cluster.start(leader)
    assert await cluster.produce(b"with all again") == 11
    log = cluster.log(leader)
    await until(lambda: log.log.durable_offset == 12)
    assert everything(log).startswith(read)


async def test_clients_are_not_sent_to_a_leader_that_is_gone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await cluster.create()
    first, second = [cluster.brokers[broker_id] for broker_id in (1, 2, 3) if broker_id != leader]
    replicas = first.replicas
    assert replicas is not None
    assert second.replicas is not None
    wanted = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}

    async def leader_and_error() -> tuple[int, str]:
        answer = await cluster.clients[first.node_id].call("Metadata", 9, wanted)
        partition = answer.topics[0].partitions[0]
        return partition.leader_id, partition.error_code.name

    with monkeypatch.context() as nobody_claims:
        for part in (replicas, second.replicas):
            nobody_claims.setattr(part.replication, "claim", lambda keys: None)
        silent = await cluster.fall_silent(leader)
        await until(lambda: leader in replicas.unreachable())
        assert await leader_and_error() == (-1, "leader_not_available")
        monkeypatch.setattr(metadata, "NEW_LEADER_SECONDS", SECONDS)
        asked = asyncio.create_task(leader_and_error())
        await until(lambda: first.cluster._next is not None)
    following = await cluster.led()
    assert await asked == (following, "none")
    await silent.stop()


async def test_a_topic_is_made_while_a_broker_is_away(cluster: Cluster) -> None:
    await cluster.create("first")
    await cluster.stop(3)
    for node_id in (1, 2):
        await until(partial(knows, cluster.brokers[node_id], 2))
    leader = await cluster.create("second")
    image = cluster.brokers[leader].cluster.image
    assert sorted(image.topics["second"].partitions[0].replicas) == [1, 2, 3]
    assert await cluster.produce(b"value", "second") == 0
    await cluster.start(3)
    await until(lambda: has(cluster.log(3, "second"), 1))


async def test_a_leader_that_was_silent_has_been_fenced(cluster: Cluster) -> None:
    leader = await cluster.create()
    await cluster.produce(b"before")
    silent = await cluster.fall_silent(leader)
    # What it takes now, nobody may ever see: a quorum is with the others.
    client = await WireClient.connect(silent.kafka_address)
    refused = await client.produce("t", batch(b"to nobody"))
    assert refused.error_code.name == "not_enough_replicas"
    alone = await client.produce("t", batch(b"on one disk"), acks=1)
    assert alone.error_code.name == "none"
    extents = await silent.partitions.partition("t", 0).extents(0, 100, limit=10)
    assert max(extent.next_offset for extent in extents) == 1, "no further than what is committed"
    following = await cluster.led()
    assert following != leader
    assert await cluster.produce(b"after") == 1
    row = await client.fetch("t")
    assert b"on one disk" not in bytes(row.records or b"")
    await client.close()
    await silent.stop()
    await cluster.start(leader)
    await cluster.produce(b"last")
    log = cluster.log(leader)
    await until(lambda: log.log.durable_offset == 3)
    assert everything(log) == everything(cluster.log(following))
    assert b"on one disk" not in everything(log)


async def test_all_are_off_at_once_and_come_back(cluster: Cluster) -> None:
    await cluster.create()
    for number in range(5):
        await cluster.produce(b"value %d" % number)
    for node_id in (1, 2, 3):
        await cluster.stop(node_id)
    for node_id in (2, 3):
        await cluster.start(node_id)
    leader = await cluster.led()
    assert await cluster.produce(b"more") == 5
    read = await cluster.values(leader)
    assert all(b"value %d" % number in read for number in range(5))


async def test_too_few_replicas_are_reported(cluster: Cluster) -> None:
    leader = await cluster.create(minimum=3)
    await cluster.produce(b"with all")
    other = next(node_id for node_id in (1, 2, 3) if node_id != leader)
    await cluster.stop(other)
    await until(lambda: cluster.log(leader).leading.reachable() == 2)  # type: ignore[union-attr]
    row = await cluster.clients[leader].produce("t", batch(b"with two"))
    assert row.error_code.name == "not_enough_replicas"
    assert "2 of 3 replicas can be reached, but 3 must acknowledge" in str(row.error_message)
    await cluster.start(other)
    assert await cluster.produce(b"with all again") == 1
