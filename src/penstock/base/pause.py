"""Waiting in a coroutine, by a timer of its loop: for the shells that may."""

from __future__ import annotations

import asyncio


async def pause(seconds: float) -> None:
    """Wait at least one turn of the loop; a negative time is none."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(max(0.0, seconds), _end, over)
    try:
        await over
    finally:
        timer.cancel()


def _end(over: asyncio.Future[None]) -> None:
    if not over.done():  # as that of a caller which was cancelled a moment before
        over.set_result(None)
