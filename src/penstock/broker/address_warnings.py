"""Warnings about what comes from an address, so few that a flood of it cannot flood the log.

Of each address and kind the first is worth a line, then one in `WARNING_SECONDS`, which says how
many were left out since. Every one is counted in `penstock_kafka_connections_rejected_total`.
"""

from __future__ import annotations

from penstock.broker.limits import WARNED_ADDRESSES_MAX, WARNING_SECONDS


class AddressWarnings:
    """When each address was last warned about, longest ago first."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def left_out(self, host: str, kind: str, now: float) -> int | None:
        """How many warnings were left out before the one that is due; None if none is due.

        `now` is monotonic seconds. Beyond `WARNED_ADDRESSES_MAX` the address that was warned
        about longest ago is forgotten.
        """
        at, count = self._last.get((host, kind), (now - WARNING_SECONDS, 0))
        if now - at < WARNING_SECONDS:
            self._last[host, kind] = (at, count + 1)
            return None
        self._last.pop((host, kind), None)
        if len(self._last) >= WARNED_ADDRESSES_MAX:
            del self._last[next(iter(self._last))]
        self._last[host, kind] = (now, 0)
        return count
