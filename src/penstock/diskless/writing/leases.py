"""Keys in hand: a pure core that says when to reserve more, and which one is next.

Keys are reserved in blocks while an object gathers, so that no round trip is added to a write, and
none are reserved while nothing is written. A key that has been in hand for a part of the grace
after which the sweeper takes it is dropped: what it would be used for might be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf

from penstock.control.batch_index.values import ObjectLease


class LeaseBook:
    """The keys of one broker. Times are milliseconds of a monotonic clock."""

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
        """How many keys to reserve now; they count as asked for. 0 if there are enough."""
        if self.asking or now_ms < self.not_before_ms:
            return 0
        self._drop_old(now_ms)
        if len(self._leases) > self._block_objects // 2:
            return 0
        self.asking = True
        self._asked_ms = now_ms
        return self._block_objects

    def granted(self, leases: Iterable[ObjectLease]) -> None:
        """Keys came; their life counts from when they were asked for."""
        self.asking = False
        self._leases.extend((lease, self._asked_ms) for lease in leases)

    def refused(self, not_before_ms: float) -> None:
        """No keys came; they are asked for again, but not before then."""
        self.asking = False
        self.not_before_ms = not_before_ms

    def take(self, now_ms: float) -> ObjectLease | None:
        """The next key; each is given out once."""
        self._drop_old(now_ms)
        return self._leases.popleft()[0] if self._leases else None

    def lost(self) -> None:
        """One was swept while it was in use: so will be those that are as old."""
        self._leases.clear()

    def _drop_old(self, now_ms: float) -> None:
        leases = self._leases
        while leases and leases[0][1] + self._life_ms <= now_ms:
            leases.popleft()
