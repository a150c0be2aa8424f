"""Distribution of one total of credit over the connections of an agent; without I/O.

Every connection gets a floor, enough for the largest frame, or it could never send one. What it
gets beyond comes out of the total, and of that only one half is handed out while others may still
come: a new connection gets the whole per-connection credit while there is plenty, and at most half
of what is free. Credit that was granted cannot be taken back, it ends with its connection; when
others leave, `top_up` spreads what became free evenly over those that have less than the whole.

With very many connections the floors alone are more than the total. What is really held is then
bounded by the sink, which takes no more than the total and fails the rest for now, and by the
receive buffers' limit.

What is shared are payload bytes, since they are what memory is needed for; chunk slots and events
shrink in proportion, so that a small share of bytes is not a large share of tiny chunks.

Source: `host-ipc.txt`, three-dimensional backpressure; max-min fairness.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from penstock.base.errors import BugError
from penstock.host.credits import Credit

STEP_BYTES_MIN: Final = 64 << 10
"""Less than this is not worth a CREDIT_UPDATE, unless it makes the credit whole."""


class CreditBudget:
    """The credit of one agent: whose it is, and what is left of it."""

    def __init__(
        self, *, whole: Credit, total_bytes: int, connections_max: int, floor_bytes: int
    ) -> None:
        self.whole = whole
        self.total_bytes = total_bytes
        self.connections_max = connections_max
        self.granted_bytes = 0
        self._floor_bytes = max(1, min(whole.payload_bytes, floor_bytes))
        self._grants: dict[Hashable, Credit] = {}
        self._wanting: dict[Hashable, None] = {}

    def __len__(self) -> int:
        return len(self._grants)

    @property
    def floor(self) -> Credit:
        """Return the credit that every connection gets."""
        return self._portion(self._floor_bytes)

    @property
    def free_bytes(self) -> int:
        """Return the bytes that may be granted beyond floors, without those of connections to
        come."""
        to_come = self._floor_bytes * max(0, self.connections_max - len(self._grants))
        reserved = min(self.total_bytes // 2, to_come)
        return max(0, self.total_bytes - self.granted_bytes - reserved)

    def open(self, key: Hashable) -> Credit:
        """Grant a new connection its credit.

        Raises:
            BugError: it has some already, or there are `connections_max`.
        """
        if key in self._grants or len(self._grants) >= self.connections_max:
            raise BugError(
                f"credit for {key!r} beside {len(self._grants)} of {self.connections_max}"
            )
        whole = self.whole.payload_bytes
        free = self.free_bytes
        size = whole if free >= 2 * whole else min(whole, max(self._floor_bytes, free // 2))
        granted = self._portion(size)
        self._grants[key] = granted
        self.granted_bytes += size
        if size < whole:
            self._wanting[key] = None
        return granted

    def close(self, key: Hashable) -> None:
        """Take back what a connection had; nothing happens for one that had none."""
        granted = self._grants.pop(key, None)
        self._wanting.pop(key, None)
        if granted is not None:
            self.granted_bytes -= granted.payload_bytes

    def top_up(self) -> list[tuple[Hashable, Credit]]:
        """Spread what is free over those that have less than the whole.

        Returns:
            Whom to grant how much more.
        """
        wanting = len(self._wanting)
        if not wanting:
            return []
        share = self.free_bytes // wanting
        grants: list[tuple[Hashable, Credit]] = []
        whole = self.whole.payload_bytes
        for key in list(self._wanting):
            had = self._grants[key]
            size = min(whole, had.payload_bytes + share)
            if size < whole and size - had.payload_bytes < STEP_BYTES_MIN:
                continue
            has = self._portion(size)
            self._grants[key] = has
            self.granted_bytes += size - had.payload_bytes
            if size == whole:
                del self._wanting[key]
            grants.append((key, Credit(*(a - b for a, b in zip(has, had, strict=True)))))
        return grants

    def _portion(self, size: int) -> Credit:
        """The credit that goes with so many bytes; rounded up, so that no dimension is zero."""
        slots, events, whole = self.whole
        return Credit(-(-slots * size // whole), -(-events * size // whole), size)
