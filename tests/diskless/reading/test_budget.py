"""The byte budget is bounded, granted in order, and returned by cancelled waiters."""

from __future__ import annotations

import asyncio

from penstock.diskless.reading.loads import ByteBudget


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_takes_wait_for_room_in_their_order() -> None:
    budget = ByteBudget(100)
    order: list[str] = []

    async def take(name: str, size: int) -> None:
        await budget.take(size)
        order.append(name)

    await take("a", 60)
    tasks = [asyncio.create_task(take(name, size)) for name, size in (("b", 60), ("c", 10))]
    await turn()
    assert order == ["a"]  # c would fit, but b was first
    budget.give(60)
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]
    assert budget.used_bytes == 70


async def test_a_demand_above_the_whole_budget_is_granted_alone() -> None:
    budget = ByteBudget(100)
    await budget.take(500)
    waits = asyncio.create_task(budget.take(1))
    await turn()
    assert not waits.done()
    budget.give(500)
    await waits
    assert budget.used_bytes == 1


async def test_a_waiting_request_that_is_cancelled_takes_no_budget() -> None:
    budget = ByteBudget(100)
    await budget.take(100)
    waits, behind = (asyncio.create_task(budget.take(50)) for _ in range(2))
    await turn()
    waits.cancel()
    await turn()
    budget.give(100)
    await behind
    assert budget.used_bytes == 50


async def test_a_request_cancelled_when_granted_returns_its_budget() -> None:
    budget = ByteBudget(100)
    await budget.take(100)
    waits = asyncio.create_task(budget.take(50))
    await turn()
    budget.give(100)
    waits.cancel()
    await turn()
    assert budget.used_bytes == 0
