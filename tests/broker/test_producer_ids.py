"""Blocks of producer ids are reserved ahead, for an unavailable control plane."""

from __future__ import annotations

import asyncio

import pytest

from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.broker.transactions.coordinator import (
    LOW_PRODUCER_IDS,
    PRODUCER_ID_BLOCK,
    ProducerIds,
)
from penstock.control import ControlUnavailable, MemoryControlPlane


class Leaving(MemoryControlPlane):
    """A control plane that gives no ids while it is away."""

    away = False

    async def allocate_producer_ids(self, count: int) -> range:
        if self.away:
            raise ControlUnavailable("the database is away")
        return await super().allocate_producer_ids(count)


@pytest.fixture
async def control() -> Leaving:
    made = Leaving()
    await made.start()
    return made


async def reserved(ids: ProducerIds) -> None:
    """Wait until a block is reserved ahead."""
    async with asyncio.timeout(10):
        while ids._ahead is None:
            await asyncio.sleep(0)


async def test_a_block_is_reserved_at_the_start(control: Leaving) -> None:
    ids = ProducerIds(control)
    ids.reserve()
    await reserved(ids)
    control.away = True
    found = {await ids.next() for _ in range(PRODUCER_ID_BLOCK)}
    assert len(found) == PRODUCER_ID_BLOCK
    with pytest.raises(ControlUnavailable):
        await ids.next()
    control.away = False
    assert await ids.next() not in found
    await ids.stop()


async def test_the_next_block_is_reserved_before_one_is_used_up(control: Leaving) -> None:
    ids = ProducerIds(control)
    found = [await ids.next()]
    await reserved(ids)
    control.away = True
    found += [await ids.next() for _ in range(2 * PRODUCER_ID_BLOCK - 1)]
    with pytest.raises(ControlUnavailable):
        await ids.next()
    control.away = False
    found += await asyncio.gather(*(ids.next() for _ in range(3 * PRODUCER_ID_BLOCK)))
    assert len(set(found)) == len(found)
    await ids.stop()


async def test_a_cluster_with_links_leaves_the_low_ids_once(control: Leaving) -> None:
    ids, other = ProducerIds(control), ProducerIds(control)
    low = await ids.next()
    for broker in (ids, other):
        broker.reserve()
        await reserved(broker)  # low ids
        broker.leave_low(SYSTEM_RANDOMNESS)
    high = await ids.next()
    assert low < LOW_PRODUCER_IDS <= high
    assert await other.next() >= LOW_PRODUCER_IDS
    again = ProducerIds(control)  # after a restart
    again.leave_low(SYSTEM_RANDOMNESS)
    assert high < await again.next() < high + 10 * PRODUCER_ID_BLOCK
    await other.stop()
    await ids.stop()
    await again.stop()
