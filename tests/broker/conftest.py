"""A broker on a real socket, in the loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from penstock.base.files import MACHINE_FILES, Files
from penstock.base.metrics import Registry
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock
from penstock.broker.configuration.configs import TopicConfigs
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.net.security_settings import Security
from penstock.broker.server import BrokerServer
from penstock.control import MemoryControlPlane
from penstock.storage import LogStore, StorageSettings
from tests.broker.fake_store import FakeStore
from tests.broker.wire_client import WireClient

BOTH_LOOPS = {
    "test_server.py",
    "test_bad_input.py",
    "test_quotas.py",
    "test_unauthenticated.py",
    "test_abuse.py",
}
SAMPLE_OF_BOTH = "test_server.py"
"""File whose tests CI runs with both loops; it runs the others with that of `penstock serve`."""
StartBroker = Callable[..., Awaitable[BrokerServer]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops for the tests of the connection: they fill and hand over buffers differently."""
    if item.path.name in BOTH_LOOPS:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in BOTH_LOOPS - {SAMPLE_OF_BOTH} and "[asyncio" in item.name:
            item.add_marker(pytest.mark.long)


@pytest.fixture
async def start_broker(tmp_path: Path) -> AsyncIterator[StartBroker]:
    """Starts brokers with settings by their dotted names; they are stopped at the end.

    `store` replaces the real store, for tests that hold its syncs back or plant failures; `policy`
    and `files` belong to the real one; `parts` are more parts of the server.
    """
    started: list[BrokerServer] = []

    async def start(
        settings: dict[str, Any] | None = None,
        store: FakeStore | None = None,
        security: Security | None = None,
        clock: Clock = SYSTEM_CLOCK,
        policy: str = "group",
        files: Files = MACHINE_FILES,
        **parts: Any,
    ) -> BrokerServer:
        values = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "admin.listener": "",
            "shutdown.timeout.ms": 1000,
            "message.max.bytes": 32 << 20,
            **(settings or {}),
        }
        loaded = load(BrokerSettings, values)
        configs = TopicConfigs(loaded)
        if store is None:
            opened = LogStore.open(
                tmp_path / str(len(started)), StorageSettings(log_flush_policy=policy),
                clock=SYSTEM_CLOCK, config_of=configs.config_of, files=files,
            )  # fmt: skip
        else:
            opened = cast("LogStore", store)
        server = BrokerServer(
            loaded,
            control=MemoryControlPlane(),
            store=opened,
            clock=clock,
            randomness=SYSTEM_RANDOMNESS,
            registry=Registry(),
            security=security,
            **parts,
        )
        configs.bind(lambda: server.cluster.loaded)
        started.append(server)
        await server.start()
        return server

    yield start
    for server in started:
        await server.stop()


@pytest.fixture
async def fake_store(tmp_path: Path) -> FakeStore:
    return FakeStore(str(tmp_path))


@pytest.fixture
async def broker(start_broker: StartBroker) -> BrokerServer:
    return await start_broker()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[BrokerServer], Awaitable[WireClient]]]:
    clients: list[WireClient] = []

    async def connect(server: BrokerServer) -> WireClient:
        clients.append(await WireClient.connect(server.kafka_address))
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


@pytest.fixture
async def client(
    broker: BrokerServer, connect: Callable[[BrokerServer], Awaitable[WireClient]]
) -> WireClient:
    return await connect(broker)
