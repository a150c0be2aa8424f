"""A broker that is not started, with its admin interface listening."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.admin_server import AdminServer
from penstock.broker.server import BrokerServer
from penstock.security.sasl.peers import PeerSecret
from tests.broker.handlers.conftest import broker

__all__ = ["admin", "broker"]


@pytest.fixture
async def admin(broker: BrokerServer) -> AsyncIterator[AdminServer]:
    broker.security_service.secret = PeerSecret(bytes(32))
    server = AdminServer(broker.settings, broker.assembly)
    await server.start()
    yield server
    await server.stop()
