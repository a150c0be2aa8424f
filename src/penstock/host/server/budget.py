"""Distribution of an agent's total credit over its connections, without I/O.

Every connection gets a floor of credit, which is enough for the largest frame. It gets more from
the total. As long as more connections may come, half of the total is reserved for them. A new
connection gets the whole credit per connection while there is plenty, and otherwise at most half of
the free credit. Granted credit cannot be withdrawn; it ends with its connection. When connections
end, `top_up` distributes the free credit evenly over those that have less than the whole.

With very many connections, the floors alone exceed the total. Then two other limits bound the
memory: the sink accepts no more than the total and fails other frames as retryable, and receive
buffers have a limit.

The budget counts payload bytes, because they need the memory. Chunk slots and events are granted in
proportion, so that a small share of bytes does not allow many tiny chunks.

Source: `host-ipc.txt`, three-dimensional backpressure; max-min fairness.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from penstock.base.errors import BugError
from penstock.host.credits import Credit

STEP_BYTES_MIN: Final = 64 << 10
"""Minimum bytes of a CREDIT_UPDATE, unless it completes the connection's whole credit."""


class CreditBudget:
    """Credit of one agent: the grants of its connections, and the rest."""

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
        """Credit that every connection gets."""
        return self._portion(self._floor_bytes)

    @property
    def free_bytes(self) -> int:
        """Bytes that may be granted beyond floors, without the reserve for new connections."""
        to_come = self._floor_bytes * max(0, self.connections_max - len(self._grants))
        reserved = min(self.total_bytes // 2, to_come)
        return max(0, self.total_bytes - self.granted_bytes - reserved)

    def open(self, key: Hashable) -> Credit:
        """Grant a new connection its credit.

        Raises:
            BugError: the connection already has credit, or there are `connections_max` connections.
        """
        if key in self._grants or len(self._grants) >= self.connections_max:
            raise BugError(
                f"cannot grant credit to {key!r}: it has some already, or there are"
                f" {len(self._grants)} of at most {self.connections_max} connections"
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
        """Take back the credit of a connection, if it has any."""
        granted = self._grants.pop(key, None)
        self._wanting.pop(key, None)
        if granted is not None:
            self.granted_bytes -= granted.payload_bytes

    def top_up(self) -> list[tuple[Hashable, Credit]]:
        """Distribute free credit over connections that have less than the whole.

        Returns:
            The connections with their additional credit.
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
        """Return the credit for a number of bytes; the rest is in proportion, rounded up."""
        slots, events, whole = self.whole
        return Credit(-(-slots * size // whole), -(-events * size // whole), size)
