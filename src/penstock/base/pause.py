"""Timer-based waiting for the coroutines of shells."""

from __future__ import annotations

import asyncio


async def pause(seconds: float) -> None:
    """Wait for `seconds`, and at least for one turn of the event loop."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(max(0.0, seconds), _end, over)
    try:
        await over
    finally:
        timer.cancel()


def _end(over: asyncio.Future[None]) -> None:
    if not over.done():  # it is done if the caller was cancelled
        over.set_result(None)
