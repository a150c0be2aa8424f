"""Consolidation: merges old write-ahead extents into sealed segments of one partition each.

A *run* is a sequence of adjacent extents that becomes one segment. `choose` and `Selection` find
runs. `Consolidator` makes segments of them, for a broker or a command. Other processes, such as
Spark jobs, lease runs from a `WorkQueue`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from msgspec import Struct

from penstock.archive.errors import CorruptObject
from penstock.archive.segments import SealedSegment, build_segment
from penstock.base.crc import crc32c
from penstock.base.errors import BugError, InvalidError, PenstockError
from penstock.base.metrics import Metrics, Sample, counter
from penstock.base.pause import pause
from penstock.base.retry import Backoff
from penstock.base.system import Clock, Randomness
from penstock.control.operations.diskless import DisklessPlane
from penstock.control.values.diskless import Backlog, ObjectLease, PartitionKey, SegmentSwap
from penstock.control.values.errors import ControlUnavailable, ObjectLeaseLost, StaleExtents
from penstock.diskless.settings import RUN_EXTENTS_MAX, DisklessSettings
from penstock.objects import ObjectNotFound, ObjectStore, ObjectTruncated
from penstock.objects.rate_limit import TokenBucket
from penstock.records.extents import Extent

# Selection of the extents that become a sealed segment. A pure core over pages of the batch index.
#
# A *run* is a sequence of adjacent extents in write-ahead objects. It begins at the first extent
# that is in no segment:
#
# | end of the run                           | run is | becomes a segment                         |
# |------------------------------------------|--------|-------------------------------------------|
# | the next extent would make it too large  | full   | if all its extents are old                |
# | a segment follows                        | closed | if all its extents are old; it cannot grow|
# | the log ends                             | open   | up to its last old extent, if these are   |
# |                                          |        | at least `min_extents`                    |
#
# An extent is old if its newest record is old, or that of a later extent: a log is in append order,
# whatever the clocks of producers show. Records with timestamps in the future are not old.
#
# The core stores the offset below which each partition has no work left, so a pass does not read
# the rows of all segments again. It requests one page at a time, and returns one run at a time.
#
# Source: Inkless's `FileMerger`; Kafka's rules for rolling a segment (size before age).


PAGE_EXTENTS: Final = 1_001
"""Extents in a page. A run has fewer, so the page shows where the run ends."""
REMEMBERED_MAX: Final = 100_000
"""Partitions whose progress is stored between passes."""


class Rules(Struct, frozen=True, kw_only=True):
    """Limits of a run: its total bytes, and the number and age of its extents.

    If `min_age_ms` is None, extents of every age and number are taken.
    """

    segment_bytes: int
    min_extents: int
    min_age_ms: int | None


class Choice(NamedTuple):
    """The run to make a segment of, empty if there is none, and the offset to read from next.

    `following` is that offset, or None if the partition has no more to merge now. Once the run has
    become a segment, no extent below `done_before` needs consolidation.
    """

    run: tuple[Extent, ...]
    following: int | None
    done_before: int


def choose(page: Sequence[Extent], *, rules: Rules, now_ms: int, last: bool) -> Choice:
    """Return the first adjacent extents of a page that may become one segment.

    `last` means that no extents follow the page.
    """
    first = next((place for place, extent in enumerate(page) if extent.kind == "wal"), len(page))
    if first == len(page):
        end = page[-1].next_offset if page else 0
        return Choice((), None if last else end, end)
    base_offset = page[first].base_offset
    length, ending = _run_length(page[first:], rules.segment_bytes)
    if ending == "page" and not last:
        if first == 0:
            raise BugError(f"a page of {len(page)} extents is too short for a run")
        return Choice((), base_offset, base_offset)
    old = min(length, _old(page, rules, now_ms) - first)
    if not (_is_enough(old, rules) if ending == "page" else old == length):
        return Choice((), None, base_offset)
    run = tuple(page[first : first + old])
    return Choice(run, run[-1].next_offset, run[-1].next_offset)


def _is_enough(extents: int, rules: Rules) -> bool:
    return extents > 0 and (rules.min_age_ms is None or extents >= rules.min_extents)


def _run_length(extents: Sequence[Extent], segment_bytes: int) -> tuple[int, str]:
    """Return the number of extents in the run at the start of `extents`, and why it ends there.

    The reason is "full", "closed" (see the table above), or "page" at the end of `extents`.
    """
    size_bytes, following = extents[0].size_bytes, extents[0].next_offset
    for length, extent in enumerate(extents[1:], 1):
        if extent.kind != "wal" or extent.base_offset != following:
            return length, "closed"
        size_bytes, following = size_bytes + extent.size_bytes, extent.next_offset
        if size_bytes > segment_bytes or length == RUN_EXTENTS_MAX:
            return length, "full"
    return len(extents), "full" if size_bytes >= segment_bytes else "page"


def _old(page: Sequence[Extent], rules: Rules, now_ms: int) -> int:
    if rules.min_age_ms is None:
        return len(page)
    before_ms = now_ms - rules.min_age_ms
    for place in range(len(page), 0, -1):
        if 0 <= page[place - 1].max_timestamp <= before_ms:
            return place
    return 0


class Page(NamedTuple):
    """A request for up to `limit` extents of a partition from offset `start` on.

    The caller passes the extents to `Selection.page`.
    """

    key: PartitionKey
    start: int
    limit: int


class Selection:
    """The core of a consolidation pass: which extents to read next, and the run to merge.

    It stores the progress of each partition for later passes.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._done_before: dict[PartitionKey, int] = {}
        self._waiting: list[PartitionKey] = []
        self._key: PartitionKey | None = None
        self._start = 0
        self._whole = True
        self._choice: Choice | None = None

    def begin(
        self, keys: Iterable[PartitionKey], *, order: Callable[[PartitionKey], int]
    ) -> Page | None:
        """Begin a pass over partitions, sorted by `order`; return the first request."""
        self._choice = None
        self._waiting = sorted(set(keys), key=lambda key: (order(key), key), reverse=True)
        return self._next_partition()

    def page(self, extents: Sequence[Extent], now_ms: int) -> Choice | None:
        """Return the first run of the extents that were requested, or None if they have none.

        The caller then calls `done`, `failed` or `lost` for the run.
        """
        last = len(extents) < PAGE_EXTENTS
        choice = choose(extents, rules=self._rules, now_ms=now_ms, last=last)
        if choice.run:
            self._choice = choice
            return choice
        self._advance(choice)
        return None

    def ask(self) -> Page | None:
        """Return the next request for extents, or None at the end of the pass."""
        if self._key is None:
            return None
        return Page(self._key, self._start, PAGE_EXTENTS)

    def done(self) -> None:
        """Report that the run has become a segment."""
        self._advance(self._taken())

    def failed(self) -> None:
        """Report that the run could not become a segment. The next pass retries it."""
        choice = self._taken()
        self._whole = False
        self._advance(choice)

    def lost(self) -> None:
        """Report that another process changed extents of the run.

        This pass then skips later extents of the partition.
        """
        self._taken()
        self._next_partition()

    def _taken(self) -> Choice:
        choice, self._choice = self._choice, None
        if choice is None:
            raise BugError("no run was chosen")
        return choice

    def _advance(self, choice: Choice) -> None:
        key = self._key
        if key is None:
            raise BugError("no partition was chosen")
        if self._whole and choice.done_before:
            self._done_before.pop(key, None)
            self._done_before[key] = choice.done_before
            if len(self._done_before) > REMEMBERED_MAX:
                del self._done_before[next(iter(self._done_before))]
        if choice.following is None:
            self._next_partition()
        else:
            self._start = choice.following

    def _next_partition(self) -> Page | None:
        self._key = self._waiting.pop() if self._waiting else None
        self._whole = True
        if self._key is not None:
            self._start = self._done_before.get(self._key, 0)
        return self.ask()


# Steps that consolidation and compaction share: rate-limited reads, and swaps of extents.
#
# A segment is written under a leased key. It replaces its extents by a compare-and-set, which is
# repeated if its outcome is unknown.


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
    """Steps of making a segment: read objects at a limited rate, write it, swap the extents.

    `read_bytes` is the total of all reads.
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


# The job that makes sealed segments of old write-ahead extents, one segment at a time.
#
#     choose ──> read, check, set offsets ──> lease a key ──> PUT ──> swap the rows
#        └── `Selection`   └── `build_segment`
#
# The swap is a compare-and-set of all replaced extents. It fails after a concurrent change by
# another broker, retention or the sweeper, and the partition is skipped. A swap with an unknown
# outcome is repeated. A failure before the swap leaves a reserved key, and perhaps an object, which
# the sweeper deletes.
#
# Readers may use the replaced extents until the sweeper's grace period ends. Several brokers may
# consolidate at once; each takes the partitions in a random order of its own.


BACKLOGS_MAX: Final = 1_000
"""Partitions of one pass: those with the most extents in write-ahead objects."""


class ConsolidationCounters(Metrics, prefix="penstock_diskless_consolidation_"):
    segments = counter("segments_total", "Sealed segments that replaced extents.")
    segment_bytes = counter("segment_bytes_total", "Bytes of the segments that replaced extents.")
    extents = counter("extents_total", "Write-ahead extents that were merged into segments.")
    races = counter(
        "races_lost_total", "Discarded segments: the extents had changed, or the key was swept."
    )
    failures = counter(
        "failures_total",
        "Segments that could not be made, because a source object is damaged or missing.",
    )
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


# Work queue of consolidation for processes outside of brokers, such as Spark jobs.
#
#    backlogs ──> lease: a run and a reserved key ──> (segment is made elsewhere) ──> complete: swap
#
# The queue has no state of its own. The key of an abandoned lease is swept. If several jobs or
# brokers take the same run, the first swap wins. A segment is accepted once its complete object is
# in the store.


_END = 2**63 - 1


class SegmentMissing(InvalidError):
    """The object of a completed segment is not in the store, or has another size."""

    code: ClassVar[str] = "invalid_request"


class Work(NamedTuple):
    """A run of extents, and the leased key for its segment.

    If there is no run, `run` is empty and `lease` is None. `following` is the offset from which to
    lease the next run, or None if the partition has no more to merge now.
    """

    run: tuple[Extent, ...]
    lease: ObjectLease | None
    following: int | None


class WorkQueue:
    """Leases runs of extents to other processes, and accepts their segments."""

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._store = store
        self._clock = clock

    async def backlogs(self) -> list[Backlog]:
        return await self._plane.backlogs(min_extents=1, limit=BACKLOGS_MAX)

    async def lease(self, key: PartitionKey, start: int, *, all_ages: bool) -> Work:
        """Lease the first run from offset `start` on, if the first page of extents has one.

        The broker's settings limit the size of the run. `all_ages` ignores the minimum age and
        number of extents.
        """
        extents = await self._plane.extents(*key, start=start, end=_END, limit=PAGE_EXTENTS)
        rules = rules_of(self._settings, all_ages=all_ages)
        last = len(extents) < PAGE_EXTENTS
        choice = choose(extents, rules=rules, now_ms=self._clock.now_ms(), last=last)
        if not choice.run:
            return Work((), None, choice.following)
        base_offset = choice.run[0].base_offset
        leased = await self._plane.lease_segment(*key, base_offset=base_offset)
        return Work(choice.run, leased, choice.following)

    async def complete(self, swap: SegmentSwap) -> None:
        """Replace the extents of a run by their segment. Idempotent.

        Raises:
            SegmentMissing: the object is not in the store, or has another size.
            StaleExtents, ObjectLeaseLost: as in `DisklessPlane.swap_extents`.
        """
        keys = {extent.key for extent in swap.extents}
        if len(keys) != 1:
            raise SegmentMissing(f"a segment has one object, but the request names {len(keys)}")
        (key,) = keys
        try:
            info = await self._store.head(key)
        except ObjectNotFound:
            raise SegmentMissing(f"there is no object {key}") from None
        if info.size_bytes != swap.size_bytes:
            raise SegmentMissing(
                f"object {key} has {info.size_bytes} bytes, but the request names {swap.size_bytes}"
            )
        await self._plane.swap_extents(swap)
