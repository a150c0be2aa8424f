"""A broker's state on real parts, without the connections."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.metrics import Registry
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.broker.coordination.groups import Coordinator
from penstock.broker.settings import BrokerSettings
from penstock.broker.state import BrokerState
from penstock.broker.topic_configs import TopicConfigs
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
async def state(tmp_path: Path) -> AsyncIterator[BrokerState]:
    settings = load(BrokerSettings, QUICK)
    configs = TopicConfigs(settings)
    store = LogStore.open(
        tmp_path, StorageSettings(), clock=SYSTEM_CLOCK, config_of=configs.config_of
    )
    state = BrokerState(
        settings=settings,
        control=MemoryControlPlane(),
        store=store,
        clock=SYSTEM_CLOCK,
        randomness=SYSTEM_RANDOMNESS,
        registry=Registry(),
    )
    configs.bind(lambda: state.image)
    state.coordinator = Coordinator(state)
    await state.control.start()
    await state.control.register_broker(
        broker_id=1, host="127.0.0.1", port=9092, rack=None, incarnation=SYSTEM_RANDOMNESS.uuid()
    )
    await state.refresh()
    yield state
    await state.coordinator.stop()
    store.close()
    await state.control.close()
