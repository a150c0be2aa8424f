"""Memory for responses, which is reused when no view of a response exists any more.

Fresh memory costs twenty times as much as a copy into used memory. A response's memory is free when
its last view is dropped. Columns that are views keep the response's memory in use, copied columns
do not. So memory is never overwritten while a view of it exists.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final
from weakref import finalize

import numpy as np

FRAMES_KEPT: Final = 2
"""Maximum number of free pieces of memory that a reader keeps for its next responses."""
FRAME_KEPT_BYTES_MIN: Final = 1 << 20
"""Size below which a response gets memory of exactly its size, because that is cheap."""


class Frames:
    """Memory of one reader's responses; views may be dropped on any thread."""

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
        """Return memory for a response: reused memory of at most twice its size, or else new
        memory.
        """
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
