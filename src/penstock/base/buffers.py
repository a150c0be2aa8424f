"""Receive buffers for large frames: recycled, leased to whoever keeps views of them, bounded.

Fresh memory is the scarcest resource on a receive path, so a buffer that a large frame was
received into is used again once whoever kept it has let go of it. A `Lease` counts who still needs
it. What is accounted is what has arrived, not what a frame's length claims: a buffer above
`POOLED_BUFFER_BYTES` is an anonymous mapping, whose pages exist only once they are written to.

When the received bytes of all connections exceed the limit (`queued.max.request.bytes`), reading
pauses for all but the oldest frame under way, which therefore always completes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Final

POOLED_BUFFER_BYTES: Final = 4 << 20
"""Larger receive buffers are mapped for one frame and returned to the system."""

POOLED_IDLE_BYTES: Final = 64 << 20
"""Receive buffers kept for the next frame."""

_SMALLEST_CLASS: Final = 64 << 10


class Lease:
    """A receive buffer and the number of those who need it; starts with one, the connection."""

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
        """The size of the whole buffer, 0 for one that is not kept."""
        return self._class_bytes

    def retain(self) -> None:
        self._count += 1

    def release(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._pool.give_back(self)

    def lend_again(self, size_bytes: int) -> None:
        """Start over for a new frame."""
        self._count = 1
        self.size_bytes = size_bytes
        self.received_bytes = 0


class ReceivePool:
    """The receive buffers of one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._free: dict[int, list[Lease]] = {}
        self._idle_bytes = 0
        self._under_way: dict[Lease, None] = {}
        self._waiting: dict[Callable[[], None], None] = {}
        self.received_bytes = 0

    def take(self, size_bytes: int) -> Lease:
        """A buffer for a frame of `size_bytes`; its view may be longer."""
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
        """Account for bytes that arrived; False when the connection should pause reading."""
        lease.received_bytes += count
        self.received_bytes += count
        if lease.received_bytes == lease.size_bytes:
            self._under_way.pop(lease, None)
            return True
        return self.may_read(lease)

    def may_read(self, lease: Lease) -> bool:
        """Whether a frame under way may read on: below the limit, or as the oldest one."""
        return self.received_bytes < self._limit_bytes or next(iter(self._under_way)) is lease

    def wait(self, resume: Callable[[], None]) -> None:
        """Have `resume` called when memory was given back; it asks `may_read` again."""
        self._waiting[resume] = None

    def forget(self, resume: Callable[[], None]) -> None:
        self._waiting.pop(resume, None)

    def give_back(self, lease: Lease) -> None:
        """Called by the last `Lease.release`."""
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
