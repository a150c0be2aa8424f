"""Allocation of ring space: first in, first out, each payload contiguous.

A payload keeps its space until its frame is answered. Frames may be answered out of order, but
space becomes free in the order of its allocation. A payload that does not fit before the end of the
ring starts at position 0. The unused bytes at the end are freed together with it.
"""

from __future__ import annotations

from collections import deque


class _Place:
    __slots__ = ("free", "size", "taken")

    def __init__(self, size: int, taken: int) -> None:
        self.size = size
        self.taken = taken
        self.free = False


class RingSpace:
    """Free and allocated bytes of a ring of `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0
        self._next = 0
        self._order: deque[_Place] = deque()
        self._by_position: dict[int, _Place] = {}

    def take(self, size_bytes: int) -> int | None:
        """Allocate `size_bytes` contiguous bytes; return their position, or None without space."""
        if not self.has_room(size_bytes):
            return None
        position, taken = self._place(size_bytes)
        place = _Place(size_bytes, taken)
        self._order.append(place)
        self._by_position[position] = place
        self.taken_bytes += taken
        self._next = (position + size_bytes) % self.size_bytes
        return position

    def has_room(self, size_bytes: int) -> bool:
        """Whether `take` would return a position."""
        if not 0 < size_bytes <= self.size_bytes:
            return False
        return self.taken_bytes + self._place(size_bytes)[1] <= self.size_bytes

    def _place(self, size_bytes: int) -> tuple[int, int]:
        """Return the next position, and the bytes to allocate, including bytes that are skipped."""
        if self._next + size_bytes > self.size_bytes:
            return 0, size_bytes + self.size_bytes - self._next
        return self._next, size_bytes

    def give_back(self, position: int) -> None:
        """Free the payload at `position`, once all earlier payloads are free."""
        place = self._by_position.pop(position, None)
        if place is None:
            return
        place.free = True
        order = self._order
        while order and order[0].free:
            self.taken_bytes -= order.popleft().taken
        if not order:
            self._next = 0
