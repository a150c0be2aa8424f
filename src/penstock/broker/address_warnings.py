"""Rate-limited warnings about client addresses: one per address and kind in `WARNING_SECONDS`."""

from __future__ import annotations

from typing import Final

WARNING_SECONDS: Final = 60.0
"""Time between two warnings of a kind about the same address."""
WARNED_ADDRESSES_MAX: Final = 1024
"""Limit of pairs of address and kind whose last warning is stored."""


class AddressWarnings:
    """Time of the last warning for each pair of address and kind, oldest first."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def left_out(self, host: str, kind: str, now: float) -> int | None:
        """Return the number of warnings suppressed since the last one; None to suppress this one.

        `now` is monotonic seconds. A returned number means that the caller logs its warning.
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
