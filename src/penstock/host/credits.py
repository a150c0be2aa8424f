"""Credit in three dimensions: chunk slots, raw events, payload bytes.

A frame is sent only if all three have room for it, so that neither a flood of tiny chunks nor a
few huge ones can use up what the other was sized for. Both sides keep a window; the server's is
the truth. What a frame took comes back once, when it is accepted, failed or lost.

Source: `host-ipc.txt`, three-dimensional backpressure.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.host.errors import CreditBug


class Credit(NamedTuple):
    """An amount of credit, or the footprint of a frame."""

    slots: int
    events: int
    payload_bytes: int

    def __str__(self) -> str:
        return f"{self.slots} chunks, {self.events} events, {self.payload_bytes} bytes"


NO_CREDIT = Credit(0, 0, 0)


class CreditWindow:
    """Granted credit and the part of it that is left."""

    __slots__ = ("_events", "_payload_bytes", "_slots", "granted")

    def __init__(self, granted: Credit) -> None:
        self.granted = granted
        self._slots, self._events, self._payload_bytes = granted

    @property
    def available(self) -> Credit:
        return Credit(self._slots, self._events, self._payload_bytes)

    @property
    def taken(self) -> Credit:
        granted = self.granted
        return Credit(
            granted.slots - self._slots,
            granted.events - self._events,
            granted.payload_bytes - self._payload_bytes,
        )

    def try_acquire(self, slots: int, events: int, payload_bytes: int) -> bool:
        """Take all three, or nothing."""
        if slots > self._slots or events > self._events or payload_bytes > self._payload_bytes:
            return False
        self._slots -= slots
        self._events -= events
        self._payload_bytes -= payload_bytes
        return True

    def has_room(self, slots: int, events: int, payload_bytes: int) -> bool:
        """Whether `try_acquire` would succeed."""
        return (
            slots <= self._slots and events <= self._events and payload_bytes <= self._payload_bytes
        )

    def ever_fits(self, footprint: Credit) -> bool:
        """Whether the whole window would be enough."""
        return all(need <= most for need, most in zip(footprint, self.granted, strict=True))

    def restore(self, slots: int, events: int, payload_bytes: int) -> None:
        """Give back what a frame took.

        Raises:
            CreditBug: more than was taken.
        """
        granted = self.granted
        self._slots += slots
        self._events += events
        self._payload_bytes += payload_bytes
        if (
            self._slots > granted.slots
            or self._events > granted.events
            or self._payload_bytes > granted.payload_bytes
        ):
            raise CreditBug(f"{self.available} are left of {granted} granted")

    def grant(self, more: Credit) -> None:
        """Widen the window."""
        self.granted = Credit(*(a + b for a, b in zip(self.granted, more, strict=True)))
        self._slots += more.slots
        self._events += more.events
        self._payload_bytes += more.payload_bytes
