"""Limits on unauthenticated clients by address.

A connection counts from the moment it is accepted until it has authenticated, in total and by its
address. Failures are counted by address within a minute from the first one; above the limit
no connection from there is accepted until the minute is over. TLS handshakes cost time of the event
loop: a limited number per second and address begins at once, others wait. Those of all addresses
are spread evenly over the second, so that no turn of the loop has many.

For IPv6 the first 64 bits count as the address, as a host has at least that many to itself.

At most `ADDRESSES_MAX` addresses are remembered; above that, the oldest is dropped.

Source: RFC 4291, 2.5.4 and RFC 6177 (what a site is given).
"""

from __future__ import annotations

import ipaddress
from typing import Final

from msgspec import Struct

ADDRESSES_MAX: Final = 10_000
FAILURES: Final = "max.failed.authentications.per.ip"
SHARED_BITS: Final = 64
"""How much of an IPv6 address is counted."""
WINDOW_SECONDS: Final = 60.0
WAIT_SECONDS_MAX: Final = 3.0
"""A handshake that would have to wait longer is not made."""


class AddressBounds(Struct, frozen=True, kw_only=True):
    """Limits per address; see the settings of the same names."""

    waiting: int
    waiting_per_address: int
    failures_per_address: int
    handshakes: int
    handshakes_per_address: int
    """Both a second."""


def counted(address: str) -> str:
    """Return the key of an address: the network for IPv6, the address itself otherwise."""
    if ":" not in address:
        return address  # of IPv4, which is asked for some times with each connection
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), SHARED_BITS), strict=False))


class AddressLimits:
    """Counters of each address; `now` is monotonic seconds."""

    def __init__(self, bounds: AddressBounds) -> None:
        self._bounds = bounds
        self._waiting: dict[str, int] = {}
        self._failures: dict[str, tuple[float, int]] = {}
        """From when on failures are counted, and how many there were."""
        self._turns: dict[str, float] = {}
        """When the next handshake's turn is, by address."""
        self._turn = 0.0
        """The same of all."""
        self.waiting = 0
        """Connections that have not authenticated yet."""

    def refusal(self, address: str, now: float) -> str | None:
        """Return the setting by which a new connection is refused; None if it is accepted."""
        if self.waiting >= self._bounds.waiting:
            return "max.unauthenticated.connections"
        if self.crowded(address):
            return "max.unauthenticated.connections.per.ip"
        return FAILURES if self.barred(address, now) else None

    def crowded(self, address: str) -> bool:
        """Return whether an address has as many unauthenticated connections as allowed."""
        return self._waiting.get(counted(address), 0) >= self._bounds.waiting_per_address

    def barred(self, address: str, now: float) -> bool:
        """Return whether too many authentications from an address failed within the minute."""
        address = counted(address)
        since, count = self._failures.get(address, (now, 0))
        if now - since >= WINDOW_SECONDS:
            del self._failures[address]
            return False
        return count >= self._bounds.failures_per_address

    def entered(self, address: str) -> None:
        """Count an accepted connection."""
        self.waiting += 1
        address = counted(address)
        self._waiting[address] = self._waiting.get(address, 0) + 1

    def left(self, address: str) -> None:
        """Discount a connection that has authenticated or closed."""
        self.waiting -= 1
        address = counted(address)
        count = self._waiting.pop(address) - 1
        if count:
            self._waiting[address] = count

    def failed(self, address: str, now: float) -> None:
        """Count a failed authentication from there."""
        address = counted(address)
        since, count = self._failures.pop(address, (now, 0))
        fresh = now - since >= WINDOW_SECONDS
        _forget(self._failures)
        self._failures[address] = (now, 1) if fresh else (since, count + 1)

    def handshake_delay(self, address: str, now: float) -> float | None:
        """Return the seconds that a handshake has to wait for its address; None if too long.

        The handshakes of one second may begin at once.
        """
        address = counted(address)
        step = 1 / self._bounds.handshakes_per_address
        turn = max(self._turns.pop(address, 0.0), now - 1.0)
        delay = max(0.0, turn - now)
        _forget(self._turns)
        self._turns[address] = turn if delay > WAIT_SECONDS_MAX else turn + step
        return None if delay > WAIT_SECONDS_MAX else delay

    def turn_delay(self, now: float) -> float | None:
        """Return the seconds that a handshake has to wait for those of all addresses; None if too
        long.
        """
        delay = max(0.0, self._turn - now)
        if delay > WAIT_SECONDS_MAX:
            return None
        self._turn = now + delay + 1 / self._bounds.handshakes
        return delay


def _forget(counts: dict[str, float] | dict[str, tuple[float, int]]) -> None:
    if len(counts) >= ADDRESSES_MAX:
        del counts[next(iter(counts))]
