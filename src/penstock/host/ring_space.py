"""Allocation of the ring: first in, first out, each payload in one piece.

A payload keeps its space until its frame is answered. Frames may be answered out of order; space
becomes free in the order in which it was allocated. A payload that does not fit before the end of
the ring starts at its beginning, and the rest of the end stays unused until then.
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
    """The free and taken bytes of a ring of `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0
        self._next = 0
        self._order: deque[_Place] = deque()
        self._by_position: dict[int, _Place] = {}

    def take(self, size_bytes: int) -> int | None:
        """The position of `size_bytes` free bytes, or None when there are not as many."""
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
        """Whether `take` would find a place."""
        if not 0 < size_bytes <= self.size_bytes:
            return False
        return self.taken_bytes + self._place(size_bytes)[1] <= self.size_bytes

    def _place(self, size_bytes: int) -> tuple[int, int]:
        """The next position, and the bytes taken with what is left out before it."""
        if self._next + size_bytes > self.size_bytes:
            return 0, size_bytes + self.size_bytes - self._next
        return self._next, size_bytes

    def give_back(self, position: int) -> None:
        """The payload at `position` is not needed any more."""
        place = self._by_position.pop(position, None)
        if place is None:
            return
        place.free = True
        order = self._order
        while order and order[0].free:
            self.taken_bytes -= order.popleft().taken
        if not order:
            self._next = 0
