"""Limiter of writes in progress, by bytes and by number, in the order of arrival.

Bytes limit the memory of payloads. The number of operations limits the load on the file system. A
limit on operations alone would let a few large payloads take all memory. A request is admitted when
both limits allow it and no earlier request waits. Even a small request waits behind a large one,
because otherwise small requests could delay the large one for ever. A request above the limit on
bytes counts as the limit, so it runs alone.

The limiter has no clock and no futures. A *ticket* is any hashable object that stands for a
request.

Source: `filesystem-outbox.txt`, "Byte-based backpressure, not request-based".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum
from typing import Generic, TypeVar

from penstock.outbox.errors import OutboxBug, OutboxBusy

T = TypeVar("T", bound=Hashable)


class Admission(Enum):
    ADMITTED = "admitted"
    QUEUED = "queued"


class Limiter(Generic[T]):
    """Capacity in bytes and operations, with a queue of at most `pending_max` requests."""

    __slots__ = (
        "_in_flight",
        "_pending",
        "bytes_max",
        "in_flight_bytes",
        "operations_max",
        "pending_bytes",
        "pending_max",
    )

    def __init__(self, *, bytes_max: int, operations_max: int, pending_max: int) -> None:
        self.bytes_max = bytes_max
        self.operations_max = operations_max
        self.pending_max = pending_max
        self.in_flight_bytes = 0
        self.pending_bytes = 0
        self._in_flight: dict[T, int] = {}
        self._pending: OrderedDict[T, int] = OrderedDict()

    @property
    def in_flight_operations(self) -> int:
        return len(self._in_flight)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def acquire(self, ticket: T, size_bytes: int) -> Admission:
        """Request capacity for `size_bytes`.

        A queued ticket is returned by `release` once it is admitted.

        Raises:
            OutboxBusy: `pending_max` requests are waiting.
            OutboxBug: the ticket is in use.
        """
        if ticket in self._in_flight or ticket in self._pending:
            raise OutboxBug(f"limiter: ticket {ticket!r} is in use")
        # An empty payload counts as one byte, so that it never runs beside one that runs alone.
        reserved = min(max(size_bytes, 1), self.bytes_max)
        if not self._pending and self._fits(reserved):
            self._admit(ticket, reserved)
            return Admission.ADMITTED
        if len(self._pending) >= self.pending_max:
            raise OutboxBusy(
                f"outbox: {len(self._pending)} writes wait for admission; the limit is"
                f" {self.pending_max}. In progress: {self.in_flight_bytes} of {self.bytes_max}"
                f" bytes, {len(self._in_flight)} of {self.operations_max} operations"
            )
        self._pending[ticket] = reserved
        self.pending_bytes += reserved
        return Admission.QUEUED

    def release(self, ticket: T) -> list[T]:
        """Release an admitted ticket. Return the tickets that are admitted now, in order.

        Raises:
            OutboxBug: the ticket was not admitted, or was released before.
        """
        reserved = self._in_flight.pop(ticket, None)
        if reserved is None:
            raise OutboxBug(f"limiter: ticket {ticket!r} was not admitted")
        self.in_flight_bytes -= reserved
        return self._drain()

    def withdraw(self, ticket: T) -> list[T]:
        """Remove a waiting ticket from the queue.

        Return the tickets that are admitted now, in order.

        Raises:
            OutboxBug: the ticket is not in the queue.
        """
        reserved = self._pending.pop(ticket, None)
        if reserved is None:
            raise OutboxBug(f"limiter: ticket {ticket!r} does not wait")
        self.pending_bytes -= reserved
        return self._drain()

    def _fits(self, reserved: int) -> bool:
        return (
            len(self._in_flight) < self.operations_max
            and self.in_flight_bytes + reserved <= self.bytes_max
        )

    def _admit(self, ticket: T, reserved: int) -> None:
        self._in_flight[ticket] = reserved
        self.in_flight_bytes += reserved

    def _drain(self) -> list[T]:
        admitted: list[T] = []
        while self._pending:
            ticket, reserved = next(iter(self._pending.items()))
            if not self._fits(reserved):
                break
            del self._pending[ticket]
            self.pending_bytes -= reserved
            self._admit(ticket, reserved)
            admitted.append(ticket)
        return admitted
