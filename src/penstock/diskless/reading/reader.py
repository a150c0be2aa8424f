"""The reader of diskless partitions: loads batches from objects and keeps them for fetches.

`read` returns batches that are ready. `load` starts loading others, for all partitions of a fetch
request together. These partitions then share reads of objects, and one choice between hot and cold
path. A finished load wakes the waiting requests, which call `read` again. Everything runs on the
event loop, except that large amounts of bytes are copied and checked on a thread.

If the object of a cached extent is gone, the extent is looked up again once. An unreadable extent
does not affect others: the partition is served up to it.

Source: Inkless's `Reader` and `FetchCompleter`.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.archive.assembly import LEADER_EPOCH, Result, Run, assemble, results_of
from penstock.archive.planning import Piece, merge, newest_timestamp, trim
from penstock.base.errors import PenstockError
from penstock.base.metrics import Metrics, Sample, counter, gauge
from penstock.control.values.diskless import (
    CommitAnswer,
    FindRequest,
    Found,
    PartitionKey,
    Watermarks,
)
from penstock.diskless.errors import PartitionGone, Unreadable
from penstock.diskless.reading.loads import LOADS_MAX, ByteBudget, Loads, Place, Ready
from penstock.objects import ObjectNotFound
from penstock.objects.fetch_paths import ObjectRange
from penstock.records import OffsetOutOfRange
from penstock.records.extents import Extent
from penstock.records.transactions import OFFSET_MAX
from penstock.storage import Read

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.control.operations.diskless import DisklessPlane


# Short-lived cache of extents, from commits of this broker and lookups in the control plane.
#
# With it, a consumer at the end of the log needs no lookup, and a lagging consumer needs one lookup
# for many fetches. An extent never changes. It may be replaced by a sealed segment of the same
# offsets, or dropped by retention. Its object stays for a grace period that is longer than the age
# of cache entries. The cache is bounded in bytes and age; the oldest entries are dropped first.


EXTENT_OVERHEAD_BYTES: Final = 400
"""Memory of a cached extent in addition to its layout and key."""

Learned = tuple[Extent, float]
_COMPACT_FROM: Final = 1024


class _Known:
    __slots__ = ("bases", "extents")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.extents: dict[int, Learned] = {}


class Coordinates:
    """The cache of extents, by partition and offset. Times are seconds of a monotonic clock."""

    __slots__ = ("_age_seconds", "_max_bytes", "_order", "_partitions", "size_bytes")

    def __init__(self, *, max_bytes: int, age_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._age_seconds = age_seconds
        self._partitions: dict[PartitionKey, _Known] = {}
        self._order: deque[tuple[PartitionKey, int, float]] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return sum(len(known.bases) for known in self._partitions.values())

    def add(self, key: PartitionKey, extents: Iterable[Extent], now: float) -> None:
        """Add extents of a partition, and drop cached extents that they overlap."""
        known = self._partitions.get(key)
        if known is None:
            known = self._partitions[key] = _Known()
        for extent in extents:
            self._forget_overlapped(known, extent)
            base = extent.base_offset
            bases = known.bases
            if not bases or bases[-1] < base:
                bases.append(base)
            else:
                bases.insert(bisect_left(bases, base), base)
            known.extents[base] = (extent, now)
            self._order.append((key, base, now))
            self.size_bytes += weight(extent)
        self._evict(now)

    def _forget_overlapped(self, known: _Known, extent: Extent) -> None:
        bases = known.bases
        first = max(0, bisect_right(bases, extent.base_offset) - 1)
        last = bisect_left(bases, extent.next_offset)
        for base in bases[first:last]:
            old, _ = known.extents[base]
            if old.next_offset > extent.base_offset:
                self._forget(known, base)

    def _forget(self, known: _Known, base: int) -> None:
        extent, _ = known.extents.pop(base)
        del known.bases[bisect_left(known.bases, base)]
        self.size_bytes -= weight(extent)

    def _evict(self, now: float) -> None:
        order, oldest = self._order, now - self._age_seconds
        while order and (
            order[0][2] < oldest
            or self.size_bytes > self._max_bytes
            or len(order) > max(_COMPACT_FROM, 2 * self._max_bytes // EXTENT_OVERHEAD_BYTES)
        ):
            key, base, learned = order.popleft()
            known = self._partitions.get(key)
            if known is None:
                continue
            found = known.extents.get(base)
            if found is not None and found[1] == learned:
                self._forget(known, base)
                if not known.bases:
                    del self._partitions[key]

    def drop(self, key: PartitionKey) -> None:
        """Drop all extents of a partition, because it was deleted or an extent was outdated."""
        known = self._partitions.pop(key, None)
        if known is not None:
            self.size_bytes -= sum(weight(extent) for extent, _ in known.extents.values())

    def find(self, key: PartitionKey, offset: int, max_bytes: int, now: float) -> list[Extent]:
        """Return the cached extents from `offset` on, without a gap.

        Returns the extent that holds the offset, and further ones of up to about `max_bytes`.
        Returns an empty list if the first extent is missing or too old.
        """
        known = self._partitions.get(key)
        if known is None:
            return []
        found: list[Extent] = []
        place = bisect_right(known.bases, offset) - 1
        size_bytes, oldest = 0, now - self._age_seconds
        while 0 <= place < len(known.bases) and size_bytes < max_bytes:
            extent, learned = known.extents[known.bases[place]]
            if learned < oldest or not extent.base_offset <= offset < extent.next_offset:
                break
            found.append(extent)
            size_bytes += extent.size_bytes if len(found) > 1 else 0
            offset = extent.next_offset
            place += 1
        return found


def weight(extent: Extent) -> int:
    return EXTENT_OVERHEAD_BYTES + len(extent.layout) + len(extent.key)


COORDINATES_MAX_BYTES: Final = 64 << 20
"""Memory of the cached extents of all partitions."""
COORDINATES_AGE_SECONDS: Final = 30.0
"""Age at which a cached extent expires.

It is far below the sweeper's grace period, so the object of a cached extent exists.
"""
READY_MAX_BYTES: Final = 128 << 20
"""Bytes of assembled batches that wait for a fetch."""
READY_SECONDS: Final = 30.0
"""Time for which these batches wait, longer than a consumer's pauses between fetches."""
LOADING_MAX_BYTES: Final = 256 << 20
"""Bytes that are loaded from the store at once. Further loads wait."""
FIND_REQUESTS_MAX: Final = 500
"""Partitions in one lookup of extents in the control plane."""
INLINE_BYTES_MAX: Final = 1 << 20
"""Bytes above which batches are assembled on a thread instead of the event loop."""
READ_ATTEMPTS_MAX: Final = 2
"""Attempts to read an extent whose object is gone, each after a new lookup."""

logger = logging.getLogger(__name__)


class Paths(Protocol):
    async def fetch(
        self, ranges: Sequence[ObjectRange], *, newest_timestamp_ms: int
    ) -> list[memoryview | PenstockError]:
        """Return the bytes of each range, or its error. Errors of the store are not raised."""
        ...

    def cached(
        self, ranges: Sequence[ObjectRange], *, newest_timestamp_ms: int
    ) -> list[memoryview] | None:
        """Return the bytes of all ranges if they are recent and in memory, else None."""
        ...


class Want(NamedTuple):
    """A fetch's request for one partition.

    Batches above `end_offset` may be loaded, but are not returned.
    """

    key: PartitionKey
    offset: int
    max_bytes: int
    leader_epoch: int = LEADER_EPOCH
    end_offset: int = OFFSET_MAX


PlannedRead = tuple[Want, list[Piece]]


class ReadCounters(Metrics, prefix="penstock_diskless_"):
    known = counter(
        "coordinates_known_total", "Reads of a diskless partition whose extents were cached."
    )
    finds = counter(
        "coordinates_asked_total",
        "Reads of a diskless partition whose extents were read from the control plane.",
    )
    batches_bytes = counter(
        "read_bytes_total",
        "Bytes of batches that were loaded for consumers of diskless partitions.",
    )
    failures = counter(
        "read_failures_total", "Reads of a diskless partition that failed at unreadable records."
    )
    known_extents = gauge("known_extents", "Cached extents of diskless partitions.")
    ready_bytes = gauge("ready_bytes", "Bytes of loaded batches that wait for their fetch.")
    loading_bytes = gauge("loading_bytes", "Bytes of objects that are being loaded for consumers.")


class Reader:
    """Reads and loads batches of all diskless partitions. Belongs to the event loop."""

    def __init__(
        self,
        *,
        plane: DisklessPlane,
        paths: Paths,
        clock: Clock,
        learn: Callable[[PartitionKey, Watermarks], None],
        wake: Callable[[Sequence[PartitionKey]], None],
    ) -> None:
        """`learn` gets new watermarks of partitions.

        `wake` gets the partitions whose loads have ended.
        """
        self._plane = plane
        self._paths = paths
        self._clock = clock
        self._learn = learn
        self._wake = wake
        self._coordinates = Coordinates(
            max_bytes=COORDINATES_MAX_BYTES, age_seconds=COORDINATES_AGE_SECONDS
        )
        self._ready = Ready(max_bytes=READY_MAX_BYTES, seconds=READY_SECONDS)
        self._budget = ByteBudget(LOADING_MAX_BYTES)
        self._loads = Loads[Place](LOADS_MAX)
        self.counters = ReadCounters()

    # -- cached and ready batches ------------------------------------------------------------

    def committed(self, answer: CommitAnswer) -> None:
        now = self._clock.monotonic()
        for key, extents in answer.extents.items():
            self._coordinates.add(key, extents, now)

    def read(self, want: Want, *, at_least_one: bool, instantly: bool = True) -> Read | None:
        """Return batches that are ready, or None if they must be loaded first.

        With `instantly`, a small amount of cached bytes is assembled at once.

        Raises:
            OffsetOutOfRange, PartitionGone: the control plane says so.
            PenstockError: loading the batches failed within the last half second.
        """
        run = self._ready.run(want.key, want.offset)
        if run is not None:
            return _read(run, want, at_least_one)
        failed = self._ready.failed(want.key, want.offset, self._clock.monotonic())
        if failed or not instantly:
            return None
        return self._read_cached(want, at_least_one)

    def _read_cached(self, want: Want, at_least_one: bool) -> Read | None:
        """Return batches that this broker wrote or loaded recently, without waiting for I/O."""
        now = self._clock.monotonic()
        key, offset, max_bytes, leader_epoch, _ = want
        extents = self._coordinates.find(key, offset, max(1, max_bytes), now)
        if not extents:
            return None
        pieces = trim(extents, offset, max_bytes=max_bytes, at_least_one=at_least_one)
        if not pieces:
            return Read([], 0, offset)
        if sum([piece.size_bytes for piece in pieces]) > INLINE_BYTES_MAX:
            return None
        plan = merge(pieces)
        contents = self._paths.cached(
            [
                ObjectRange(object_range.key, object_range.start, object_range.size_bytes, -1)
                for object_range in plan.ranges
            ],
            newest_timestamp_ms=newest_timestamp(pieces),
        )
        if contents is None:
            return None
        run, _ = assemble(pieces, results_of(pieces, plan, contents), leader_epoch)
        if run is None:
            return None
        self.counters.known += 1
        self.counters.batches_bytes += len(run)
        self._ready.put(key, run, now)
        return _read(run, want, at_least_one)

    def load(self, wants: Sequence[Want], max_bytes: int) -> None:
        """Start loading missing batches, up to `max_bytes` but at least one batch."""
        now = self._clock.monotonic()
        by_place = {(want.key, want.offset): want for want in reversed(wants)}
        fresh = [
            by_place[place]
            for place in self._loads.fresh((want.key, want.offset) for want in wants)
            if self._ready.failure(*place, now) is None
        ]
        if fresh:
            positions = [(want.key, want.offset) for want in fresh]
            self._loads.begin(positions, self._load(fresh, max_bytes))

    def forget(self, key: PartitionKey) -> None:
        self._coordinates.drop(key)
        self._ready.drop(key)

    def upkeep(self) -> None:
        """Drop expired batches. Call it periodically."""
        self._ready.evict(self._clock.monotonic())

    async def stop(self) -> None:
        await self._loads.stop()

    async def run_of(self, extent: Extent) -> Run:
        """Return all batches of one extent, for lookups by timestamp.

        Raises:
            PenstockError: the extent cannot be read.
        """
        pieces = trim([extent], extent.base_offset, max_bytes=extent.size_bytes, at_least_one=True)
        results = await self._fetch(pieces)
        run, failure = await _assembled(pieces, results)
        if failure is not None or run is None:
            raise failure or Unreadable(f"object {extent.key} has no batches")
        return run

    def samples(self) -> Iterator[Sample]:
        self.counters.known_extents = len(self._coordinates)
        self.counters.ready_bytes = self._ready.size_bytes
        self.counters.loading_bytes = self._budget.used_bytes
        return self.counters.samples()

    # -- loads -------------------------------------------------------------------------------

    async def _load(self, wants: list[Want], max_bytes: int) -> None:
        try:
            for attempt in range(1, READ_ATTEMPTS_MAX + 1):
                last = attempt == READ_ATTEMPTS_MAX
                wants = await self._attempt(wants, max_bytes, last=last)
                if not wants:
                    return
        except PenstockError as error:
            for want in wants:
                self._failed(want, want.offset, error)
        except Exception:
            logger.exception("loading %d diskless partitions failed", len(wants))
            for want in wants:
                fault = Unreadable("the broker failed on this read. Its log has the cause.")
                self._failed(want, want.offset, fault)
        finally:
            self._end(wants)

    def _end(self, wants: Sequence[Want]) -> None:
        self._loads.end((want.key, want.offset) for want in wants)
        if wants:
            self._wake([want.key for want in wants])

    async def _attempt(self, wants: list[Want], max_bytes: int, *, last: bool) -> list[Want]:
        """Load batches once; return the requests whose objects are gone, to look them up again."""
        planned = _trimmed(await self._located(wants), max_bytes)
        results = await self._fetch([piece for _, pieces in planned for piece in pieces])
        again: list[Want] = []
        at = 0
        for want, pieces in planned:
            part = results[at : at + len(pieces)]
            at += len(pieces)
            if isinstance(part[0], ObjectNotFound) and not last:
                self._coordinates.drop(want.key)
                again.append(want)
                continue
            run, failure = await _assembled(pieces, part, want.leader_epoch)
            if run is not None:
                self._ready.put(want.key, run, self._clock.monotonic())
                self.counters.batches_bytes += len(run)
            if failure is not None:
                self._failed(want, want.offset if run is None else run.next_offset, failure)
        self._end([want for want in wants if want not in again])
        return again

    async def _located(self, wants: Sequence[Want]) -> list[tuple[Want, Sequence[Extent]]]:
        now = self._clock.monotonic()
        located: list[tuple[Want, Sequence[Extent]]] = []
        unknown: list[int] = []
        for place, want in enumerate(wants):
            known = self._coordinates.find(want.key, want.offset, max(1, want.max_bytes), now)
            if not known:
                unknown.append(place)
            located.append((want, known))
        self.counters.known += len(wants) - len(unknown)
        for start in range(0, len(unknown), FIND_REQUESTS_MAX):
            indexes = unknown[start : start + FIND_REQUESTS_MAX]
            asked = [wants[index] for index in indexes]
            answers = await self._plane.find(
                [FindRequest(*want.key, want.offset, max(1, want.max_bytes)) for want in asked]
            )
            self.counters.finds += len(asked)
            for index, want, found in zip(indexes, asked, answers, strict=True):
                self._found(want, found)
                located[index] = want, found.extents
        return located

    def _found(self, want: Want, found: Found) -> None:
        if found.watermarks is not None:
            self._learn(want.key, found.watermarks)
        if found.error is not None:
            self._failed(want, want.offset, _refusal(want, found))
        self._coordinates.add(want.key, found.extents, self._clock.monotonic())

    async def _fetch(self, pieces: Sequence[Piece]) -> list[Result]:
        if not pieces:
            return []
        plan = merge(pieces)
        size_bytes = sum(object_range.size_bytes for object_range in plan.ranges)
        await self._budget.take(size_bytes)
        try:
            answers = await self._paths.fetch(
                [
                    ObjectRange(object_range.key, object_range.start, object_range.size_bytes, -1)
                    for object_range in plan.ranges
                ],
                newest_timestamp_ms=newest_timestamp(pieces),
            )
        finally:
            self._budget.give(size_bytes)
        return results_of(pieces, plan, answers)

    def _failed(self, want: Want, offset: int, error: PenstockError) -> None:
        failure = self._ready.fail(want.key, offset, error, self._clock.monotonic())
        if failure.error.code == Unreadable.code:
            self.counters.failures += 1
            if not failure.quiet:
                logger.warning(
                    "partition %d of topic %s cannot be read at offset %d: %s",
                    want.key[1], want.key[0], offset, error,
                )  # fmt: skip


def _trimmed(located: Iterable[tuple[Want, Sequence[Extent]]], max_bytes: int) -> list[PlannedRead]:
    """Return the byte ranges that each request needs, within all limits.

    Omits requests without ranges.
    """
    planned: list[PlannedRead] = []
    left = max_bytes
    for want, extents in located:
        pieces = trim(
            extents, want.offset, max_bytes=min(want.max_bytes, left), at_least_one=not planned
        )
        if pieces:
            planned.append((want, pieces))
            left -= sum(piece.size_bytes for piece in pieces)
    return planned


async def _assembled(
    pieces: Sequence[Piece], results: Sequence[Result], leader_epoch: int = LEADER_EPOCH
) -> tuple[Run | None, PenstockError | None]:
    size_bytes = sum(piece.size_bytes for piece in pieces)
    if size_bytes <= INLINE_BYTES_MAX:
        return assemble(pieces, results, leader_epoch)
    return await asyncio.to_thread(assemble, pieces, results, leader_epoch)


def _refusal(want: Want, found: Found) -> PenstockError:
    where = f"partition {want.key[1]} of topic id {want.key[0]}"
    if found.error == OffsetOutOfRange.code and found.watermarks is not None:
        watermarks = found.watermarks
        return OffsetOutOfRange(
            where, want.offset, watermarks.log_start_offset, watermarks.high_watermark
        )
    return PartitionGone(f"{where} does not exist")


def _read(run: Run, want: Want, at_least_one: bool) -> Read:
    data, next_offset = run.part(
        want.offset,
        max_bytes=want.max_bytes,
        at_least_one=at_least_one,
        end_offset=want.end_offset,
    )
    return Read([data] if data else [], len(data), next_offset)
