"""The job that compacts diskless partitions, one at a time, segment by segment.

    dirty extents ──> keys ──> all extents, group by group ──> lease a key ──> PUT ──> swap the rows
                     └─ bounded map                                                  └─ clean offset

A group's segment takes the place of its extents by the compare-and-set that consolidation uses, so
a reader sees the one or the other, and of two brokers that compact the same partition the second
loses, and leaves it. Groups are put in place in their order: older records of a key are gone before
its tombstone gets the horizon after which it goes, too. Once all groups are in place, the offset up
to which the partition is clean is noted, if it still is the partition that was compacted.

Until a swap nothing but a reserved key, and perhaps an object under it, is left behind, which the
sweeper takes. Readers that know the old extents go on with them for their grace.

Source: Kafka's `Cleaner`; `consolidation/consolidator.py` for the swap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.archive.errors import CorruptObject
from penstock.archive.segments import GrowingSegment, runs_of
from penstock.base.errors import CorruptError
from penstock.base.metrics import Sample
from penstock.base.pause import pause
from penstock.base.system import Clock, Randomness
from penstock.control.batch_index.plane import DisklessPlane
from penstock.control.batch_index.values import PartitionKey
from penstock.control.errors import ObjectLeaseLost, StaleExtents
from penstock.diskless.compaction import metrics
from penstock.diskless.compaction.choosing import Cleanable, CompactionTarget, cleanable, groups
from penstock.diskless.compaction.counters import CompactionCounters
from penstock.diskless.compaction.limits import (
    ABORTED_MAX,
    ABORTED_PAGE,
    PAGE_EXTENTS,
    PASS_EXTENTS_MAX,
)
from penstock.diskless.consolidation.segment_work import SegmentWork, one_round, order_of
from penstock.diskless.limits import MARKS_PER_CALL_MAX
from penstock.diskless.settings import DisklessSettings
from penstock.objects import ObjectNotFound, ObjectStore, ObjectTruncated
from penstock.records import RecordTooLarge
from penstock.records.extents import Extent
from penstock.records.transactions import AbortedTransaction
from penstock.storage.compaction.values import Live

if TYPE_CHECKING:
    from penstock.diskless.compaction.rewriting import CompactionPass

logger = logging.getLogger(__name__)


class Compactor:
    """The shell. `targets` names the partitions of compacted topics."""

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
        """`store` is a client of its own: what is read here must not delay consumers."""
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
        """One round over all partitions, each in a pass of its own if it is due; how many were.

        What is damaged is logged and passed over.

        Raises:
            PenstockError: store or plane failed; the next round goes on.
        """
        before = self.counters.passes
        order = order_of(self._randomness)
        targets = sorted(self._targets(), key=lambda one: order(one.key))
        for first in range(0, len(targets), MARKS_PER_CALL_MAX):
            some = targets[first : first + MARKS_PER_CALL_MAX]
            marks = await self._plane.watermarks([one.key for one in some])
            for target, mark in zip(some, marks, strict=True):
                if mark.log_start_offset < mark.last_stable_offset:
                    await self._compact(target, mark.log_start_offset, mark.last_stable_offset)
        return self.counters.passes - before

    async def run(self) -> None:
        """One round for a broker's timer: errors are logged and counted."""
        await one_round(self.compact(), self.counters, "compaction")

    def samples(self) -> Iterator[Sample]:
        """What a scrape gets."""
        self.counters.read_bytes = self._segments.read_bytes
        return metrics.samples(self.counters)

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
        """The first extents of a partition that hold offsets of [start, end)."""
        found: list[Extent] = []
        while len(found) < PASS_EXTENTS_MAX:
            page = await self._plane.extents(*key, start=start, end=end, limit=PAGE_EXTENTS)
            found += page
            if len(page) < PAGE_EXTENTS:
                break
            start = page[-1].next_offset
        return found

    async def _aborted(self, key: PartitionKey, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with batches in [start, end), by first offset.

        Raises:
            RecordTooLarge: there are too many.
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
                    f"{len(found)} aborted transactions, a pass takes {ABORTED_MAX} at most"
                )
            offset = page.transactions[-1].last_offset + 1

    async def _live(self, key: PartitionKey) -> Live:
        producers = await self._plane.remembered_producers(*key)
        last_offsets = [one.batches[-1].last_offset for _, one in producers if one.batches]
        epochs = {producer_id: one.epoch for producer_id, one in producers if not one.batches}
        return Live(last_offsets, epochs)

    async def _pass(self, target: CompactionTarget, found: Cleanable) -> None:
        # Imported here because kernels take 0.3 s to load, which not every broker needs.
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
        last = next(one for one in newest if one.base_offset < end <= one.next_offset)
        await self._plane.note_clean(*key, end, newest=last)

    async def _group(
        self, key: PartitionKey, group: list[Extent], work: CompactionPass
    ) -> Sequence[Extent]:
        """Put what stays of extents in their place; what is there then."""
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
