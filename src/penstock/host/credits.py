"""Credit in three dimensions: chunk slots, raw events, payload bytes.

A frame is sent only if all three dimensions have enough credit. So many tiny chunks cannot exceed
the agent's limit of chunks, and a few large ones cannot exceed its memory. Producer and agent each
keep a window; that of the agent decides. The credit of a frame is returned once, when the frame is
accepted, failed or lost.

Source: `host-ipc.txt`, three-dimensional backpressure.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.host.errors import CreditBug


class Credit(NamedTuple):
    """Amount of credit, or the footprint of a frame."""

    slots: int
    events: int
    payload_bytes: int

    def __str__(self) -> str:
        return f"{self.slots} chunks, {self.events} events, {self.payload_bytes} bytes"


NO_CREDIT = Credit(0, 0, 0)


class CreditWindow:
    """Window of credit: the granted amount, and the part that is left."""

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
        """Take credit in all three dimensions, or none; return whether it was taken."""
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
        """Whether the footprint would fit the whole window."""
        return all(need <= most for need, most in zip(footprint, self.granted, strict=True))

    def restore(self, slots: int, events: int, payload_bytes: int) -> None:
        """Return the credit of a frame to the window.

        Raises:
            CreditBug: more is returned than was taken.
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
            raise CreditBug(
                f"{self.available} are left after a return, but only {granted} were granted"
            )

    def grant(self, more: Credit) -> None:
        """Increase the granted credit."""
        self.granted = Credit(*(a + b for a, b in zip(self.granted, more, strict=True)))
        self._slots += more.slots
        self._events += more.events
        self._payload_bytes += more.payload_bytes
