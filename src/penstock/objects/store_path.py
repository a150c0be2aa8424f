"""Requests of one fetch path to its store: limited, retried, hedged and counted.

A hedge is a second, identical request if the first one is slow; the first response wins. `Pool`,
`TokenBucket` and `Hedging` decide which requests may start, and `StorePath` sends them.

A result is bytes or an error as a value, so that one failed request does not fail the others of its
call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.base.errors import BugError, PenstockError
from penstock.base.metrics import Histogram, Metrics, Sample, counter, gauge, histogram
from penstock.base.retry import Backoff
from penstock.base.system import Clock, Randomness
from penstock.objects.port import (
    ObjectReader,
    ObjectTruncated,
    StoreClosed,
    StoreThrottled,
    StoreUnavailable,
)
from penstock.objects.rate_limit import TokenBucket
from penstock.objects.threads import CLOSE_TIMEOUT_SECONDS

# Hedging: repeats a request that is slower than the 99th percentile, within a budget.
#
# The percentile is computed from the latest requests, so that it follows the store's latency. The
# budget limits hedges to a share of the requests. While the store is slow as a whole, hedges would
# only make it slower.
#
# Source: Dean and Barroso, "The Tail at Scale" (2013), hedged requests.


HEDGE_WINDOW: Final = 512
"""Latest latencies from which the percentile is computed."""
HEDGE_SAMPLES_MIN: Final = 64
"""Latencies that must be known before a request is hedged."""
HEDGE_REFRESH: Final = 32
"""New latencies after which the percentile is computed again."""
HEDGE_PERCENTILE: Final = 0.99
HEDGE_DELAY_MIN_SECONDS: Final = 0.02
"""Minimum age of a request that is hedged. Hedging a younger one would not be faster."""
HEDGE_SHARE: Final = 0.05
"""Hedges per request that the budget allows in the long run."""
HEDGES_SAVED_MAX: Final = 8.0
"""Hedges that the budget may save for a burst."""


class Hedging:
    """Decision when a request of one fetch path gets a hedge.

    The delay comes from recent latencies, and a budget limits the share of hedged requests.
    """

    __slots__ = ("_budget", "_delay", "_fresh", "_latencies")

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=HEDGE_WINDOW)
        self._fresh = 0
        self._delay: float | None = None
        self._budget = 1.0

    @property
    def delay(self) -> float | None:
        """Seconds after which a request is slow, or None before enough latencies are known."""
        return self._delay

    def observe(self, seconds: float) -> None:
        """Record the latency of a response, and add `HEDGE_SHARE` of a hedge to the budget."""
        self._latencies.append(seconds)
        self._budget = min(HEDGES_SAVED_MAX, self._budget + HEDGE_SHARE)
        self._fresh += 1
        known = len(self._latencies)
        if known < HEDGE_SAMPLES_MIN:
            return
        if self._delay is None or self._fresh >= HEDGE_REFRESH:
            self._fresh = 0
            ordered = sorted(self._latencies)
            slow = ordered[min(known - 1, int(known * HEDGE_PERCENTILE))]
            self._delay = max(HEDGE_DELAY_MIN_SECONDS, slow)

    def spend(self) -> bool:
        """Take one hedge from the budget; return False if the budget is used up."""
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True


J = TypeVar("J")


class Admission(Enum):
    """Decision of a pool about a job: start it now, let it wait, or reject it."""

    START = auto()
    WAIT = auto()
    REJECT = auto()


class Pool(Generic[J]):
    """A pool that lets `running_max` jobs run and `waiting_max` jobs wait, and rejects others."""

    __slots__ = ("_running", "_running_max", "_waiting", "_waiting_max")

    def __init__(self, *, running_max: int, waiting_max: int) -> None:
        self._running_max = running_max
        self._waiting_max = waiting_max
        self._running = 0
        self._waiting: deque[J] = deque()

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def waiting_max(self) -> int:
        return self._waiting_max

    def offer(self, job: J) -> Admission:
        """Offer a job; return whether the caller starts it now, later or never.

        A waiting job is started when `finish` returns it.
        """
        if self._running < self._running_max:
            self._running += 1
            return Admission.START
        if len(self._waiting) >= self._waiting_max:
            return Admission.REJECT
        self._waiting.append(job)
        return Admission.WAIT

    def finish(self) -> J | None:
        """Record the end of a job; return the next waiting job to start, or None."""
        if self._waiting:
            return self._waiting.popleft()
        self._running -= 1
        return None

    def drain(self) -> list[J]:
        jobs = list(self._waiting)
        self._waiting.clear()
        return jobs


GET_ATTEMPTS_MAX: Final = 3
"""Attempts to read a range."""
GET_BACKOFF: Final = Backoff(first_ms=50, steady=0.5)
THROTTLED_PAUSES: Final = 4
"""Factor by which the pause is longer after a throttled request."""

Pause = Callable[[float], Awaitable[None]]
Result = memoryview | PenstockError
Future = asyncio.Future[Result]


class PathCounters(Metrics, prefix="penstock_objects_fetch_", labels=("path",)):
    seconds = histogram("seconds", "Latency of successful requests, including retries and pauses.")
    read_bytes = counter("bytes_total", "Bytes read from the store.")
    failures = counter("failures_total", "Requests that failed.")
    retries = counter("retries_total", "Repeated attempts of requests.")
    hedges = counter("hedges_total", "Slow requests that were sent a second time.")
    hedges_won = counter("hedges_won_total", "Slow requests whose second response came first.")
    running = gauge("running", "Requests that are running.")
    waiting = gauge("waiting", "Requests that wait in the pool.")


class Job(NamedTuple):
    """A range to read. With `clamp`, the range may end before `size_bytes`, at the object's end."""

    key: str
    start: int
    size_bytes: int
    clamp: bool
    future: Future


class StorePath:
    """The store client, pool and metrics of one fetch path."""

    def __init__(
        self,
        store: ObjectReader,
        *,
        pool: Pool[Job],
        rate_limit: TokenBucket | None,
        hedging: Hedging | None,
        timeout_ms: int,
        clock: Clock,
        randomness: Randomness,
        pause: Pause,
    ) -> None:
        self.counters = PathCounters()
        self.rate_limit_seconds = Histogram()
        self.pool = pool
        self._store = store
        self._rate_limit = rate_limit
        self._hedging = hedging
        self._timeout_seconds = timeout_ms / 1000
        self._clock = clock
        self._randomness = randomness
        self._pause = pause
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def submit(
        self, key: str, start: int, size_bytes: int, *, clamp: bool = False
    ) -> Future | None:
        """Submit a read; return the future of its result, or None if the queue is full.

        Cancelling the future ends the read.
        """
        if self._closed:
            return None
        future: Future = asyncio.get_running_loop().create_future()
        job = Job(key, start, size_bytes, clamp, future)
        admission = self.pool.offer(job)
        if admission is Admission.REJECT:
            return None
        if admission is Admission.START:
            self._start(job)
        return future

    async def close(self) -> list[Job]:
        """End running requests with StoreClosed; return the jobs that had not started."""
        self._closed = True
        waiting = self.pool.drain()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_SECONDS)
        return waiting

    def samples(self, name: str) -> Iterator[Sample]:
        self.counters.running, self.counters.waiting = self.pool.running, self.pool.waiting
        return self.counters.samples(name)

    def _start(self, job: Job) -> None:
        task = asyncio.get_running_loop().create_task(self._run(job))
        self._tasks.add(task)
        job.future.add_done_callback(lambda future: task.cancel() if future.cancelled() else None)
        task.add_done_callback(lambda task: self._ended(task, job))

    def _ended(self, task: asyncio.Task[None], job: Job) -> None:
        self._tasks.discard(task)
        if not job.future.done():
            job.future.set_result(StoreClosed("the fetch paths are closed"))
        following = self.pool.finish()
        while following is not None and following.future.cancelled():
            following = self.pool.finish()
        if following is not None:
            self._start(following)

    async def _run(self, job: Job) -> None:
        began = self._clock.monotonic()
        try:
            result: Result = await self._read(job)
        except PenstockError as error:
            result = error
        except Exception as error:
            result = BugError(f"reading {job.key} failed with {error!r}")
        if isinstance(result, PenstockError):
            self.counters.failures += 1
        else:
            self.counters.read_bytes += len(result)
            self.counters.seconds.observe(self._clock.monotonic() - began)
        if not job.future.done():
            job.future.set_result(result)

    async def _read(self, job: Job) -> memoryview:
        for attempt in range(1, GET_ATTEMPTS_MAX + 1):
            await self._limit()
            try:
                return await self._attempt(job)
            except StoreUnavailable as error:
                if attempt == GET_ATTEMPTS_MAX:
                    raise
                self.counters.retries += 1
                await self._pause(self._backoff(attempt, error))
        raise BugError(f"all attempts to read {job.key} ended without a result or an error")

    async def _limit(self) -> None:
        if self._rate_limit is None:
            return
        wait = self._rate_limit.take(self._clock.monotonic())
        self.rate_limit_seconds.observe(wait)
        if wait > 0.0:
            await self._pause(wait)

    def _backoff(self, attempt: int, error: StoreUnavailable) -> float:
        chance = self._randomness.uniform()
        seconds = GET_BACKOFF.pause_seconds(attempt, chance=chance)
        return seconds * THROTTLED_PAUSES if isinstance(error, StoreThrottled) else seconds

    async def _attempt(self, job: Job) -> memoryview:
        began = self._clock.monotonic()
        content = await self._hedged(lambda: self._get(job))
        if self._hedging is not None:
            self._hedging.observe(self._clock.monotonic() - began)
        return content

    async def _get(self, job: Job) -> memoryview:
        try:
            async with _deadline(self._timeout_seconds, job.key):
                return await self._store.get(job.key, job.start, job.size_bytes)
        except ObjectTruncated as error:
            if job.clamp and error.content is not None:
                return error.content
            raise

    async def _hedged(self, get: Callable[[], Awaitable[memoryview]]) -> memoryview:
        delay = self._hedging.delay if self._hedging is not None else None
        if self._hedging is None or delay is None:
            return await get()
        first = asyncio.ensure_future(get())
        timer = asyncio.ensure_future(self._pause(delay))
        tasks: set[asyncio.Future[memoryview]] = {first}
        try:
            await asyncio.wait({first, timer}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done() and self._hedging.spend():
                self.counters.hedges += 1
                tasks.add(asyncio.ensure_future(get()))
            answered = await _first_success(tasks)
            self.counters.hedges_won += answered is not first
            return answered.result()
        finally:
            await _cancel(timer, *tasks)


async def _first_success(
    tasks: set[asyncio.Future[memoryview]],
) -> asyncio.Future[memoryview]:
    pending = set(tasks)
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None:
                return task
        if not pending:
            return done.pop()


async def _cancel(*tasks: asyncio.Future[memoryview] | asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # Retrieved to avoid a warning; another result counts.


class _deadline:  # noqa: N801  (reads as the statement that it is)
    """`asyncio.timeout` that raises `StoreUnavailable`."""

    def __init__(self, seconds: float, key: str) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._seconds = seconds
        self._key = key

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self._timeout.__aexit__(*exception)  # type: ignore[arg-type]
        except TimeoutError as error:
            raise StoreUnavailable(
                f"object {self._key}: no answer within {self._seconds:g} s"
            ) from error
