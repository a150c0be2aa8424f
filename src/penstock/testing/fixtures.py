"""Fixtures of pytest: `penstock_broker`, one broker per session, and `penstock_client`, its client.

Load them with `pytest_plugins = ["penstock.testing.fixtures"]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.testing.broker import Broker

if TYPE_CHECKING:
    from penstock.client import Client


@pytest.fixture(scope="session")
def penstock_broker() -> Iterator[Broker]:
    """Broker for the whole session, on a free port, with its own directory."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def penstock_client(penstock_broker: Broker) -> Iterator[Client]:
    with penstock_broker.client() as client:
        yield client
