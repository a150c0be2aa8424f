"""The job that compacts diskless partitions, one at a time, segment by segment.

    dirty extents ──> keys ──> all extents, group by group ──> lease a key ──> PUT ──> swap the rows
                     └─ bounded map                                                  └─ clean offset

The new segment of a group replaces the group's extents by a compare-and-set, as in consolidation.
If two brokers compact the same partition, the second one fails and stops. Groups are replaced in
order, so older records of a key are dropped before its tombstone gets a delete horizon. After the
last group the clean offset is stored, unless something else has changed the partition.

A failure before a swap leaves a reserved key, and perhaps an object, which the sweeper deletes.
Readers may use the replaced extents until the sweeper's grace period ends.

Source: Kafka's `Cleaner`; `diskless/consolidation.py` for the swap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.archive.errors import CorruptObject
from penstock.archive.segments import GrowingSegment, runs_of
from penstock.base.errors import CorruptError
from penstock.base.metrics import Metrics, Sample, counter
from penstock.base.pause import pause
from penstock.base.system import Clock, Randomness
from penstock.control.operations.diskless import DisklessPlane
from penstock.control.values.diskless import PartitionKey
from penstock.control.values.errors import ObjectLeaseLost, StaleExtents
from penstock.diskless.compaction.choosing import Cleanable, CompactionTarget, cleanable, groups
from penstock.diskless.consolidation import SegmentWork, one_round, order_of
from penstock.diskless.settings import WATERMARKS_PER_CALL_MAX, DisklessSettings
from penstock.objects import ObjectNotFound, ObjectStore, ObjectTruncated
from penstock.records import RecordTooLarge
from penstock.records.extents import Extent
from penstock.records.transactions import AbortedTransaction
from penstock.storage.log.compaction import Live

if TYPE_CHECKING:
    from penstock.diskless.compaction.rewriting import CompactionPass

PAGE_EXTENTS: Final = 1_000
PASS_EXTENTS_MAX: Final = 20_000
"""Extents that one pass reads, from the partition's start on. Later passes read the others."""
ABORTED_PAGE: Final = 1_000
ABORTED_MAX: Final = 100_000
"""Aborted transactions in the extents of one pass. A pass with more fails."""

logger = logging.getLogger(__name__)


class CompactionCounters(Metrics, prefix="penstock_diskless_compaction_"):
    passes = counter("passes_total", "Completed passes over diskless partitions.")
    segments = counter("segments_total", "Segments that replaced extents.")
    segment_bytes = counter("segment_bytes_total", "Bytes of the segments that replaced extents.")
    read_bytes = counter("read_bytes_total", "Bytes that passes read.")
    read_records = counter("read_records_total", "Records that passes read.")
    kept_records = counter("kept_records_total", "Records that passes kept.")
    races = counter(
        "races_lost_total", "Passes that ended because another process had changed the extents."
    )
    failures = counter("failures_total", "Passes that failed at a damaged or missing object.")
    passes_failed = counter("rounds_failed_total", "Rounds that ended with an error.")


class Compactor:
    """The shell of compaction. `targets` returns the partitions of compacted topics."""

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        clock: Clock,
        randomness: Randomness,
        targets: Callable[[], Iterable[CompactionTarget]],
        pause: Callable[[float], Awaitable[None]] = pause,
    ) -> None:
        """`store` is a client of its own, so that these reads do not delay consumers."""
        self.counters = CompactionCounters()
        self._settings = settings
        self._plane = plane
        self._clock = clock
        self._randomness = randomness
        self._targets = targets
        self._segments = SegmentWork(
            settings, plane=plane, store=store, clock=clock, randomness=randomness, pause=pause
        )

    async def compact(self) -> int:
        """Compact each partition that needs it once; return the number of completed passes.

        Logs and skips partitions with damaged or missing objects.

        Raises:
            PenstockError: the store or the control plane failed. The next round continues.
        """
        before = self.counters.passes
        order = order_of(self._randomness)
        targets = sorted(self._targets(), key=lambda one: order(one.key))
        for first in range(0, len(targets), WATERMARKS_PER_CALL_MAX):
            some = targets[first : first + WATERMARKS_PER_CALL_MAX]
            watermarks = await self._plane.watermarks([target.key for target in some])
            for target, bounds in zip(some, watermarks, strict=True):
                if bounds.log_start_offset < bounds.last_stable_offset:
                    await self._compact(target, bounds.log_start_offset, bounds.last_stable_offset)
        return self.counters.passes - before

    async def run(self) -> None:
        await one_round(self.compact(), self.counters, "compaction")

    def samples(self) -> Iterator[Sample]:
        self.counters.read_bytes = self._segments.read_bytes
        return self.counters.samples()

    async def _compact(self, target: CompactionTarget, start: int, stable: int) -> None:
        counters, key = self.counters, target.key
        try:
            clean_offset = max(start, await self._plane.clean_offset(*key))
            if clean_offset >= stable:
                return
            found = cleanable(
                await self._extents(key, start, stable),
                target,
                clean_offset=clean_offset,
                stable_offset=stable,
                min_age_ms=self._settings.consolidation_min_age_ms,
                now_ms=self._clock.now_ms(),
            )
            if found.is_due(target.dirty_ratio):
                await self._pass(target, found)
                counters.passes += 1
        except (StaleExtents, ObjectLeaseLost) as error:
            counters.races += 1
            logger.info("partition %d of topic %s: %s", key[1], key[0], error)
        except (CorruptError, CorruptObject, ObjectNotFound, ObjectTruncated, RecordTooLarge) as e:
            counters.failures += 1
            where = "partition %d of topic %s cannot be compacted: %s"
            logger.warning(where, key[1], key[0], e)

    async def _extents(self, key: PartitionKey, start: int, end: int) -> list[Extent]:
        found: list[Extent] = []
        while len(found) < PASS_EXTENTS_MAX:
            page = await self._plane.extents(*key, start=start, end=end, limit=PAGE_EXTENTS)
            found += page
            if len(page) < PAGE_EXTENTS:
                break
            start = page[-1].next_offset
        return found

    async def _aborted(self, key: PartitionKey, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with batches in [start, end), by first offset.

        Raises:
            RecordTooLarge: there are more than `ABORTED_MAX`.
        """
        found: list[AbortedTransaction] = []
        offset = start
        while True:
            page = await self._plane.aborted(*key, offset=offset, limit=ABORTED_PAGE)
            found += [
                transaction for transaction in page.transactions if transaction.first_offset < end
            ]
            if page.complete_to is None or page.complete_to >= end:
                return sorted(found, key=lambda one: one.first_offset)
            if len(found) > ABORTED_MAX:
                raise RecordTooLarge(
                    f"{len(found)} aborted transactions in one pass, the limit is {ABORTED_MAX}"
                )
            offset = page.transactions[-1].last_offset + 1

    async def _live(self, key: PartitionKey) -> Live:
        producers = await self._plane.remembered_producers(*key)
        last_offsets = [
            producer.batches[-1].last_offset for _, producer in producers if producer.batches
        ]
        epochs = {
            producer_id: producer.epoch
            for producer_id, producer in producers
            if not producer.batches
        }
        return Live(last_offsets, epochs)

    async def _pass(self, target: CompactionTarget, found: Cleanable) -> None:
        # Imported here because the kernels take 0.3 s to load and not every broker needs them.
        from penstock.diskless.compaction.rewriting import CompactionPass

        key, dice = target.key, self._randomness
        aborted = await self._aborted(key, found.extents[0].base_offset, found.end_offset)
        work = CompactionPass(
            found,
            aborted,
            await self._live(key),
            map_bytes=self._settings.compaction_map_bytes,
            secret=(dice.bits(64), dice.bits(64)),
            now_ms=self._clock.now_ms(),
            delete_retention_ms=target.delete_retention_ms,
        )
        async for run in runs_of(self._segments.read, found.dirty):
            if not await asyncio.to_thread(work.note, run.data):
                break
        newest: Sequence[Extent] = ()
        segment_bytes = self._settings.consolidation_segment_bytes
        for group in groups(found.extents, work.end_offset, segment_bytes):
            newest = await self._group(key, group, work)
        self.counters.read_records += work.read_records
        self.counters.kept_records += work.kept_records
        end = work.end_offset
        last = next(extent for extent in newest if extent.base_offset < end <= extent.next_offset)
        await self._plane.note_clean(*key, end, newest=last)

    async def _group(
        self, key: PartitionKey, group: list[Extent], work: CompactionPass
    ) -> Sequence[Extent]:
        segment, changed = GrowingSegment(group[0].base_offset), False
        async for run in runs_of(self._segments.read, group):
            changed = await asyncio.to_thread(work.rewrite, run.data, segment) or changed
        if not changed:
            return group
        segment.fill(group[-1].next_offset)
        sealed = segment.sealed()
        made = await self._segments.put_in_place(key, group, sealed)
        self.counters.segments += 1
        self.counters.segment_bytes += sealed.size_bytes
        return made
