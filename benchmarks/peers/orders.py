"""What a peer with an event loop does for its starter: says that it is ready, and answers lines."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable


async def serve_orders(said: str, order: Callable[[str], str | Awaitable[str]]) -> None:
    """Say `ready` and what the starter must know; then answer each line until there are no more."""
    print(f"ready {said}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        answer = order(line.strip())
        print(await answer if inspect.isawaitable(answer) else answer, flush=True)
