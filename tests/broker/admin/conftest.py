"""A broker's state with its admin interface listening."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.admin import AdminServer
from penstock.broker.state import BrokerState
from tests.broker.handlers.conftest import state

__all__ = ["admin", "state"]


@pytest.fixture
async def admin(state: BrokerState) -> AsyncIterator[AdminServer]:
    server = AdminServer(state)
    await server.start()
    yield server
    await server.stop()
