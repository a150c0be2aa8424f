"""Fetch paths for ranges of objects: recent data is read through the cache, old data past it.

The age of the newest data of a request selects the path, not the consumer's lag. A request takes
the cold path if `max(0, now − newest timestamp) > threshold`.

- **Hot path**: reads whole blocks and keeps them in the cache. A block is loaded once for all
  readers. The path has its own pool, and no rate limit. Objects that this broker writes are cached
  (`keep`).
- **Cold path**: neither reads nor fills the cache, because objects mix partitions and other
  consumers do not need what a lagging consumer reads. It reads one bounding range per object and
  call. It has its own client of the store, its own bounded pool, and a rate limit. If its queue is
  full, it rejects at once.

A request that exceeds a limit fails at once, instead of blocking. Errors are returned as values,
one per range, so that a caller can use the bytes before the first failure.

Source: the hot and cold path separation of Inkless (Aiven's diskless Kafka), December 2025.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.base.errors import BugError, PenstockError
from penstock.base.metrics import Metrics, Sample, counter, gauge, histogram
from penstock.base.pause import pause
from penstock.base.system import SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.objects.port import (
    Buffer,
    InvalidRange,
    LaggingConsumerRejected,
    ObjectReader,
    ObjectTruncated,
    StoreClosed,
    StoreThrottled,
)
from penstock.objects.rate_limit import TokenBucket
from penstock.objects.settings import FetchSettings
from penstock.objects.store_path import Future, Hedging, Pause, Pool, Result, StorePath

# Cache of the blocks of recent objects, and the callers that wait for blocks being loaded.
#
# | state   | `ask`             | `loaded`         | `failed`         | `keep` (just written)      |
# |---------|-------------------|------------------|------------------|----------------------------|
# | absent  | `LOAD`; → loading | → present        | no effect        | → present                  |
# | loading | `WAIT`            | → present; bytes | → absent; error  | → present; bytes           |
# | present | the bytes         | no effect        | no effect        | no effect                  |
#
# "Bytes" and "error" mean that the waiting callers get the bytes or the error. Each block is
# therefore loaded once for all callers. Present blocks are ordered by their last write or request.
# The first ones in this order expire after the lifespan, and are evicted if the cache is full. The
# bytes under a key never change, so no block is ever invalidated.


CACHE_BLOCK_OVERHEAD_BYTES: Final = 512
"""Memory of a cached block in addition to its bytes."""

A = TypeVar("A")


class Block(NamedTuple):
    key: str
    number: int


class Pending(Enum):
    """Result of a request for a missing block: the caller must load it, or only wait."""

    LOAD = auto()
    WAIT = auto()


class _Entry(NamedTuple):
    content: memoryview
    touched_ms: int


class CacheCounters(Metrics, prefix="penstock_objects_cache_"):
    hits = counter("hits_total", "Blocks found in the cache.")
    misses = counter("misses_total", "Blocks that had to be loaded.")
    joins = counter("shared_loads_total", "Blocks requested while they were being loaded.")
    evictions = counter("evictions_total", "Blocks evicted because the cache was full.")
    expirations = counter("expirations_total", "Blocks dropped because they were not requested.")
    size_bytes = gauge("bytes", "Memory of the cached blocks.")
    blocks = gauge("blocks", "Blocks in the cache.")


class BlockCache(Generic[A]):
    """Cached blocks, limited in bytes and age, and the callers (`A`) that wait for loads."""

    def __init__(self, *, block_bytes: int, bytes_max: int, lifespan_ms: int) -> None:
        self.block_bytes = block_bytes
        self._bytes_max = bytes_max
        self._lifespan_ms = lifespan_ms
        self._present: OrderedDict[Block, _Entry] = OrderedDict()
        self._loading: dict[Block, list[A]] = {}
        self.size_bytes = 0
        self.counters = CacheCounters()

    def __len__(self) -> int:
        return len(self._present)

    @property
    def loading(self) -> int:
        return len(self._loading)

    def blocks(self, key: str, start: int, size_bytes: int) -> Iterator[Block]:
        first, last = start // self.block_bytes, (start + size_bytes - 1) // self.block_bytes
        return (Block(key, number) for number in range(first, last + 1))

    def peek(self, block: Block, now_ms: int) -> memoryview | None:
        """Return a cached block, or None. Does not count the request or renew the block."""
        entry = self._present.get(block)
        if entry is None or self._expired(entry, now_ms):
            return None
        return entry.content

    def ask(self, block: Block, asker: A, now_ms: int) -> memoryview | Pending:
        """Return the block's bytes, or register the caller as waiting for it.

        A registered caller is returned by the next `loaded`, `failed` or `keep` of the block.
        """
        entry = self._present.get(block)
        if entry is not None:
            if not self._expired(entry, now_ms):
                self._present[block] = _Entry(entry.content, now_ms)
                self._present.move_to_end(block)
                self.counters.hits += 1
                return entry.content
            self.expire(now_ms)
        askers = self._loading.get(block)
        if askers is not None:
            askers.append(asker)
            self.counters.joins += 1
            return Pending.WAIT
        self._loading[block] = [asker]
        self.counters.misses += 1
        return Pending.LOAD

    def loaded(self, block: Block, content: memoryview, now_ms: int) -> Sequence[A]:
        """Store a loaded block; return the callers that wait for it."""
        self._store(block, content, now_ms)
        return self._loading.pop(block, ())

    def failed(self, block: Block) -> Sequence[A]:
        """Record a failed load; return the callers that wait for it."""
        return self._loading.pop(block, ())

    def keep(
        self, key: str, content: memoryview, now_ms: int
    ) -> Sequence[tuple[memoryview, Sequence[A]]]:
        """Store the blocks of a whole object. Return each block with the callers that wait for it.

        Each block gets its own copy of its bytes, unless the object is a single block.
        """
        kept: list[tuple[memoryview, Sequence[A]]] = []
        for number, start in enumerate(range(0, len(content), self.block_bytes)):
            cut = content[start : start + self.block_bytes]
            if len(cut) < len(content):
                cut = memoryview(bytes(cut))
            kept.append((cut, self.loaded(Block(key, number), cut, now_ms)))
        return kept

    def expire(self, now_ms: int) -> int:
        """Drop the blocks that were not used during the lifespan; return their number."""
        dropped = 0
        while self._present:
            block, entry = next(iter(self._present.items()))
            if not self._expired(entry, now_ms):
                break
            self._drop(block)
            dropped += 1
        self.counters.expirations += dropped
        return dropped

    def clear(self) -> Sequence[A]:
        self._present.clear()
        self.size_bytes = 0
        askers = [asker for waiting in self._loading.values() for asker in waiting]
        self._loading.clear()
        return askers

    def samples(self) -> Iterator[Sample]:
        self.counters.size_bytes = self.size_bytes
        self.counters.blocks = len(self)
        return self.counters.samples()

    def _store(self, block: Block, content: memoryview, now_ms: int) -> None:
        self.expire(now_ms)
        if block in self._present or not content:
            return
        self._present[block] = _Entry(content, now_ms)
        self.size_bytes += len(content) + CACHE_BLOCK_OVERHEAD_BYTES
        while self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._present)))
            self.counters.evictions += 1

    def _drop(self, block: Block) -> None:
        entry = self._present.pop(block)
        self.size_bytes -= len(entry.content) + CACHE_BLOCK_OVERHEAD_BYTES

    def _expired(self, entry: _Entry, now_ms: int) -> bool:
        return now_ms - entry.touched_ms >= self._lifespan_ms


LAGGING_WAITING_PER_WORKER: Final = 100
"""Requests of the cold path that may wait, per request that may run."""
RECENT_WAITING_PER_WORKER: Final = 100
"""Loads of the hot path that may wait, per load that may run."""
LAGGING_RANGE_BYTES_MAX: Final = 64 << 20
"""Span in bytes up to which ranges of one object are read as one range."""
CACHE_EXPIRY_CHECKS: Final = 4
"""Checks for expired blocks per lifespan of a block."""


class ObjectRange(NamedTuple):
    """A byte range of an object. `object_size_bytes` is -1 if it is unknown."""

    key: str
    start: int
    size_bytes: int
    object_size_bytes: int


class FetchCounters(Metrics, prefix="penstock_objects_"):
    """Metrics of both fetch paths.

    Inkless calls them RecentDataRequestRate, LaggingConsumerRequestRate,
    LaggingConsumerRejectedRate and LaggingRateLimitWaitTime.
    """

    recent_requests = counter(
        "recent_data_requests_total", "Requests of the hot path, for recent data, per object."
    )
    lagging_requests = counter(
        "lagging_consumer_requests_total",
        "Requests of the cold path, for old data, per object, including rejected ones.",
    )
    lagging_rejected = counter(
        "lagging_consumer_rejected_total",
        "Requests of the cold path rejected because its queue was full or the broker stopped.",
    )
    rate_limit_wait = histogram(
        "lagging_rate_limit_wait_seconds",
        "Time that requests of the cold path waited for the rate limit, 0 if they did not wait.",
    )


class FetchPaths:
    """The hot and the cold path of one broker. The caller owns the stores and closes them."""

    def __init__(
        self,
        settings: FetchSettings,
        *,
        hot: ObjectReader,
        cold: ObjectReader,
        clock: Clock,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        pause: Pause = pause,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._cache: BlockCache[Future] = BlockCache(
            block_bytes=settings.cache_block_bytes,
            bytes_max=settings.cache_bytes_max,
            lifespan_ms=settings.cache_lifespan_seconds * 1000,
        )
        rate = settings.lagging_rate_limit

        def path(
            store: ObjectReader, size: int, waiting: int, limit: TokenBucket | None
        ) -> StorePath:
            return StorePath(
                store,
                pool=Pool(running_max=size, waiting_max=size * waiting),
                rate_limit=limit,
                hedging=Hedging() if settings.hedging else None,
                timeout_ms=settings.request_timeout_ms,
                clock=clock,
                randomness=randomness,
                pause=pause,
            )

        self._hot = path(hot, settings.data_pool_size, RECENT_WAITING_PER_WORKER, None)
        self._cold = path(
            cold,
            settings.lagging_pool_size,
            LAGGING_WAITING_PER_WORKER,
            TokenBucket(rate, now=clock.monotonic()) if rate else None,
        )
        self._counters = FetchCounters()
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False

    async def fetch(
        self, ranges: Sequence[ObjectRange], *, newest_timestamp_ms: int
    ) -> list[memoryview | PenstockError]:
        """Read ranges; return the bytes or an error of each range, in their order.

        `newest_timestamp_ms`, the newest timestamp of all requested batches, selects the path.
        Errors of the store are not raised. Cancelling the call ends its requests on the cold path.
        Loads of blocks continue, for later callers.
        """
        now_ms = self._clock.now_ms()
        if self._settings.lagging(now_ms=now_ms, newest_timestamp_ms=newest_timestamp_ms):
            return await self._fetch_cold(ranges)
        return await self._fetch_hot(ranges)

    def cached(
        self, ranges: Sequence[ObjectRange], *, newest_timestamp_ms: int
    ) -> list[memoryview] | None:
        """Return the bytes of ranges that are all in the cache, else None, without waiting."""
        now_ms = self._clock.now_ms()
        if self._settings.lagging(now_ms=now_ms, newest_timestamp_ms=newest_timestamp_ms):
            return None
        monotonic_ms = self._monotonic_ms()
        for wanted in ranges:
            for block in self._cache.blocks(wanted.key, wanted.start, wanted.size_bytes):
                if self._cache.peek(block, monotonic_ms) is None:
                    return None
        answers = [self._assemble(wanted, self._ask(wanted)) for wanted in ranges]
        found = [answer for answer in answers if not isinstance(answer, PenstockError)]
        if len(found) < len(answers):
            return None
        self._counters.recent_requests += len({wanted.key for wanted in ranges})
        return found

    def keep(self, key: str, pieces: Sequence[Buffer]) -> None:
        if self._closed:
            return
        content = memoryview(b"".join(pieces))
        for cut, askers in self._cache.keep(key, content, self._monotonic_ms()):
            _answer(askers, cut)
        self._watch_expiry()

    async def close(self) -> None:
        """Stop all requests. Their callers get an error. Idempotent."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        closed = StoreClosed("the fetch paths are closed")
        _answer([job.future for job in await self._hot.close()], closed)
        for job in await self._cold.close():
            if not job.future.done():
                self._counters.lagging_rejected += 1
                job.future.set_result(LaggingConsumerRejected("the fetch paths are closing"))
        _answer(self._cache.clear(), closed)

    def samples(self) -> Iterator[Sample]:
        self._cache.expire(self._monotonic_ms())
        self._counters.rate_limit_wait = self._cold.rate_limit_seconds
        yield from self._counters.samples()
        yield from self._cache.samples()
        yield from self._hot.samples("hot")
        yield from self._cold.samples("cold")

    async def _fetch_hot(self, ranges: Sequence[ObjectRange]) -> list[Result]:
        self._counters.recent_requests += len({wanted.key for wanted in ranges})
        asked = [self._ask(wanted) for wanted in ranges]
        waiting = {part for parts in asked for part in parts if isinstance(part, asyncio.Future)}
        try:
            if waiting:
                await asyncio.wait(waiting)
        finally:
            for future in waiting:
                future.cancel()
        return [self._assemble(wanted, parts) for wanted, parts in zip(ranges, asked, strict=True)]

    def _ask(self, wanted: ObjectRange) -> list[Result | Future]:
        if self._closed:
            return [StoreClosed("the fetch paths are closed")]
        error = _range_error(wanted)
        if error is not None:
            return [error]
        loop = asyncio.get_running_loop()
        parts: list[Result | Future] = []
        for block in self._cache.blocks(wanted.key, wanted.start, wanted.size_bytes):
            future: Future = loop.create_future()
            found = self._cache.ask(block, future, self._monotonic_ms())
            if found is Pending.LOAD:
                self._load(block, wanted.object_size_bytes)
            parts.append(found if isinstance(found, memoryview) else future)
        return parts

    def _load(self, block: Block, object_size_bytes: int) -> None:
        start = block.number * self._cache.block_bytes
        size = self._cache.block_bytes
        if object_size_bytes >= 0:
            size = min(size, object_size_bytes - start)
        future = self._hot.submit(block.key, start, size, clamp=object_size_bytes < 0)
        if future is None:
            waiting = self._hot.pool.waiting
            error = StoreThrottled(f"{waiting} loads of recent data wait, which is the limit")
            _answer(self._cache.failed(block), error)
            return
        future.add_done_callback(lambda future: self._loaded(block, future.result()))

    def _loaded(self, block: Block, result: Result) -> None:
        if isinstance(result, PenstockError):
            _answer(self._cache.failed(block), result)
        elif not self._closed:
            _answer(self._cache.loaded(block, result, self._monotonic_ms()), result)
            self._watch_expiry()

    def _assemble(self, wanted: ObjectRange, parts: Sequence[Result | Future]) -> Result:
        contents: list[memoryview] = []
        for part in parts:
            result = part.result() if isinstance(part, asyncio.Future) else part
            if isinstance(result, PenstockError):
                return result
            contents.append(result)
        start = wanted.start % self._cache.block_bytes
        content = contents[0] if len(contents) == 1 else memoryview(b"".join(contents))
        cut = content[start : start + wanted.size_bytes]
        if len(cut) < wanted.size_bytes:
            end = wanted.start - start + len(content)
            return ObjectTruncated(wanted.key, wanted.start, wanted.size_bytes, end)
        return cut

    async def _fetch_cold(self, ranges: Sequence[ObjectRange]) -> list[Result]:
        answers: list[Result | None] = [_range_error(wanted) for wanted in ranges]
        waiting: list[tuple[_Span, Future]] = []
        for span in bounding(ranges, [n for n, answer in enumerate(answers) if answer is None]):
            self._counters.lagging_requests += 1
            future = self._cold.submit(span.key, span.start, span.end - span.start)
            if future is None:
                self._counters.lagging_rejected += 1
                error = self._rejection()
                for index in span.indexes:
                    answers[index] = error
            else:
                waiting.append((span, future))
        try:
            if waiting:
                await asyncio.wait([future for _, future in waiting])
        finally:
            for _, future in waiting:
                future.cancel()
        for span, future in waiting:
            result = future.result()
            for index in span.indexes:
                answers[index] = _cut(ranges[index], span, result)
        return [answer if answer is not None else _unanswered() for answer in answers]

    def _rejection(self) -> LaggingConsumerRejected:
        if self._closed:
            return LaggingConsumerRejected("the fetch paths are closing")
        pool = self._cold.pool
        return LaggingConsumerRejected(
            f"{pool.waiting} requests for old data wait, the limit is {pool.waiting_max}"
        )

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _watch_expiry(self) -> None:
        """Schedule expiry checks while the cache is not empty."""
        if self._expiry is None and len(self._cache) and not self._closed:
            seconds = self._settings.cache_lifespan_seconds / CACHE_EXPIRY_CHECKS
            self._expiry = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._cache.expire(self._monotonic_ms())
        self._watch_expiry()


class _Span(NamedTuple):
    """A bounding range [start, end) of one object, and the indexes of the ranges within it."""

    key: str
    start: int
    end: int
    indexes: list[int]


def bounding(ranges: Sequence[ObjectRange], indexes: Sequence[int]) -> Iterator[_Span]:
    """Yield bounding ranges per object, each of at most `LAGGING_RANGE_BYTES_MAX` if possible."""
    by_key: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for index in indexes:
        wanted = ranges[index]
        by_key[wanted.key].append((wanted.start, wanted.start + wanted.size_bytes, index))
    for key, items in by_key.items():
        items.sort()
        start, end, index = items[0]
        inside = [index]
        for next_start, next_end, index in items[1:]:
            if max(end, next_end) - start > LAGGING_RANGE_BYTES_MAX:
                yield _Span(key, start, end, inside)
                start, end, inside = next_start, next_end, [index]
            else:
                end = max(end, next_end)
                inside.append(index)
        yield _Span(key, start, end, inside)


def _range_error(wanted: ObjectRange) -> PenstockError | None:
    """Return the error of a range that cannot exist, or None."""
    key, start, size, object_size = wanted
    if start < 0 or size < 1:
        return InvalidRange(key, start, size)
    if 0 <= object_size < start + size:
        return ObjectTruncated(key, start, size, object_size)
    return None


def _cut(wanted: ObjectRange, span: _Span, result: Result) -> Result:
    if isinstance(result, PenstockError):
        return result
    start = wanted.start - span.start
    return result[start : start + wanted.size_bytes]


def _answer(askers: Sequence[Future], result: Result) -> None:
    for asker in askers:
        if not asker.done():
            asker.set_result(result)


def _unanswered() -> BugError:
    return BugError("a range of a request was not planned")
