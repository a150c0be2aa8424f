"""Lookup and reads of archived data: segment rows, indexes, chunks, aborted transactions.

The control plane's segment rows are cached for some seconds, and indexes until they are evicted;
both caches are bounded and evict the least recently used. If an object is missing, the rows are
requested once more.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol, TypeVar, cast

from penstock.archive.assembly import Run
from penstock.archive.errors import CorruptObject
from penstock.base.errors import CorruptError, PenstockError
from penstock.base.pause import pause
from penstock.control.values.tiers import ABORTED, INDEX, SUFFIXES, TIME_INDEX, TierSegment
from penstock.objects import LaggingConsumerRejected, ObjectNotFound
from penstock.objects.rate_limit import TokenBucket, YieldingLimit
from penstock.records import (
    HEADER_BYTES,
    CorruptBatch,
    LegacyBatch,
    OffsetOutOfRange,
    decode_header,
    verify_crc,
)
from penstock.records.transactions import AbortedTransaction
from penstock.storage.files.index import SparseIndex
from penstock.storage.files.transaction_index import TransactionIndex
from penstock.storage.log.reading import record_in

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.control.operations.tiers import TieredPartitions
    from penstock.control.values.diskless import PartitionKey
    from penstock.objects.store_path import StorePath
    from penstock.storage import PartitionLog
    from penstock.storage.files.values import OffsetAndTimestamp
    from penstock.storage.files.worker import Counters


# Verified batches of an archived segment in memory, for consumers.
#
# The batches are unchanged, because they got their offsets when they were appended. Their aborted
# transactions are kept with them, for consumers that read only committed records.


class TierRun(Run):
    """Adjacent batches of an archived segment in memory, with their aborted transactions.

    When a consumer reads beyond `ahead_from`, the next chunks are loaded in advance. `following` is
    an offset in the first batch after these; -1 if unknown.
    """

    __slots__ = ("aborted", "ahead_from", "following")

    def __init__(
        self, data: memoryview, offsets: list[int], ends: list[int], next_offset: int
    ) -> None:
        super().__init__(data, offsets, ends, next_offset)
        self.aborted: Sequence[AbortedTransaction] = ()
        self.ahead_from = offsets[len(offsets) // 2]
        self.following = -1


def run_of(segment: TierSegment, start: int, data: memoryview, offset: int) -> TierRun | int:
    """Return the complete batches in `data` that end above `offset`.

    `data` has the segment's bytes from `start` on. If it has no such batch, return the number of
    bytes that are needed from `start` on, or 0 if the segment has no such batch.

    Raises:
        CorruptObject: the bytes are not batches of the segment.
    """
    offsets: list[int] = []
    ends: list[int] = []
    at = first = 0
    next_offset = -1
    whole = start + len(data) >= segment.size_bytes
    while len(data) - at >= HEADER_BYTES:
        try:
            header = decode_header(data, at)
            if header.size_bytes > len(data) - at:
                if not offsets and not whole:
                    return at + header.size_bytes
                break
            verify_crc(data, header, at)
        except (CorruptBatch, LegacyBatch) as error:
            raise CorruptObject(f"object {segment.key} at byte {start + at}: {error}") from None
        if not segment.base_offset <= header.base_offset or header.base_offset < next_offset:
            raise CorruptObject(
                f"object {segment.key} at byte {start + at}: a batch begins at offset"
                f" {header.base_offset}, expected at least {max(segment.base_offset, next_offset)}"
            )
        if header.base_offset >= segment.next_offset:
            break
        at += header.size_bytes
        next_offset = header.next_offset
        if next_offset <= offset:
            first = at
            continue
        offsets.append(header.base_offset)
        ends.append(at - first)
    if not offsets:
        return 0 if whole else at + HEADER_BYTES
    return TierRun(data[first : first + ends[-1]], offsets, ends, next_offset)


class TierHole(CorruptError):
    """Offset of the partition that neither the archive nor the log has, though one should."""

    code: ClassVar[str] = "kafka_storage_error"


REST_SHARE: Final = 4
"""The rest of a segment joins its last chunk if it has at most 1 / REST_SHARE of a chunk's size."""
CHUNK_BYTES_MIN: Final = 1 << 20
"""Minimum bytes of a chunk, for the case that many consumers share the buffer."""
INLINE_BYTES_MAX: Final = 256 << 10
"""Maximum bytes of a chunk that is verified on the event loop's thread."""
ROWS_PER_PAGE: Final = 100
"""Segments per request to the control plane."""
ROWS_SECONDS: Final = 30.0
"""Seconds for which segment rows are cached: far below the sweeper's grace period."""
ROW_PAGES_MAX: Final = 1_024
"""Maximum number of partitions with cached rows."""
ABORTED_PAGES_MAX: Final = 1_000
"""Maximum number of pages of segments with aborted transactions that one read examines."""

BEAT_SECONDS: Final = 0.01
"""Interval of the timer that measures how late the event loop runs while the archive is read."""

_base_offset, _first_offset = attrgetter("base_offset"), attrgetter("first_offset")
_ATTEMPTS_MAX: Final = 2


class _Page(NamedTuple):
    """Adjacent segments of a partition, and the time until which they stay cached."""

    segments: list[TierSegment]
    until: float


class Chunk(NamedTuple):
    """Byte range of a segment that begins at or shortly before the batch that holds `offset`.

    The first batch after the range holds the offset `following`; -1 if unknown.
    """

    segment: TierSegment
    offset: int
    start: int
    size_bytes: int
    following: int


class _Kept(NamedTuple):
    """Cached index, and its size in the archive, in bytes."""

    size_bytes: int
    made: SparseIndex | TransactionIndex


IndexT = TypeVar("IndexT", SparseIndex, TransactionIndex)


class TierFetcher:
    """Reader of archived segments and indexes; belongs to the event loop."""

    def __init__(
        self,
        *,
        plane: TieredPartitions,
        path: Callable[[], Awaitable[StorePath]],
        clock: Clock,
        bytes_per_second: int,
        index_bytes_max: int,
    ) -> None:
        """Create a fetcher; `path` returns the path to the store, or raises PenstockError."""
        self._plane = plane
        self._path = path
        self._clock = clock
        self._limit = TokenBucket(bytes_per_second, now=clock.monotonic())
        self._yielding = Yielding()
        self._index_bytes_max = index_bytes_max
        self._index_bytes = 0
        self._indexes: OrderedDict[int, _Kept] = OrderedDict()
        """Cached indexes by the ids of their objects."""
        self._pages: OrderedDict[PartitionKey, _Page] = OrderedDict()

    def forget(self, key: PartitionKey) -> None:
        self._pages.pop(key, None)

    async def chunk(self, part: TierSource, offset: int, size_bytes: int) -> Chunk:
        """Return a chunk from the batch that holds `offset` on, of about `size_bytes`.

        Raises:
            OffsetOutOfRange: `offset` is below the partition's start.
            PenstockError: the lookup failed.
        """
        return await self._planned(await self._segment(part, offset), offset, size_bytes)

    async def run(self, part: TierSource, chunk: Chunk) -> TierRun:
        """Return the batches of a chunk; raises like `chunk`."""
        await self._yielding.admit(chunk.size_bytes, part.log.state.parts.counters)
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                run = await self._run(chunk)
                break
            except ObjectNotFound:
                self.forget(part.key)
                if attempt == _ATTEMPTS_MAX:
                    raise
            chunk = await self.chunk(part, chunk.offset, chunk.size_bytes)
        run.aborted = await self.aborted(part, run.base_offset, run.next_offset)
        return run

    async def aborted(self, part: TierSource, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with batches in [start, end), by first offset."""
        found: set[AbortedTransaction] = set()
        last, offset = part.aborted_offset, start
        for _ in range(ABORTED_PAGES_MAX):
            if offset > last:
                break
            page = await self._plane.aborted_tiers(part.key, offset, limit=ROWS_PER_PAGE)
            for segment in page:
                index = await self._index(segment, ABORTED, _aborted_index)
                some, complete = index.find(start, end)
                found.update(some)
                if complete:
                    return sorted(found, key=_first_offset)
            if len(page) < ROWS_PER_PAGE:
                break
            offset = page[-1].next_offset
        found.update(part.log.transactions.aborted(start, end))
        return sorted(found, key=_first_offset)

    async def position(self, part: TierSource, timestamp: int | None) -> OffsetAndTimestamp | None:
        """Return the first archived record at or after a timestamp.

        If `timestamp` is None, return the first record with the highest timestamp.
        """
        start = part.start_offset
        asked = timestamp
        while True:
            segment = await self._plane.tier_at_time(part.key, start_offset=start, timestamp=asked)
            if segment is None:
                return None
            asked = segment.max_timestamp if asked is None else asked
            found = await self._position_in(segment, asked, start)
            if found is not None or timestamp is None:
                return found
            start = segment.next_offset

    async def segments(
        self, part: TierSource, start: int, end: int, limit: int
    ) -> list[TierSegment]:
        """Return the segments that hold offsets of [start, end), at most `limit`."""
        found = await self._plane.tier_segments(part.key, start, limit=limit)
        return [segment for segment in found if segment.base_offset < end]

    async def offsets_of(self, segment: TierSegment) -> SparseIndex:
        """Return the offset index of a segment; raises CorruptObject."""
        return await self._index(segment, INDEX, _offset_index)

    async def _segment(self, part: TierSource, offset: int) -> TierSegment:
        key, now = part.key, self._clock.monotonic()
        page = self._pages.get(key)
        found = None if page is None or page.until < now else _holding(page.segments, offset)
        if found is not None:
            self._pages.move_to_end(key)
            return found
        await part.look_up_unknown()
        if offset < part.start_offset:
            end = part.tiered_end
            raise OffsetOutOfRange(part.name, offset, part.start_offset, end)
        rows = await self._plane.tier_segments(key, offset, limit=ROWS_PER_PAGE)
        self._pages[key] = _Page(rows, now + ROWS_SECONDS)
        self._pages.move_to_end(key)
        while len(self._pages) > ROW_PAGES_MAX:
            self._pages.popitem(last=False)
        found = _holding(rows, offset)
        if found is None:
            await part.look_up()
            if offset < part.start_offset:
                raise OffsetOutOfRange(part.name, offset, part.start_offset, part.tiered_end)
            raise TierHole(f"{part.name}: no segment in the archive holds offset {offset}")
        return found

    async def _planned(self, segment: TierSegment, offset: int, size_bytes: int) -> Chunk:
        index = await self.offsets_of(segment)
        start = index.by_offset(offset).position
        left = segment.size_bytes - start
        if left <= size_bytes + size_bytes // REST_SHARE:
            return Chunk(segment, offset, start, left, segment.next_offset)
        end = index.by_position(start + size_bytes)
        if end.position <= start:
            return Chunk(segment, offset, start, size_bytes, -1)
        return Chunk(segment, offset, start, end.position - start, end.last_offset)

    async def _run(self, chunk: Chunk) -> TierRun:
        segment, offset, start, size_bytes, _ = chunk
        while True:
            size = min(size_bytes, segment.size_bytes - start)
            data = await self._get(segment.key, start, size)
            if size <= INLINE_BYTES_MAX:
                run = run_of(segment, start, data, offset)
            else:
                run = await asyncio.to_thread(run_of, segment, start, data, offset)
            if isinstance(run, TierRun):
                return run
            if not run or size >= segment.size_bytes - start:
                raise CorruptObject(f"object {segment.key} has no batch of offset {offset}")
            size_bytes = max(run, size + 1)

    async def _position_in(
        self, segment: TierSegment, timestamp: int, start: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record of a segment from offset `start` on, at or after a timestamp."""
        times = await self._index(segment, TIME_INDEX, _time_index)
        offset = max(start, segment.base_offset, times.by_time(timestamp).last_offset)
        while offset < segment.next_offset:
            run = await self._run(await self._planned(segment, offset, CHUNK_BYTES_MIN))
            at = 0
            for end in run.ends:
                header = decode_header(run.data, at)
                if header.max_timestamp >= timestamp:
                    batch = run.data[at:end]
                    found = record_in(batch, header, timestamp, start_offset=start)
                    if found is not None:
                        return found
                at = end
            offset = run.next_offset
        return None

    async def _index(
        self, segment: TierSegment, suffix: str, make: Callable[[TierSegment, bytes], IndexT]
    ) -> IndexT:
        """Return one validated index of a segment; raises CorruptObject."""
        place = SUFFIXES.index(suffix)
        object_id, size_bytes = list(segment.objects())[place]
        if not size_bytes:
            return make(segment, b"")
        known = self._indexes.get(object_id)
        if known is None:
            data = bytes(await self._get(segment.stem + suffix, 0, size_bytes))
            known = _Kept(size_bytes, make(segment, data))
            if object_id not in self._indexes:
                self._index_bytes += size_bytes
            self._indexes[object_id] = known
            while self._index_bytes > self._index_bytes_max and len(self._indexes) > 1:
                _, oldest = self._indexes.popitem(last=False)
                self._index_bytes -= oldest.size_bytes
        self._indexes.move_to_end(object_id)
        return cast("IndexT", known.made)

    async def _get(self, key: str, start: int, size_bytes: int) -> memoryview:
        wait = self._limit.take(self._clock.monotonic(), size_bytes)
        if wait > 0.0:
            await pause(wait)
        path = await self._path()
        future = path.submit(key, start, size_bytes)
        if future is None:
            waiting = path.pool.waiting
            raise LaggingConsumerRejected(
                f"{waiting} requests to the archive wait; the limit is"
                f" remote.log.reader.max.pending.tasks = {path.pool.waiting_max}"
            )
        result = await future
        if isinstance(result, PenstockError):
            raise result
        return result


class Yielding:
    """Timer of a `YieldingLimit`, by which reads of the archive yield to appends.

    The timer measures how late the event loop runs, from the first read until a second after the
    last one.
    """

    def __init__(self) -> None:
        self._limit = YieldingLimit()
        self._timer: asyncio.TimerHandle | None = None

    async def admit(self, size_bytes: int, counters: Counters) -> None:
        """Wait until a read may begin; `counters` are those of the store."""
        wait = self.take(size_bytes, counters)
        while wait > 0.0:
            await pause(min(wait, BEAT_SECONDS))
            wait = 0.0 if self._limit.lifted else wait - BEAT_SECONDS

    def take(self, size_bytes: int, counters: Counters) -> float:
        """Return the seconds after which a read may begin."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._limit = YieldingLimit(counters.groups)
            self._timer = loop.call_later(BEAT_SECONDS, self._beat, loop, counters)
        return self._limit.take(loop.time(), size_bytes)

    def _beat(self, loop: asyncio.AbstractEventLoop, counters: Counters) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and self._limit.beat(counters.groups, loop.time() - timer.when()):
            self._timer = loop.call_later(BEAT_SECONDS, self._beat, loop, counters)


def _holding(segments: Sequence[TierSegment], offset: int) -> TierSegment | None:
    place = bisect_right(segments, offset, key=_base_offset) - 1
    found = segments[place] if place >= 0 else None
    return found if found is not None and offset < found.next_offset else None


def _offset_index(segment: TierSegment, data: bytes) -> SparseIndex:
    index = SparseIndex(segment.base_offset, data)
    return _without_doubt(segment, INDEX, index, index.doubt(segment.size_bytes))


def _time_index(segment: TierSegment, data: bytes) -> SparseIndex:
    index = SparseIndex(segment.base_offset, b"", data)
    return _without_doubt(segment, TIME_INDEX, index, index.doubt(segment.size_bytes))


def _aborted_index(segment: TierSegment, data: bytes) -> TransactionIndex:
    index = TransactionIndex(data)
    return _without_doubt(segment, ABORTED, index, index.doubt(segment.base_offset))


def _without_doubt(segment: TierSegment, suffix: str, index: IndexT, doubt: str | None) -> IndexT:
    if doubt is not None:
        raise CorruptObject(f"object {segment.stem}{suffix}: {doubt}")
    return index


class TierSource(Protocol):
    """Partition with archived records; the offsets are those that the control plane sent last."""

    key: PartitionKey
    name: str
    log: PartitionLog

    @property
    def start_offset(self) -> int:
        """Start offset of the partition."""
        ...

    @property
    def tiered_end(self) -> int:
        """End offset of the archive."""
        ...

    @property
    def aborted_offset(self) -> int:
        """Base offset of the last segment with markers of aborted transactions; -1 for none."""
        ...

    async def look_up(self) -> None:
        """Request the offsets from the control plane; raises PenstockError."""
        ...

    async def look_up_unknown(self) -> None:
        """Request the offsets if they are unknown."""
        ...
