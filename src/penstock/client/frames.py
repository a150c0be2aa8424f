"""Memory for responses, reused when no view of a response remains.

Fresh memory costs twenty times as much as a copy into used memory. A response's memory is freed
with its last view: zero-copy columns keep the response alive, copied ones do not. Memory is
therefore never overwritten while a view of it exists, however many responses are in flight.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final
from weakref import finalize

import numpy as np

FRAMES_KEPT: Final = 2
"""Pieces of memory that a reader keeps for its next responses."""
FRAME_KEPT_BYTES_MIN: Final = 1 << 20
"""Smaller responses get memory of exactly their size, which is cheap."""


class Frames:
    """Memory of one reader's responses; any thread may drop a view."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: deque[Any] = deque(maxlen=FRAMES_KEPT)

    def take(self, size_bytes: int) -> memoryview:
        if size_bytes < FRAME_KEPT_BYTES_MIN:
            return _view(np.empty(size_bytes, np.uint8))
        memory = self._fitting(size_bytes)
        frame = memory[:size_bytes]
        finalize(frame, self._free.append, memory).atexit = False
        return _view(frame)

    def _fitting(self, size_bytes: int) -> Any:
        """Return memory that is large enough but not so large that a small view wastes it."""
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:
                break
            if size_bytes <= memory.size <= 2 * size_bytes:
                return memory
            if memory.size > size_bytes:
                self._free.appendleft(memory)
        return np.empty(size_bytes + size_bytes // 8, np.uint8)


def _view(memory: Any) -> memoryview:
    return memoryview(memory)
