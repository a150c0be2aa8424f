"""Brokers with diskless topics on real sockets, over one control plane and one store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.base.metrics import Registry
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.broker.configuration.configs import TopicConfigs
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.server import BrokerServer
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.topics.service import DisklessService
from penstock.objects import FetchSettings, MemoryStore, ObjectStore
from penstock.storage import LogStore, StorageSettings
from tests.broker.wire_client import WireClient
from tests.diskless.faults import FaultyPlane

QUICK: dict[str, Any] = {
    "diskless.commit.interval.ms": 1,
    "diskless.retry.backoff.ms": 1,
    "diskless.retry.backoff.max.ms": 5,
    "diskless.write.timeout.ms": 60_000,
    "diskless.drain.timeout.ms": 30_000,
}


class Cluster:
    """Starts brokers over shared stores."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.control = FaultyPlane()
        self.objects: ObjectStore = MemoryStore()
        self.brokers: list[BrokerServer] = []
        self.clients: list[WireClient] = []

    async def start(self, settings: dict[str, Any] | None = None, **diskless: Any) -> BrokerServer:
        """Start a broker; `diskless` are settings of writing and reading, by attribute."""
        node = len(self.brokers) + 1
        values = {
            "node.id": node,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "admin.listener": "",
            "shutdown.timeout.ms": 30_000,
            "message.max.bytes": 32 << 20,
            "group.initial.rebalance.delay.ms": 0,
            **(settings or {}),
        }
        loaded = load(BrokerSettings, values)
        configs = TopicConfigs(loaded)
        names = {name.replace("_", "."): value for name, value in diskless.items()}
        fetching = {
            n: v for n, v in names.items() if n.startswith(("diskless.fetch", "diskless.consume"))
        }
        writing = {n: v for n, v in names.items() if n not in fetching}
        server = BrokerServer(
            loaded,
            control=self.control,
            store=LogStore.open(
                self.root / str(node),
                StorageSettings(),
                clock=SYSTEM_CLOCK,
                config_of=configs.config_of,
            ),
            clock=SYSTEM_CLOCK,
            randomness=SYSTEM_RANDOMNESS,
            registry=Registry(),
            diskless=DisklessService(
                load(DisklessSettings, {**QUICK, **writing}),
                load(FetchSettings, fetching),
                plane=self.control,
                open_store=lambda: self.objects,
                clock=SYSTEM_CLOCK,
                randomness=SYSTEM_RANDOMNESS,
                broker_id=node,
                config_of=configs.config_of,
                store_url="memory://objects",
            ),
        )
        configs.bind(lambda: server.cluster.loaded)
        self.brokers.append(server)
        await server.start()
        return server

    async def connect(self, server: BrokerServer) -> WireClient:
        self.clients.append(await WireClient.connect(server.kafka_address))
        return self.clients[-1]

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        for broker in self.brokers:
            await broker.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    await cluster.stop()


@pytest.fixture
async def broker(cluster: Cluster) -> BrokerServer:
    return await cluster.start()


@pytest.fixture
async def client(cluster: Cluster, broker: BrokerServer) -> WireClient:
    return await cluster.connect(broker)


@pytest.fixture
def create(client: WireClient) -> Callable[..., Awaitable[Any]]:
    async def create(
        topic: str, partitions: int = 1, *, on: WireClient | None = None, **configs: str
    ) -> Any:
        """Create a topic, diskless unless `diskless_enable` is false; return the response."""
        given = {"diskless.enable": "true"}
        given |= {name.replace("_", "."): value for name, value in configs.items()}
        answer = await (on or client).call(
            "CreateTopics",
            7,
            {
                "topics": [
                    {
                        "name": topic,
                        "num_partitions": partitions,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [{"name": n, "value": v} for n, v in given.items()],
                    }
                ],
                "timeout": 5000,
            },
        )
        return answer.topics[0]

    return create
