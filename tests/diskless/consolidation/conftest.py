"""A bed over memory, for the tests of consolidation."""

from __future__ import annotations

from typing import TypeVar

import pytest

from penstock.control import MemoryControlPlane, SqliteControlPlane
from penstock.control.postgres import PostgresControlPlane
from penstock.objects import MemoryStore
from tests.diskless.consolidation.bed import BROKER, INCARNATION, TOPIC, Bed
from tests.storage.batches import FakeClock

Plane = TypeVar("Plane", MemoryControlPlane, SqliteControlPlane, PostgresControlPlane)


@pytest.fixture
def clock() -> FakeClock:
    """The clock of plane and store."""
    return FakeClock()


async def furnished(plane: Plane) -> Plane:
    """A plane with a broker and a diskless topic of three partitions."""
    await plane.register_broker(
        broker_id=BROKER, host="h", port=1, rack=None, incarnation=INCARNATION
    )
    await plane.create_topic(
        name="orders",
        topic_id=TOPIC,
        partitions=[[BROKER]] * 3,
        configs={"diskless.enable": "true"},
    )
    return plane


@pytest.fixture
async def plane(clock: FakeClock) -> MemoryControlPlane:
    """The plane in memory."""
    return await furnished(MemoryControlPlane(clock=clock))


@pytest.fixture
def bed(plane: MemoryControlPlane, clock: FakeClock) -> Bed:
    """The plane with a store in memory."""
    return Bed(plane, MemoryStore(clock=clock))
