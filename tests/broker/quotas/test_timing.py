"""The time of a coroutine's own turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest

from penstock.broker.quotas.service import Timed

T = TypeVar("T")


class Hands:
    """Clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns: list[float] = []

    def timed(self, work: Coroutine[object, object, T]) -> Timed[T]:
        return Timed(work, charge=self.turns.append, monotonic=lambda: self.now)


async def test_turns_are_charged_and_waiting_is_not() -> None:
    hands, waits = Hands(), asyncio.get_running_loop().create_future()

    async def work() -> str:
        hands.now += 2
        got: str = await waits
        hands.now += 3
        return got

    async def other() -> None:
        hands.now += 100
        waits.set_result("done")

    results = await asyncio.gather(hands.timed(work()), other())
    assert results[0] == "done"
    assert hands.turns == [2, 3]


async def test_errors_pass_in_both_directions_and_are_charged() -> None:
    hands, waits = Hands(), asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            await waits
        except KeyError:
            hands.now += 5
            raise ValueError("from within") from None

    asyncio.get_running_loop().call_soon(waits.set_exception, KeyError())
    with pytest.raises(ValueError, match="from within"):
        await hands.timed(work())
    assert hands.turns == [0, 5]


async def test_it_can_be_cancelled() -> None:
    hands = Hands()
    ended: list[str] = []

    async def work(note: Callable[[str], None]) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            note("ended")

    async def outer() -> None:
        await hands.timed(work(ended.append))

    task = asyncio.get_running_loop().create_task(outer())
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]
