"""Reads of the archive that yield to appends, on a real event loop."""

from __future__ import annotations

import time

from penstock.base.pause import pause
from penstock.partitions.tiers.fetching import BEAT_SECONDS, LATE_SECONDS_MAX, Yielding
from penstock.storage.files.worker import Counters

CHUNK_BYTES = 8 << 20


async def waits(*, appends: bool, blocked_seconds: float) -> float:
    """Return the waiting time of a read after others, while the event loop is blocked."""
    yielding, counters = Yielding(), Counters()
    for _ in range(14):
        yielding.take(1, counters)
        counters.groups += appends
        until = time.monotonic() + blocked_seconds
        while time.monotonic() < until:
            pass  # blocks the loop, as large responses would
        await pause(BEAT_SECONDS)
    yielding.take(CHUNK_BYTES, counters)
    return yielding.take(CHUNK_BYTES, counters)


async def test_reads_wait_while_they_delay_appends() -> None:
    assert await waits(appends=True, blocked_seconds=2 * LATE_SECONDS_MAX + BEAT_SECONDS) > 0.1


async def test_reads_do_not_wait_while_nothing_is_appended() -> None:
    assert await waits(appends=False, blocked_seconds=2 * LATE_SECONDS_MAX + BEAT_SECONDS) < 0.001
