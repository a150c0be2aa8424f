"""Pauses end by their loop's timer, and quietly when they are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.base.pause import pause


async def test_a_pause_cancelled_as_it_ends_has_no_effect() -> None:
    loop = asyncio.get_running_loop()
    unforeseen: list[Any] = []
    loop.set_exception_handler(lambda _, context: unforeseen.append(context))
    pausing = asyncio.create_task(pause(0.0))
    await asyncio.sleep(0)
    pausing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pausing
    await asyncio.sleep(0)
    assert unforeseen == []


async def test_a_pause_lasts_and_none_is_a_turn_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    turns: list[str] = []
    loop.call_soon(turns.append, "what was due before")
    await pause(-1.0)
    assert turns == ["what was due before"]
    begun = loop.time()
    await pause(0.05)
    assert loop.time() - begun >= 0.049
