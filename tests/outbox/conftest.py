"""Broker for the tests of this package, and a separate outbox for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.testing import Broker
from tests.outbox.shelf import Shelf


@pytest.fixture(scope="session")
def outbox_broker() -> Iterator[Broker]:
    with Broker(admin=False) as broker:
        yield broker


@pytest.fixture
def shelf(outbox_broker: Broker, tmp_path: Path) -> Iterator[Shelf]:
    """A root, a topic of two partitions and a dead-letter topic."""
    root = tmp_path / "outbox"
    root.mkdir()
    topic = f"outbox-{uuid4().hex[:8]}"
    with outbox_broker.client() as client:
        client.create_topic(topic, partitions=2)
        client.create_topic(f"{topic}-dead")
        yield Shelf(root=root, client=client, topic=topic, dead=f"{topic}-dead")
