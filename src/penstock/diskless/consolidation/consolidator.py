"""The job that makes sealed segments of old write-ahead extents, one segment at a time.

    choose ──> read, check, set offsets ──> lease a key ──> PUT ──> swap the rows
       └── `Selection`   └── `build_segment`

The swap is a compare-and-set of all replaced extents. It fails after a concurrent change by another
broker, retention or the sweeper, and the partition is skipped. A swap with an unknown outcome is
repeated. A failure before the swap leaves a reserved key, and perhaps an object, which the sweeper
deletes.

Readers may use the replaced extents until the sweeper's grace period ends. Several brokers may
consolidate at once; each takes the partitions in a random order of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, NamedTuple

from penstock.archive.errors import CorruptObject
from penstock.archive.segments import build_segment
from penstock.base.errors import PenstockError
from penstock.base.metrics import Metrics, Sample, counter
from penstock.base.pause import pause
from penstock.base.system import Clock, Randomness
from penstock.control.batch_index.operations import DisklessPlane
from penstock.control.batch_index.values import PartitionKey
from penstock.control.errors import ObjectLeaseLost, StaleExtents
from penstock.diskless.consolidation.choosing import Choice, Rules, Selection
from penstock.diskless.consolidation.segment_work import SegmentWork, one_round, order_of
from penstock.diskless.settings import DisklessSettings
from penstock.objects import ObjectNotFound, ObjectStore, ObjectTruncated
from penstock.records.extents import Extent

BACKLOGS_MAX: Final = 1_000
"""Partitions of one pass: those with the most extents in write-ahead objects."""

logger = logging.getLogger(__name__)


class ConsolidationCounters(Metrics, prefix="penstock_diskless_consolidation_"):
    segments = counter("segments_total", "Sealed segments that replaced extents.")
    segment_bytes = counter("segment_bytes_total", "Bytes of the segments that replaced extents.")
    extents = counter("extents_total", "Write-ahead extents that were merged into segments.")
    races = counter(
        "races_lost_total", "Discarded segments: the extents had changed, or the key was swept."
    )
    failures = counter("failures_total", "Segments that failed at a damaged or missing object.")
    passes_failed = counter("passes_failed_total", "Passes that ended with an error.")


class Made(NamedTuple):
    key: PartitionKey
    object_key: str
    base_offset: int
    next_offset: int
    size_bytes: int
    extents: int


def rules_of(settings: DisklessSettings, *, all_ages: bool = False) -> Rules:
    return Rules(
        segment_bytes=settings.consolidation_segment_bytes,
        min_extents=settings.consolidation_min_extents,
        min_age_ms=None if all_ages else settings.consolidation_min_age_ms,
    )


class Consolidator:
    """The shell of consolidation. Calls `on_made` for every segment."""

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        clock: Clock,
        randomness: Randomness,
        all_ages: bool = False,
        on_made: Callable[[Made], None] = lambda made: None,
        pause: Callable[[float], Awaitable[None]] = pause,
    ) -> None:
        """`store` is a client of its own, so that these reads do not delay consumers."""
        self.counters = ConsolidationCounters()
        self._plane = plane
        self._clock = clock
        self._randomness = randomness
        self._on_made = on_made
        self._rules = rules_of(settings, all_ages=all_ages)
        self._selection = Selection(self._rules)
        self._work = SegmentWork(
            settings, plane=plane, store=store, clock=clock, randomness=randomness, pause=pause
        )

    async def consolidate(self, keys: Iterable[PartitionKey] | None = None) -> int:
        """Run one pass; return the number of segments made.

        `keys` are the partitions; None means those with the most extents in write-ahead objects.
        Logs and skips damaged objects.

        Raises:
            PenstockError: the store or the control plane failed. The next pass continues.
        """
        if keys is None:
            backlogs = await self._plane.backlogs(min_extents=1, limit=BACKLOGS_MAX)
            keys = [(backlog.topic_id, backlog.partition) for backlog in backlogs]
        selection, before = self._selection, self.counters.segments
        ask = selection.begin(keys, order=order_of(self._randomness))
        while ask is not None:
            extents = await self._plane.extents(
                *ask.key, start=ask.start, end=2**63 - 1, limit=ask.limit
            )
            choice = selection.page(extents, self._clock.now_ms())
            if choice is not None:
                await self._take(ask.key, choice)
            ask = selection.ask()
        return self.counters.segments - before

    async def run(self) -> None:
        await one_round(self.consolidate(), self.counters, "consolidation")

    def samples(self) -> Iterator[Sample]:
        return self.counters.samples()

    async def _take(self, key: PartitionKey, choice: Choice) -> None:
        counters, selection = self.counters, self._selection
        try:
            made = await self._make(key, choice.run)
        except (StaleExtents, ObjectLeaseLost) as error:
            counters.races += 1
            logger.info("partition %d of topic %s: %s", key[1], key[0], error)
            selection.lost()
        except (CorruptObject, ObjectNotFound, ObjectTruncated) as error:
            counters.failures += 1
            logger.warning(
                "partition %d of topic %s cannot be consolidated from offset %d to %d: %s",
                key[1], key[0], choice.run[0].base_offset, choice.run[-1].next_offset, error,
            )  # fmt: skip
            selection.failed()
        except PenstockError:
            selection.failed()
            raise
        else:
            counters.segments += 1
            counters.segment_bytes += made.size_bytes
            counters.extents += made.extents
            selection.done()
            self._on_made(made)

    async def _make(self, key: PartitionKey, run: tuple[Extent, ...]) -> Made:
        segment = await build_segment(self._work.read, run, key)
        made = await self._work.put_in_place(key, run, segment)
        base_offset, next_offset = run[0].base_offset, run[-1].next_offset
        return Made(key, made[0].key, base_offset, next_offset, segment.size_bytes, len(run))
