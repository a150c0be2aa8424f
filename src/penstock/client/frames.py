"""Memory for answers, used again when nobody looks at an answer any more.

Fresh memory costs twenty times a copy into memory that was used before. An answer's memory comes
back by itself, with the last view of it: what was decoded without a copy keeps the answer for as
long as it lives itself, and what was copied keeps nothing. Memory is therefore never written
while it is looked at, however many answers are under way.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import finalize

import numpy as np

from penstock.client import limits


class Frames:
    """The memory of one reader's answers; any thread may let go of one."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: deque[Any] = deque(maxlen=limits.FRAMES_KEPT)

    def take(self, size_bytes: int) -> memoryview:
        """Memory of that size for the caller, and for all that is made of it."""
        if size_bytes < limits.FRAME_KEPT_BYTES_MIN:
            return _view(np.empty(size_bytes, np.uint8))
        memory = self._fitting(size_bytes)
        frame = memory[:size_bytes]
        finalize(frame, self._free.append, memory).atexit = False
        return _view(frame)

    def _fitting(self, size_bytes: int) -> Any:
        """Memory that is large enough, and not so large that a view keeps much in vain."""
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
