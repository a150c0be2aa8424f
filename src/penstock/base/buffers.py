"""Bounded pool of receive buffers for large frames, recycled when no lease remains.

Allocating memory for every frame would dominate the cost of receiving, so a buffer is reused once
its last holder has released it. A `Lease` counts the holders. The pool counts bytes that have
arrived, not the declared lengths of frames. A buffer above `POOLED_BUFFER_BYTES` is an anonymous
mapping, which uses memory only for the pages that have been written.

When the received bytes of all connections exceed the limit (`queued.max.request.bytes`), reading
pauses for all frames but the oldest incomplete one. That frame can therefore always be completed.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Final

POOLED_BUFFER_BYTES: Final = 4 << 20
"""Largest receive buffer that is reused. Larger ones are mapped for one frame and then unmapped."""

POOLED_IDLE_BYTES: Final = 64 << 20
"""Limit of all unused receive buffers that are kept for later frames."""

_SMALLEST_CLASS: Final = 64 << 10


class Lease:
    """Receive buffer with a count of its holders. The first holder is the connection."""

    __slots__ = ("_class_bytes", "_count", "_pool", "received_bytes", "size_bytes", "view")

    def __init__(self, pool: ReceivePool, view: memoryview, class_bytes: int) -> None:
        self._pool = pool
        self._class_bytes = class_bytes
        self._count = 1
        self.view = view
        self.size_bytes = 0
        self.received_bytes = 0

    @property
    def class_bytes(self) -> int:
        """Size of the whole buffer in bytes; 0 for a buffer that is not recycled."""
        return self._class_bytes

    def retain(self) -> None:
        self._count += 1

    def release(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._pool.give_back(self)

    def lend_again(self, size_bytes: int) -> None:
        self._count = 1
        self.size_bytes = size_bytes
        self.received_bytes = 0


class ReceivePool:
    """Receive buffers of one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._free: dict[int, list[Lease]] = {}
        self._idle_bytes = 0
        self._under_way: dict[Lease, None] = {}
        self._waiting: dict[Callable[[], None], None] = {}
        self.received_bytes = 0

    def take(self, size_bytes: int) -> Lease:
        """Return a buffer for a frame of `size_bytes`; its view may be longer."""
        class_bytes = max(_SMALLEST_CLASS, 1 << (size_bytes - 1).bit_length())
        if class_bytes > POOLED_BUFFER_BYTES:
            lease = Lease(self, memoryview(mmap.mmap(-1, size_bytes)), 0)
        else:
            free = self._free.get(class_bytes)
            if free:
                lease = free.pop()
                self._idle_bytes -= class_bytes
            else:
                lease = Lease(self, memoryview(bytearray(class_bytes)), class_bytes)
        lease.lend_again(size_bytes)
        self._under_way[lease] = None
        return lease

    def received(self, lease: Lease, count: int) -> bool:
        """Count bytes that have arrived; return False if the connection must pause reading."""
        lease.received_bytes += count
        self.received_bytes += count
        if lease.received_bytes == lease.size_bytes:
            self._under_way.pop(lease, None)
            return True
        return self.may_read(lease)

    def may_read(self, lease: Lease) -> bool:
        """Whether more of an incomplete frame may be read: below the limit, or for the oldest."""
        return self.received_bytes < self._limit_bytes or next(iter(self._under_way)) is lease

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` when memory is released. `resume` must then check `may_read` again."""
        self._waiting[resume] = None

    def forget(self, resume: Callable[[], None]) -> None:
        self._waiting.pop(resume, None)

    def give_back(self, lease: Lease) -> None:
        self._under_way.pop(lease, None)
        self.received_bytes -= lease.received_bytes
        class_bytes = lease.class_bytes
        if class_bytes and self._idle_bytes + class_bytes <= POOLED_IDLE_BYTES:
            self._free.setdefault(class_bytes, []).append(lease)
            self._idle_bytes += class_bytes
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for resume in waiting:
                resume()
