"""Budget of bytes that may be loaded at once. Waiting loads get their bytes in order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """A number of bytes shared by loads. Belongs to one event loop.

    A demand above the whole budget is granted when no other load has bytes.
    """

    __slots__ = ("_max_bytes", "_waiting", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used_bytes = 0

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self._max_bytes

    async def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` are free, and take them. The caller returns them with `give`."""
        if not self._waiting and self._fits(size_bytes):
            self.used_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size_bytes)
            raise

    def give(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done() and not self._fits(wanted):
                return
            self._waiting.popleft()
            if not turn.done():
                self.used_bytes += wanted
                turn.set_result(None)
