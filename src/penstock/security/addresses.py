"""Limits on unauthenticated clients, by address.

A connection counts as unauthenticated from its acceptance until it has authenticated. Such
connections are limited in total and for each address. Failed authentications of an address are
counted for a minute from the first one. Above the limit, no connection from the address is accepted
until the minute is over.

TLS handshakes take time on the event loop. For each address a limited number per second may begin
at once, and others wait. The handshakes of all addresses are spread evenly over the second, so that
no iteration of the event loop has many.

For IPv6, the first 64 bits count as the address, because a host usually has at least such a network
to itself. At most `ADDRESSES_MAX` addresses are stored; then the oldest is dropped.

Source: RFC 4291, 2.5.4 and RFC 6177 (networks that a site is assigned).
"""

from __future__ import annotations

import ipaddress
from typing import Final

from msgspec import Struct

ADDRESSES_MAX: Final = 10_000
FAILURES: Final = "max.failed.authentications.per.ip"
SHARED_BITS: Final = 64
"""Leading bits of an IPv6 address that identify a client."""
WINDOW_SECONDS: Final = 60.0
WAIT_SECONDS_MAX: Final = 3.0
"""Longest delay of a handshake; if it would be longer, the connection is closed."""


class AddressBounds(Struct, frozen=True, kw_only=True):
    """Limits per address and in total, from the settings of `ListenerSettings`.

    `waiting` counts unauthenticated connections, and `failures` are per minute.
    """

    waiting: int
    waiting_per_address: int
    failures_per_address: int
    handshakes: int
    handshakes_per_address: int
    """`handshakes` and `handshakes_per_address` are per second."""


def counted(address: str) -> str:
    """Return the key under which an address is counted: for IPv6 its network, else the address."""
    if ":" not in address:
        return address  # fast path for IPv4, because this runs several times per connection
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), SHARED_BITS), strict=False))


class AddressLimits:
    """Counters and limits of unauthenticated connections; `now` is monotonic seconds."""

    def __init__(self, bounds: AddressBounds) -> None:
        self._bounds = bounds
        self._waiting: dict[str, int] = {}
        self._failures: dict[str, tuple[float, int]] = {}
        """Time of the first failure in the current minute, and number of failures, by address."""
        self._turns: dict[str, float] = {}
        """Earliest time of the next handshake, by address."""
        self._turn = 0.0
        """Earliest time of the next handshake of any address."""
        self.waiting = 0
        """Number of connections that have not authenticated yet."""

    def refusal(self, address: str, now: float) -> str | None:
        """Return the name of the limit that a new connection exceeds; None if there is none."""
        if self.waiting >= self._bounds.waiting:
            return "max.unauthenticated.connections"
        if self.crowded(address):
            return "max.unauthenticated.connections.per.ip"
        return FAILURES if self.barred(address, now) else None

    def crowded(self, address: str) -> bool:
        """Return whether an address has reached its limit of unauthenticated connections."""
        return self._waiting.get(counted(address), 0) >= self._bounds.waiting_per_address

    def barred(self, address: str, now: float) -> bool:
        """Return whether an address has reached its limit of failed authentications per minute."""
        address = counted(address)
        since, count = self._failures.get(address, (now, 0))
        if now - since >= WINDOW_SECONDS:
            del self._failures[address]
            return False
        return count >= self._bounds.failures_per_address

    def entered(self, address: str) -> None:
        """Count an accepted connection as unauthenticated."""
        self.waiting += 1
        address = counted(address)
        self._waiting[address] = self._waiting.get(address, 0) + 1

    def left(self, address: str) -> None:
        """Stop counting a connection, because it has authenticated or closed."""
        self.waiting -= 1
        address = counted(address)
        count = self._waiting.pop(address) - 1
        if count:
            self._waiting[address] = count

    def failed(self, address: str, now: float) -> None:
        """Count a failed authentication of an address."""
        address = counted(address)
        since, count = self._failures.pop(address, (now, 0))
        fresh = now - since >= WINDOW_SECONDS
        _forget(self._failures)
        self._failures[address] = (now, 1) if fresh else (since, count + 1)

    def handshake_delay(self, address: str, now: float) -> float | None:
        """Return the seconds by which to delay a TLS handshake under the limit of its address.

        Returns None if that would be longer than `WAIT_SECONDS_MAX`. After a pause, as many
        handshakes as are allowed per second may begin at once.
        """
        address = counted(address)
        step = 1 / self._bounds.handshakes_per_address
        turn = max(self._turns.pop(address, 0.0), now - 1.0)
        delay = max(0.0, turn - now)
        _forget(self._turns)
        self._turns[address] = turn if delay > WAIT_SECONDS_MAX else turn + step
        return None if delay > WAIT_SECONDS_MAX else delay

    def turn_delay(self, now: float) -> float | None:
        """Return the seconds by which to delay a TLS handshake under the limit of all addresses.

        Returns None if that would be longer than `WAIT_SECONDS_MAX`.
        """
        delay = max(0.0, self._turn - now)
        if delay > WAIT_SECONDS_MAX:
            return None
        self._turn = now + delay + 1 / self._bounds.handshakes
        return delay


def _forget(counts: dict[str, float] | dict[str, tuple[float, int]]) -> None:
    if len(counts) >= ADDRESSES_MAX:
        del counts[next(iter(counts))]
