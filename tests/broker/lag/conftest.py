"""A scene with a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.broker.conftest import StartBroker
from tests.broker.lag.scene import MovedClock, Scene


@pytest.fixture
async def scene(start_broker: StartBroker) -> AsyncIterator[Scene]:
    clock = MovedClock()
    settings = {"admin.listener": "127.0.0.1:0", "group.initial.rebalance.delay.ms": 0}
    scene = Scene(await start_broker(settings, clock=clock), clock)
    yield scene
    await scene.close()
