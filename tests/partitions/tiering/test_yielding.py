"""Reads of the archive that yield to appends, on a real event loop."""

from __future__ import annotations

import asyncio
import time

from penstock.base.pause import pause
from penstock.objects.rate_limit import LATE_SECONDS_MAX, YIELDING_PER_SECOND_FIRST
from penstock.partitions.tiers.fetching import BEAT_SECONDS, Yielding
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


async def seconds_of_a_burst(*, appends: bool) -> float:
    """Return the time until 16 reads, which begin together, are admitted."""
    yielding, counters = Yielding(), Counters()
    begun = time.monotonic()
    reads = asyncio.gather(*[yielding.admit(CHUNK_BYTES, counters) for _ in range(16)])
    while not reads.done():
        counters.groups += appends
        await pause(BEAT_SECONDS / 2)
    await reads
    return time.monotonic() - begun


async def test_a_reader_that_is_alone_soon_has_the_full_rate() -> None:
    at_first_rate = 15 * CHUNK_BYTES / YIELDING_PER_SECOND_FIRST
    assert await seconds_of_a_burst(appends=False) < at_first_rate / 2


async def test_a_reader_beside_appends_keeps_to_the_first_rate() -> None:
    at_first_rate = 15 * CHUNK_BYTES / YIELDING_PER_SECOND_FIRST
    assert await seconds_of_a_burst(appends=True) >= at_first_rate * 0.8
