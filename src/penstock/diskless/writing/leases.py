"""Reserved keys of a broker. A pure core that decides when to reserve more and which to use next.

Keys are reserved in blocks while an object is open, so that a write needs no extra round trip. None
are reserved while nothing is written. A key is discarded after a part of the sweeper's grace
period, so that no object is written under a swept key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf

from penstock.control.batch_index.values import ObjectLease


class LeaseBook:
    """The reserved keys of one broker. Times are milliseconds of a monotonic clock."""

    def __init__(self, *, block_objects: int, life_ms: int) -> None:
        self._block_objects = block_objects
        self._life_ms = life_ms
        self._leases: deque[tuple[ObjectLease, float]] = deque()
        self._asked_ms = -inf
        self.asking = False
        self.not_before_ms = -inf

    def __len__(self) -> int:
        return len(self._leases)

    def wanted(self, now_ms: float) -> int:
        """Return the number of keys to reserve now, or 0 if there are enough."""
        if self.asking or now_ms < self.not_before_ms:
            return 0
        self._drop_old(now_ms)
        if len(self._leases) > self._block_objects // 2:
            return 0
        self.asking = True
        self._asked_ms = now_ms
        return self._block_objects

    def granted(self, leases: Iterable[ObjectLease]) -> None:
        """Add reserved keys. Their lifetime begins at the time of the request."""
        self.asking = False
        self._leases.extend((lease, self._asked_ms) for lease in leases)

    def refused(self, not_before_ms: float) -> None:
        self.asking = False
        self.not_before_ms = not_before_ms

    def take(self, now_ms: float) -> ObjectLease | None:
        self._drop_old(now_ms)
        return self._leases.popleft()[0] if self._leases else None

    def lost(self) -> None:
        self._leases.clear()

    def _drop_old(self, now_ms: float) -> None:
        leases = self._leases
        while leases and leases[0][1] + self._life_ms <= now_ms:
            leases.popleft()
