"""Broker for the tests of this package.

`PENSTOCK_TEST_BOOTSTRAP` names another one to run the same tests against.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from penstock.client import Client
from penstock.testing import Broker


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    given = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with Broker(admin=False) as broker:
        yield broker.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> Callable[..., str]:
    """Return a function that creates topics with unique names."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{uuid4().hex[:8]}"
        client.create_topic(
            name, partitions, {key.replace("_", "."): value for key, value in configs.items()}
        )
        return name

    return create
