"""Loads what fetches want of diskless partitions: find, plan, fetch, assemble, keep ready.

`read` answers from what is ready, at once; what is not is asked for with `load`, all partitions of
one fetch request together, so that they share objects and one decision about hot and cold. When
the load is done, those who wait are woken and read again. Everything here runs on the event loop;
bytes are copied and checked on a thread where there are many.

A coordinate that turns out to be old (its object is gone) is asked for anew, once. What still
cannot be read is a failure of its extent alone: the partition is answered up to it.

Source: Inkless's `Reader` and `FetchCompleter`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.archive.assembly import LEADER_EPOCH, Result, Run, assemble, results_of
from penstock.archive.planning import Piece, merge, newest_timestamp, trim
from penstock.base.errors import PenstockError
from penstock.control.batch_index.values import (
    CommitAnswer,
    FindRequest,
    Found,
    PartitionKey,
    Watermarks,
)
from penstock.diskless.reading import limits, metrics
from penstock.diskless.reading.budget import ByteBudget
from penstock.diskless.reading.coordinates import Coordinates
from penstock.diskless.reading.errors import PartitionGone, Unreadable
from penstock.diskless.reading.loads import Loads
from penstock.diskless.reading.ready import Place, Ready
from penstock.objects import ObjectNotFound
from penstock.objects.fetch_paths import ObjectRange
from penstock.records import OffsetOutOfRange
from penstock.records.aborted import OFFSET_MAX
from penstock.records.extents import Extent
from penstock.storage import Read

if TYPE_CHECKING:
    from penstock.base.metrics import Sample
    from penstock.base.system import Clock
    from penstock.control.batch_index.plane import DisklessPlane

logger = logging.getLogger(__name__)


class Paths(Protocol):
    """What is needed of `penstock.objects.FetchPaths`."""

    async def fetch(
        self, ranges: Sequence[ObjectRange], *, newest_timestamp_ms: int
    ) -> list[memoryview | PenstockError]:
        """One answer per range; never raises for errors of the store."""
        ...

    def cached(
        self, ranges: Sequence[ObjectRange], *, newest_timestamp_ms: int
    ) -> list[memoryview] | None:
        """The same if all of it is recent and in memory."""
        ...


class Want(NamedTuple):
    """What a fetch asks of one partition, whose batches get its leader epoch.

    Batches behind `end_offset` may be loaded with others, and are not read.
    """

    key: PartitionKey
    offset: int
    max_bytes: int
    leader_epoch: int = LEADER_EPOCH
    end_offset: int = OFFSET_MAX


Lot = tuple[Want, list[Piece]]


class Reader:
    """See the module's text. Belongs to the event loop."""

    def __init__(
        self,
        *,
        plane: DisklessPlane,
        paths: Paths,
        clock: Clock,
        learn: Callable[[PartitionKey, Watermarks], None],
        wake: Callable[[Sequence[PartitionKey]], None],
    ) -> None:
        """`learn` is told where partitions begin and end, `wake` whose loads have ended."""
        self._plane = plane
        self._paths = paths
        self._clock = clock
        self._learn = learn
        self._wake = wake
        self._coordinates = Coordinates(
            max_bytes=limits.COORDINATES_MAX_BYTES, age_seconds=limits.COORDINATES_AGE_SECONDS
        )
        self._ready = Ready(max_bytes=limits.READY_MAX_BYTES, seconds=limits.READY_SECONDS)
        self._budget = ByteBudget(limits.LOADING_MAX_BYTES)
        self._loads = Loads[Place](limits.LOADS_MAX)
        self.counters = metrics.ReadCounters()

    # -- what is here ------------------------------------------------------------------------

    def committed(self, answer: CommitAnswer) -> None:
        """Learn where the batches of a commit of this broker lie."""
        now = self._clock.monotonic()
        for key, extents in answer.extents.items():
            self._coordinates.add(key, extents, now)

    def read(self, want: Want, *, at_least_one: bool, instantly: bool = True) -> Read | None:
        """What is ready of what is wanted; None if it must be loaded first.

        With `instantly` a little of what is in the cache is made ready for it.

        Raises:
            OffsetOutOfRange, PartitionGone: the control plane says so.
            PenstockError: loading it failed a moment ago.
        """
        run = self._ready.run(want.key, want.offset)
        if run is not None:
            return _read(run, want, at_least_one)
        failed = self._ready.failed(want.key, want.offset, self._clock.monotonic())
        if failed or not instantly:
            return None
        return self._read_cached(want, at_least_one)

    def _read_cached(self, want: Want, at_least_one: bool) -> Read | None:
        """What this broker wrote or loaded a moment ago, without a turn of the loop."""
        now = self._clock.monotonic()
        key, offset, max_bytes, leader_epoch, _ = want
        extents = self._coordinates.find(key, offset, max(1, max_bytes), now)
        if not extents:
            return None
        pieces = trim(extents, offset, max_bytes=max_bytes, at_least_one=at_least_one)
        if not pieces:
            return Read([], 0, offset)
        if sum([piece.size_bytes for piece in pieces]) > limits.INLINE_BYTES_MAX:
            return None
        plan = merge(pieces)
        contents = self._paths.cached(
            [ObjectRange(one.key, one.start, one.size_bytes, -1) for one in plan.ranges],
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
        """Begin to load what is not under way, up to `max_bytes` over all of them.

        The first batch is loaded even if it is larger. Nothing happens while too much is under way.
        """
        now = self._clock.monotonic()
        by_place = {(want.key, want.offset): want for want in reversed(wants)}
        fresh = [
            by_place[place]
            for place in self._loads.fresh((want.key, want.offset) for want in wants)
            if self._ready.failure(*place, now) is None
        ]
        if fresh:
            places = [(want.key, want.offset) for want in fresh]
            self._loads.begin(places, self._load(fresh, max_bytes))

    def forget(self, key: PartitionKey) -> None:
        """Drop all that is known and loaded of a partition."""
        self._coordinates.drop(key)
        self._ready.drop(key)

    def upkeep(self) -> None:
        """Let go of what nobody came for; to be called now and then."""
        self._ready.evict(self._clock.monotonic())

    async def stop(self) -> None:
        """End all loads. Idempotent."""
        await self._loads.stop()

    async def run_of(self, extent: Extent) -> Run:
        """All batches of one extent, for look-ups.

        Raises:
            PenstockError: it cannot be read.
        """
        pieces = trim([extent], extent.base_offset, max_bytes=extent.size_bytes, at_least_one=True)
        results = await self._fetch(pieces)
        run, failure = await _assembled(pieces, results)
        if failure is not None or run is None:
            raise failure or Unreadable(f"object {extent.key} has no batches")
        return run

    def samples(self) -> Iterator[Sample]:
        """Metrics of this moment."""
        yield from metrics.samples(
            self.counters,
            extents=len(self._coordinates),
            ready_bytes=self._ready.size_bytes,
            loading_bytes=self._budget.used_bytes,
        )

    # -- loads -------------------------------------------------------------------------------

    async def _load(self, wants: list[Want], max_bytes: int) -> None:
        try:
            for attempt in range(1, limits.READ_ATTEMPTS_MAX + 1):
                last = attempt == limits.READ_ATTEMPTS_MAX
                wants = await self._attempt(wants, max_bytes, last=last)
                if not wants:
                    return
        except PenstockError as error:
            for want in wants:
                self._failed(want, want.offset, error)
        except Exception:
            logger.exception("loading %d diskless partitions failed", len(wants))
            for want in wants:
                fault = Unreadable("the broker failed on this read; its log has the cause")
                self._failed(want, want.offset, fault)
        finally:
            self._end(wants)

    def _end(self, wants: Sequence[Want]) -> None:
        self._loads.end((want.key, want.offset) for want in wants)
        if wants:
            self._wake([want.key for want in wants])

    async def _attempt(self, wants: list[Want], max_bytes: int, *, last: bool) -> list[Want]:
        """Load once; returns those whose objects were gone, to be asked for anew."""
        lots = _trimmed(await self._located(wants), max_bytes)
        results = await self._fetch([piece for _, lot in lots for piece in lot])
        again: list[Want] = []
        at = 0
        for want, lot in lots:
            part = results[at : at + len(lot)]
            at += len(lot)
            if isinstance(part[0], ObjectNotFound) and not last:
                self._coordinates.drop(want.key)
                again.append(want)
                continue
            run, failure = await _assembled(lot, part, want.leader_epoch)
            if run is not None:
                self._ready.put(want.key, run, self._clock.monotonic())
                self.counters.batches_bytes += len(run)
            if failure is not None:
                self._failed(want, want.offset if run is None else run.next_offset, failure)
        self._end([want for want in wants if want not in again])
        return again

    async def _located(self, wants: Sequence[Want]) -> list[tuple[Want, Sequence[Extent]]]:
        """The extents of each: what is known of them, else what the control plane says."""
        now = self._clock.monotonic()
        located: list[tuple[Want, Sequence[Extent]]] = []
        unknown: list[int] = []
        for place, want in enumerate(wants):
            known = self._coordinates.find(want.key, want.offset, max(1, want.max_bytes), now)
            if not known:
                unknown.append(place)
            located.append((want, known))
        self.counters.known += len(wants) - len(unknown)
        for start in range(0, len(unknown), limits.FIND_REQUESTS_MAX):
            places = unknown[start : start + limits.FIND_REQUESTS_MAX]
            asked = [wants[place] for place in places]
            answers = await self._plane.find(
                [FindRequest(*want.key, want.offset, max(1, want.max_bytes)) for want in asked]
            )
            self.counters.finds += len(asked)
            for place, want, found in zip(places, asked, answers, strict=True):
                self._found(want, found)
                located[place] = want, found.extents
        return located

    def _found(self, want: Want, found: Found) -> None:
        if found.watermarks is not None:
            self._learn(want.key, found.watermarks)
        if found.error is not None:
            self._failed(want, want.offset, _refusal(want, found))
        self._coordinates.add(want.key, found.extents, self._clock.monotonic())

    async def _fetch(self, pieces: Sequence[Piece]) -> list[Result]:
        """The bytes of pieces, or why there are none, in their order."""
        if not pieces:
            return []
        plan = merge(pieces)
        size_bytes = sum(one.size_bytes for one in plan.ranges)
        await self._budget.take(size_bytes)
        try:
            answers = await self._paths.fetch(
                [ObjectRange(one.key, one.start, one.size_bytes, -1) for one in plan.ranges],
                newest_timestamp_ms=newest_timestamp(pieces),
            )
        finally:
            self._budget.give(size_bytes)
        return results_of(pieces, plan, answers)

    def _failed(self, want: Want, offset: int, error: PenstockError) -> None:
        """Remember a failure, for a moment."""
        failure = self._ready.fail(want.key, offset, error, self._clock.monotonic())
        if failure.error.code == Unreadable.code:
            self.counters.failures += 1
            if not failure.quiet:
                logger.warning(
                    "partition %d of topic %s cannot be read at offset %d: %s",
                    want.key[1], want.key[0], offset, error,
                )  # fmt: skip


def _trimmed(located: Iterable[tuple[Want, Sequence[Extent]]], max_bytes: int) -> list[Lot]:
    """The pieces of each within the limits of all; those without any are left out."""
    lots: list[Lot] = []
    left = max_bytes
    for want, extents in located:
        pieces = trim(
            extents, want.offset, max_bytes=min(want.max_bytes, left), at_least_one=not lots
        )
        if pieces:
            lots.append((want, pieces))
            left -= sum(piece.size_bytes for piece in pieces)
    return lots


async def _assembled(
    pieces: Sequence[Piece], results: Sequence[Result], leader_epoch: int = LEADER_EPOCH
) -> tuple[Run | None, PenstockError | None]:
    size_bytes = sum(piece.size_bytes for piece in pieces)
    if size_bytes <= limits.INLINE_BYTES_MAX:
        return assemble(pieces, results, leader_epoch)
    return await asyncio.to_thread(assemble, pieces, results, leader_epoch)


def _refusal(want: Want, found: Found) -> PenstockError:
    where = f"partition {want.key[1]} of topic id {want.key[0]}"
    if found.error == OffsetOutOfRange.code and found.watermarks is not None:
        marks = found.watermarks
        return OffsetOutOfRange(where, want.offset, marks.log_start_offset, marks.high_watermark)
    return PartitionGone(f"there is no {where}")


def _read(run: Run, want: Want, at_least_one: bool) -> Read:
    data, next_offset = run.part(
        want.offset,
        max_bytes=want.max_bytes,
        at_least_one=at_least_one,
        end_offset=want.end_offset,
    )
    return Read([data] if data else [], len(data), next_offset)
