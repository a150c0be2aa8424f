"""Steps that consolidation and compaction share: rate-limited reads, and swaps of extents.

A segment is written under a leased key. It replaces its extents by a compare-and-set, which is
repeated if its outcome is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from penstock.archive.segments import SealedSegment
from penstock.base.crc import crc32c
from penstock.base.errors import PenstockError
from penstock.base.retry import Backoff
from penstock.base.system import Clock, Randomness
from penstock.control.batch_index.operations import DisklessPlane
from penstock.control.batch_index.values import PartitionKey, SegmentSwap
from penstock.control.errors import ControlUnavailable
from penstock.diskless.settings import DisklessSettings
from penstock.objects import ObjectStore
from penstock.objects.rate_limit import TokenBucket
from penstock.records.extents import Extent

SWAP_ATTEMPTS_MAX: Final = 5
"""Attempts at a swap while its outcome is unknown."""
SWAP_BACKOFF: Final = Backoff(first_ms=200)
"""Pauses between these attempts."""

logger = logging.getLogger(__name__)


class RoundCounters(Protocol):
    passes_failed: int


async def one_round(work: Awaitable[object], counters: RoundCounters, what: str) -> None:
    """Run one round of a job for a broker's timer.

    Logs and counts errors instead of raising them.
    """
    try:
        await work
    except PenstockError as error:
        counters.passes_failed += 1
        logger.error("%s of diskless topics failed: %s", what, error)
    except Exception:
        counters.passes_failed += 1
        logger.exception("%s of diskless topics failed", what)


def order_of(randomness: Randomness) -> Callable[[PartitionKey], int]:
    """Return a sort key that puts partitions in a random order.

    Brokers therefore rarely work on the same partition at the same time.
    """
    seed = randomness.bits(32).to_bytes(4, "big")
    return lambda key: crc32c(seed + key[0].bytes + key[1].to_bytes(4, "big"))


class SegmentWork:
    """Reads objects at a limited rate, writes segments and swaps extents.

    `read_bytes` is the total.
    """

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        clock: Clock,
        randomness: Randomness,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self.read_bytes = 0
        self._plane = plane
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._pause = pause
        rate = settings.consolidation_bytes_per_second
        self._bucket = TokenBucket(rate, now=clock.monotonic()) if rate else None

    async def read(self, key: str, start: int, size_bytes: int) -> memoryview:
        """Read a range of an object as `ObjectStore.get` does, at a limited rate."""
        if self._bucket is not None:
            seconds = self._bucket.take(self._clock.monotonic(), size_bytes)
            if seconds:
                await self._pause(seconds)
        self.read_bytes += size_bytes
        return await self._store.get(key, start, size_bytes)

    async def put_in_place(
        self, key: PartitionKey, replaced: Sequence[Extent], segment: SealedSegment
    ) -> tuple[Extent, ...]:
        """Write a segment and swap it for the replaced extents; return the new extents.

        Raises:
            StaleExtents, ObjectLeaseLost: another process has changed the extents, or swept the
                key.
            PenstockError: the store or the control plane failed.
        """
        lease = await self._plane.lease_segment(*key, base_offset=replaced[0].base_offset)
        await self._store.put(lease.key, segment.pieces)
        swap = segment.swap(key, replaced, lease)
        await self.swap(swap)
        return swap.extents

    async def swap(self, swap: SegmentSwap) -> None:
        for failures in range(1, SWAP_ATTEMPTS_MAX):
            try:
                return await self._plane.swap_extents(swap)
            except ControlUnavailable as error:
                logger.info("repeating the swap of object %d: %s", swap.object_id, error)
            chance = self._randomness.uniform()
            await self._pause(SWAP_BACKOFF.pause_seconds(failures, chance=chance))
        return await self._plane.swap_extents(swap)
