"""A broker of real parts, without the connections."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.base.metrics import Registry
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.broker.admin.health import Readiness
from penstock.broker.configuration.configs import TopicConfigs
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.server import BrokerServer
from penstock.control import MemoryControlPlane
from penstock.storage import LogStore, StorageSettings

QUICK = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "admin.listener": "127.0.0.1:0",
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offset.metadata.max.bytes": 64,
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    """Return a broker that is not started: its parts work without connections."""
    settings = load(BrokerSettings, QUICK)
    configs = TopicConfigs(settings)
    store = LogStore.open(
        tmp_path, StorageSettings(), clock=SYSTEM_CLOCK, config_of=configs.config_of
    )
    broker = BrokerServer(
        settings=settings,
        control=MemoryControlPlane(),
        store=store,
        clock=SYSTEM_CLOCK,
        randomness=SYSTEM_RANDOMNESS,
        registry=Registry(),
    )
    configs.bind(lambda: broker.cluster.loaded)
    await broker.control.start()
    await broker.control.register_broker(
        broker_id=1, host="127.0.0.1", port=9092, rack=None, incarnation=SYSTEM_RANDOMNESS.uuid()
    )
    await broker.cluster.refresh()
    yield broker
    await broker.coordinator.stop()
    store.close()
    await broker.control.close()


def give(broker: BrokerServer, *, control: Any = None, clock: Any = None) -> None:
    """Replace parts of a broker that is not started, in all that were made of them."""
    assembly = broker.assembly
    if control is not None:
        broker.control = assembly.control = broker.cluster.control = control
        broker.topic_admin._control = broker.producer_ids._control = control
    if clock is not None:
        broker.clock = assembly.clock = clock
    broker.coordinator = assembly.coordinator = GroupCoordinator(
        settings=broker.settings,
        control=broker.control,
        clock=broker.clock,
        cluster=broker.cluster,
    )


def readiness_of(broker: BrokerServer) -> Readiness:
    """Return probes that have not looked yet."""
    vars(broker.assembly).pop("readiness", None)
    return broker.assembly.readiness
