"""The hot and the cold path: who is served from where, how many requests, what failures do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.base.errors import BugError
from penstock.base.metrics import Histogram
from penstock.objects import (
    Buffer,
    FetchPaths,
    FetchSettings,
    InvalidRange,
    LaggingConsumerRejected,
    ObjectNotFound,
    ObjectRange,
    ObjectTruncated,
    StoreClosed,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)
from penstock.objects.fetch_paths import (
    CACHE_BLOCK_OVERHEAD_BYTES,
    LAGGING_RANGE_BYTES_MAX,
    LAGGING_WAITING_PER_WORKER,
    bounding,
)
from penstock.objects.store_path import (
    GET_ATTEMPTS_MAX,
    GET_BACKOFF,
    HEDGE_DELAY_MIN_SECONDS,
    HEDGE_SAMPLES_MIN,
    HEDGE_SHARE,
    THROTTLED_PAUSES,
)
from tests.objects.fakes import Clock, Get, ScriptedStore, turns

BLOCK = 1 << 12
CONTENT = bytes(number % 251 for number in range(3 * BLOCK + 100))
OLD_MS = 0


class Paths:
    """Fetch paths over two scripted stores that hold the same objects."""

    def __init__(self, **settings: Any) -> None:
        self.hot, self.cold, self.clock = ScriptedStore(), ScriptedStore(), Clock()
        self.settings = FetchSettings(cache_block_bytes=BLOCK, **settings)
        self.paths = FetchPaths(
            self.settings,
            hot=self.hot,
            cold=self.cold,
            clock=self.clock,
            pause=self.clock.pause,
        )

    async def put(self, key: str, content: bytes = CONTENT) -> None:
        await self.hot.put(key, [content])
        await self.cold.put(key, [content])

    async def recent(self, *ranges: ObjectRange) -> list[Any]:
        return await self.paths.fetch(ranges, newest_timestamp_ms=self.clock.now_ms())

    async def lagging(self, *ranges: ObjectRange) -> list[Any]:
        return await self.paths.fetch(ranges, newest_timestamp_ms=OLD_MS)

    def metric(self, name: str, *labels: str) -> Any:
        found = [
            sample.value
            for sample in self.paths.samples()
            if sample.metric.name == f"penstock_objects_{name}" and sample.labels == labels
        ]
        assert len(found) == 1
        return found[0]


@pytest.fixture
async def paths() -> AsyncIterator[Paths]:
    made = Paths()
    await made.put("a")
    await made.put("b")
    yield made
    await made.paths.close()


def part(key: str, start: int, size: int, object_size: int = len(CONTENT)) -> ObjectRange:
    return ObjectRange(key, start, size, object_size)


async def test_recent_data_comes_in_blocks_and_once(paths: Paths) -> None:
    ranges = [part("a", 10, 20), part("a", BLOCK - 5, 10), part("b", 0, 1)]
    for _ in range(2):
        assert await paths.recent(*ranges) == [
            CONTENT[10:30],
            CONTENT[BLOCK - 5 : BLOCK + 5],
            CONTENT[:1],
        ]
    assert paths.hot.gets == [Get("a", 0, BLOCK), Get("a", BLOCK, BLOCK), Get("b", 0, BLOCK)]
    assert paths.cold.gets == []
    assert paths.metric("recent_data_requests_total") == 4
    assert paths.metric("lagging_consumer_requests_total") == 0
    assert paths.metric("cache_misses_total") == 3
    assert paths.metric("fetch_bytes_total", "hot") == 3 * BLOCK
    assert paths.metric("cache_bytes") == 3 * (BLOCK + CACHE_BLOCK_OVERHEAD_BYTES)


@pytest.mark.parametrize("known", [True, False])
async def test_the_last_block_ends_where_the_object_does(paths: Paths, known: bool) -> None:
    size = len(CONTENT) if known else -1
    wanted = part("a", 3 * BLOCK + 90, 10, size)
    asked = [paths.recent(wanted) for _ in range(5)]
    assert await asyncio.gather(*asked) == [[CONTENT[-10:]]] * 5
    assert paths.hot.gets == [Get("a", 3 * BLOCK, 100 if known else BLOCK)]
    across = part("a", BLOCK // 2, len(CONTENT) - BLOCK // 2, size)
    assert await paths.recent(across) == [CONTENT[BLOCK // 2 :]]
    assert len(paths.hot.gets) == 4


@pytest.mark.parametrize("size", [len(CONTENT), -1])
async def test_a_range_beyond_the_end_is_truncated_on_both_paths(paths: Paths, size: int) -> None:
    for start, length in [(len(CONTENT) - 1, 2), (len(CONTENT), 1), (9 * BLOCK, 1)]:
        wanted, good = part("a", start, length, size), part("b", 1, 2, size)
        for answers in (await paths.recent(wanted, good), await paths.lagging(wanted, good)):
            assert isinstance(answers[0], ObjectTruncated)
            assert answers[1] == CONTENT[1:3]


async def test_invalid_ranges_are_errors_on_both_paths(paths: Paths) -> None:
    wanted = [part("a", 0, 0), part("a", 0, 1), part("a", -1, 5)]
    for answers in (await paths.recent(*wanted), await paths.lagging(*wanted)):
        assert [type(answer) for answer in answers] == [InvalidRange, memoryview, InvalidRange]
    assert await paths.recent() == []
    assert await paths.lagging() == []


async def test_a_hundred_callers_share_one_load(paths: Paths) -> None:
    paths.hot.gate.clear()
    asked = [asyncio.ensure_future(paths.recent(part("a", at, 7))) for at in range(100)]
    await turns()
    assert paths.hot.gets == [Get("a", 0, BLOCK)]
    paths.hot.gate.set()
    assert await asyncio.gather(*asked) == [[CONTENT[at : at + 7]] for at in range(100)]
    assert len(paths.hot.gets) == 1
    assert (paths.metric("cache_misses_total"), paths.metric("cache_shared_loads_total")) == (1, 99)


async def test_a_hundred_callers_share_one_failure_and_the_next_load_is_new(paths: Paths) -> None:
    paths.hot.fail = lambda _number, _get: StoreRefused("no")
    paths.hot.gate.clear()
    asked = [asyncio.ensure_future(paths.recent(part("a", at, 7))) for at in range(100)]
    await turns()
    paths.hot.gate.set()
    for (answer,) in await asyncio.gather(*asked):
        assert isinstance(answer, StoreRefused)
    assert len(paths.hot.gets) == 1
    paths.hot.fail = lambda _number, _get: None
    assert await paths.recent(part("a", 0, 7)) == [CONTENT[:7]]


async def test_a_cancelled_asker_leaves_the_load_to_the_others(paths: Paths) -> None:
    paths.hot.gate.clear()
    asked = [asyncio.ensure_future(paths.recent(part("a", 0, 7))) for _ in range(3)]
    await turns()
    asked[0].cancel()
    await turns()
    paths.hot.gate.set()
    assert await asyncio.gather(*asked[1:]) == [[CONTENT[:7]]] * 2
    assert asked[0].cancelled()
    assert len(paths.hot.gets) == 1


async def test_a_load_without_askers_fills_the_cache(paths: Paths) -> None:
    paths.hot.gate.clear()
    asked = asyncio.ensure_future(paths.recent(part("a", 0, 7)))
    await turns()
    asked.cancel()
    await turns()
    paths.hot.gate.set()
    await turns()
    assert paths.paths.cached([part("a", 0, 7)], newest_timestamp_ms=paths.clock.now_ms())


async def test_bytes_just_written_are_not_read_again(paths: Paths) -> None:
    written = bytearray(CONTENT)
    view = memoryview(written)
    pieces: list[Buffer] = [view[:5], view[5 : BLOCK + 9], b"tail"]
    expected = CONTENT[: BLOCK + 9] + b"tail"
    paths.paths.keep("new", pieces)
    written[:] = bytes(len(written))
    size = len(expected)
    wanted = [part("new", 0, size, size), part("new", BLOCK + 8, 5, size)]
    assert await paths.recent(*wanted) == [expected, expected[BLOCK + 8 :]]
    now_ms = paths.clock.now_ms()
    assert paths.paths.cached(wanted, newest_timestamp_ms=now_ms) == await paths.recent(*wanted)
    assert paths.hot.gets == []


async def test_a_kept_object_answers_a_running_load(paths: Paths) -> None:
    paths.hot.gate.clear()
    asked = asyncio.ensure_future(paths.recent(part("a", 0, 7)))
    await turns()
    paths.paths.keep("a", [CONTENT])
    assert await asked == [CONTENT[:7]]
    paths.hot.gate.set()
    await turns()
    assert paths.metric("cache_blocks") == 4


async def test_cached_answers_whole_requests_only(paths: Paths) -> None:
    await paths.recent(part("a", 0, 7))
    now_ms = paths.clock.now_ms()
    there, absent = part("a", 1, 2), part("b", 1, 2)
    found = paths.paths.cached([there], newest_timestamp_ms=now_ms)
    assert found is not None
    assert b"".join(found) == CONTENT[1:3]
    assert paths.paths.cached([there, absent], newest_timestamp_ms=now_ms) is None
    assert paths.paths.cached([there], newest_timestamp_ms=OLD_MS) is None
    assert paths.paths.cached([part("a", 1, 9, 5)], newest_timestamp_ms=now_ms) is None
    assert len(paths.hot.gets) == 1
    assert paths.metric("cache_hits_total") == 1


async def test_blocks_expire_after_the_lifespan(paths: Paths) -> None:
    await paths.recent(part("a", 0, 7))
    paths.clock.seconds += 59.9
    await paths.recent(part("a", 0, 7))
    paths.clock.seconds += 59.9
    await paths.recent(part("a", 0, 7))
    assert len(paths.hot.gets) == 1
    paths.clock.seconds += 60
    assert paths.metric("cache_bytes") == 0
    await paths.recent(part("a", 0, 7))
    assert len(paths.hot.gets) == 2
    assert paths.metric("cache_expirations_total") == 1


async def test_old_data_bypasses_the_cache_and_never_fills_it(paths: Paths) -> None:
    await paths.recent(part("a", 0, 7))
    size_bytes, hits = paths.metric("cache_bytes"), paths.metric("cache_hits_total")
    for _ in range(3):
        assert await paths.lagging(part("a", 0, 7), part("b", 5, 5)) == [CONTENT[:7], CONTENT[5:10]]
    assert paths.cold.gets == [Get("a", 0, 7), Get("b", 5, 5)] * 3
    assert len(paths.hot.gets) == 1
    assert paths.metric("cache_bytes") == size_bytes
    assert paths.metric("cache_hits_total") == hits
    assert paths.metric("cache_misses_total") == 1
    assert paths.metric("lagging_consumer_requests_total") == 6
    assert paths.metric("recent_data_requests_total") == 1


async def test_one_bounding_range_per_object(paths: Paths) -> None:
    wanted = [part("a", 500, 10), part("b", 3, 4), part("a", 20, 10), part("a", 505, 10)]
    answers = await paths.lagging(*wanted)
    assert answers == [CONTENT[item.start : item.start + item.size_bytes] for item in wanted]
    assert paths.cold.gets == [Get("a", 20, 495), Get("b", 3, 4)]


def test_a_bounding_range_has_a_bound() -> None:
    far = LAGGING_RANGE_BYTES_MAX
    ranges = [part("a", far, 10, -1), part("a", 0, 10, -1), part("a", far - 10, 10, -1)]
    spans = [(span.start, span.end, span.indexes) for span in bounding(ranges, range(3))]
    assert spans == [(0, far, [1, 2]), (far, far + 10, [0])]
    alone = [part("a", 0, 2 * far, -1)]
    assert [span.end for span in bounding(alone, [0])] == [2 * far]


async def test_a_clock_that_runs_ahead_is_recent(paths: Paths) -> None:
    ahead = paths.clock.now_ms() + 10_000_000
    await paths.paths.fetch([part("a", 0, 1)], newest_timestamp_ms=ahead)
    assert (len(paths.hot.gets), len(paths.cold.gets)) == (1, 0)


async def test_without_a_lagging_pool_all_is_recent() -> None:
    paths = Paths(lagging_pool_size=0)
    await paths.put("a")
    assert await paths.lagging(part("a", 0, 7)) == [CONTENT[:7]]
    assert (len(paths.hot.gets), len(paths.cold.gets)) == (1, 0)
    await paths.paths.close()


async def test_a_full_queue_rejects_at_once() -> None:
    paths = Paths(lagging_pool_size=2, hedging=False)
    await paths.put("a")
    paths.cold.gate.clear()
    room = 2 + 2 * LAGGING_WAITING_PER_WORKER
    asked = [asyncio.ensure_future(paths.lagging(part("a", 0, 7))) for _ in range(room)]
    await turns()
    assert paths.cold.running == 2
    assert paths.metric("fetch_waiting", "cold") == room - 2
    (answer,) = await asyncio.wait_for(paths.lagging(part("a", 0, 7)), 60)
    assert isinstance(answer, LaggingConsumerRejected)
    assert "200 requests for old data wait, the limit is 200" in str(answer)
    assert paths.metric("lagging_consumer_rejected_total") == 1
    paths.cold.gate.set()
    assert await asyncio.gather(*asked) == [[CONTENT[:7]]] * room
    assert paths.cold.running_most == 2
    assert await paths.lagging(part("a", 0, 7)) == [CONTENT[:7]]
    assert paths.metric("lagging_consumer_requests_total") == room + 2
    await paths.paths.close()


async def test_a_flood_of_old_data_does_not_touch_recent_data() -> None:
    """Counted, not timed: recent data is answered while the cold path is full and hangs."""
    paths = Paths()
    await paths.put("a")
    paths.cold.gate.clear()
    flood = [asyncio.ensure_future(paths.lagging(part("a", 0, 7))) for _ in range(3000)]
    await turns()
    assert paths.cold.running == 16
    for at in range(100):
        assert await asyncio.wait_for(paths.recent(part("a", at, 7)), 60) == [CONTENT[at : at + 7]]
    assert len(paths.hot.gets) == 1
    rejected = [task.result()[0] for task in flood if task.done()]
    assert len(rejected) == 3000 - 16 - 1600
    assert all(isinstance(answer, LaggingConsumerRejected) for answer in rejected)
    paths.cold.gate.set()
    answered = await asyncio.gather(*flood)
    assert sum(answer == [CONTENT[:7]] for answer in answered) == 1616
    await paths.paths.close()


async def test_recent_loads_keep_to_their_pool() -> None:
    paths = Paths(data_pool_size=3, hedging=False)
    names = [f"object-{number}" for number in range(3 + 300 + 1)]
    for name in names:
        await paths.put(name, b"1234567")
    paths.hot.gate.clear()
    asked = [asyncio.ensure_future(paths.recent(part(name, 0, 7, 7))) for name in names]
    await turns()
    assert paths.hot.running == 3
    assert isinstance((await asked[-1])[0], StoreThrottled)
    paths.hot.gate.set()
    assert await asyncio.gather(*asked[:-1]) == [[b"1234567"]] * 303
    assert paths.hot.running_most == 3
    assert await paths.recent(part(names[-1], 0, 7, 7)) == [b"1234567"]
    await paths.paths.close()


async def test_the_rate_limit_counts_waits_and_those_of_zero() -> None:
    paths = Paths(lagging_rate_limit=10, lagging_pool_size=1)
    await paths.put("a")
    for _ in range(30):
        assert await paths.lagging(part("a", 0, 7)) == [CONTENT[:7]]
    waits: Histogram = paths.metric("lagging_rate_limit_wait_seconds")
    assert sum(waits.counts) == 30
    assert waits.counts[0] == 10
    assert waits.total == pytest.approx(sum(paths.clock.pauses)) == pytest.approx(2.0)
    await paths.recent(part("a", 0, 7))
    assert sum(waits.counts) == 30
    await paths.paths.close()


async def test_without_a_rate_limit_nothing_waits() -> None:
    paths = Paths(lagging_rate_limit=0, hedging=False)
    await paths.put("a")
    for _ in range(500):
        await paths.lagging(part("a", 0, 7))
    assert paths.clock.pauses == []
    assert sum(paths.metric("lagging_rate_limit_wait_seconds").counts) == 0
    await paths.paths.close()


async def test_one_failure_leaves_the_other_ranges(paths: Paths) -> None:
    def fail(_number: int, get: Get) -> BaseException | None:
        return StoreRefused("no") if get.key == "b" or get.start == BLOCK else None

    paths.hot.fail = paths.cold.fail = fail
    wanted = [part("a", 0, 5), part("b", 0, 5), part("a", BLOCK, 5), part("a", 5, 5)]
    answers = await paths.recent(*wanted)
    kinds = [type(answer) for answer in answers]
    assert kinds == [memoryview, StoreRefused, StoreRefused, memoryview]
    assert [answers[0], answers[3]] == [CONTENT[:5], CONTENT[5:10]]
    gone = part("never", 0, 5, -1)
    answers = await paths.lagging(part("a", 0, 5), part("b", 0, 5), gone, part("a", 5, 5))
    kinds = [type(answer) for answer in answers]
    assert kinds == [memoryview, StoreRefused, ObjectNotFound, memoryview]
    assert paths.metric("fetch_failures_total", "cold") == 2
    assert isinstance((await paths.recent(gone))[0], ObjectNotFound)


async def test_a_range_over_blocks_fails_with_any_of_them(paths: Paths) -> None:
    paths.hot.fail = lambda _number, get: StoreRefused("no") if get.start == BLOCK else None
    answers = await paths.recent(part("a", 0, 3 * BLOCK))
    assert isinstance(answers[0], StoreRefused)
    assert await paths.recent(part("a", 2 * BLOCK, 5)) == [CONTENT[2 * BLOCK : 2 * BLOCK + 5]]


async def test_reads_that_are_not_answered_are_tried_again_thrice_at_most(paths: Paths) -> None:
    paths.hot.fail = lambda number, _get: StoreUnavailable("5xx") if number < 2 else None
    assert await paths.recent(part("a", 0, 7)) == [CONTENT[:7]]
    assert len(paths.hot.gets) == 3
    first, second = paths.clock.pauses
    ceiling = GET_BACKOFF.pause_seconds(1)
    assert ceiling / 2 <= first <= ceiling
    assert ceiling <= second <= 2 * ceiling
    assert paths.metric("fetch_retries_total", "hot") == 2
    paths.cold.fail = lambda _number, _get: StoreThrottled("SlowDown")
    (answer,) = await paths.lagging(part("a", 0, 7))
    assert isinstance(answer, StoreThrottled)
    assert len(paths.cold.gets) == GET_ATTEMPTS_MAX
    assert paths.clock.pauses[2] >= ceiling / 2 * THROTTLED_PAUSES
    assert sum(paths.metric("lagging_rate_limit_wait_seconds").counts) == GET_ATTEMPTS_MAX


@pytest.mark.parametrize("error", [StoreRefused("no"), ObjectTruncated("a", 0, 7, 1)])
async def test_other_errors_are_not_tried_again(paths: Paths, error: Exception) -> None:
    paths.hot.fail = paths.cold.fail = lambda _number, _get: error
    assert await paths.recent(part("a", 0, 7)) == [error]
    assert await paths.lagging(part("a", 0, 7)) == [error]
    assert (len(paths.hot.gets), len(paths.cold.gets)) == (1, 1)


async def test_a_store_that_breaks_its_contract_is_an_answer(paths: Paths) -> None:
    paths.hot.fail = paths.cold.fail = lambda _number, _get: ZeroDivisionError("oops")
    for answers in (await paths.recent(part("a", 0, 7)), await paths.lagging(part("a", 0, 7))):
        assert isinstance(answers[0], BugError)
        assert "ZeroDivisionError" in str(answers[0])


async def test_reads_that_hang_time_out(paths: Paths) -> None:
    hanging = Paths(request_timeout_ms=20)
    hanging.cold.gate.clear()
    hanging.hot.gate.clear()
    for answers in (await hanging.recent(part("a", 0, 7)), await hanging.lagging(part("a", 0, 7))):
        assert isinstance(answers[0], StoreUnavailable)
        assert "no answer within 0.02 s" in str(answers[0])
    assert hanging.cold.cancelled == hanging.hot.cancelled == GET_ATTEMPTS_MAX
    assert (hanging.cold.running, hanging.hot.running) == (0, 0)
    await hanging.paths.close()


async def test_a_cancelled_lagging_fetch_ends_its_requests(paths: Paths) -> None:
    lonely = Paths(lagging_pool_size=1)
    await lonely.put("a")
    lonely.cold.gate.clear()
    running = asyncio.ensure_future(lonely.lagging(part("a", 0, 7)))
    waiting = asyncio.ensure_future(lonely.lagging(part("a", 1, 7)))
    last = asyncio.ensure_future(lonely.lagging(part("a", 2, 7)))
    await turns()
    waiting.cancel()
    await turns()
    running.cancel()
    await turns()
    assert lonely.cold.cancelled == 1
    lonely.cold.gate.set()
    assert await last == [CONTENT[2:9]]
    assert [get.start for get in lonely.cold.gets] == [0, 2]
    assert lonely.metric("fetch_running", "cold") == 0
    await lonely.paths.close()


async def test_closing_fails_all_waiting_requests(paths: Paths) -> None:
    busy = Paths(lagging_pool_size=1, data_pool_size=1)
    for key in "ab":
        await busy.put(key)
    busy.hot.gate.clear()
    busy.cold.gate.clear()
    recent = [asyncio.ensure_future(busy.recent(part(key, 0, 7))) for key in "ab"]
    lagging = [asyncio.ensure_future(busy.lagging(part(key, 0, 7))) for key in "ab"]
    await turns()
    await asyncio.wait_for(busy.paths.close(), 60)
    assert [type(answer) for (answer,) in await asyncio.gather(*recent)] == [StoreClosed] * 2
    kinds = [type(answer) for (answer,) in await asyncio.gather(*lagging)]
    assert kinds == [StoreClosed, LaggingConsumerRejected]
    assert (busy.hot.running, busy.cold.running) == (0, 0)
    assert isinstance((await busy.recent(part("a", 0, 7)))[0], StoreClosed)
    assert isinstance((await busy.lagging(part("a", 0, 7)))[0], LaggingConsumerRejected)
    assert busy.metric("lagging_consumer_rejected_total") == 2
    assert busy.metric("cache_blocks") == 0
    busy.paths.keep("new", [b"1"])
    assert busy.metric("cache_blocks") == 0
    await busy.paths.close()


async def prepared_for_hedging(paths: Paths) -> None:
    """Enough reads for a percentile; the fast ones make it the least there is."""
    for _ in range(HEDGE_SAMPLES_MIN):
        await paths.lagging(part("a", 0, 1))
    paths.cold.gets.clear()
    paths.clock.pauses.clear()


async def test_a_slow_read_is_made_a_second_time(paths: Paths) -> None:
    await prepared_for_hedging(paths)
    paths.cold.gates[0] = asyncio.Event()
    assert await paths.lagging(part("a", 0, 7)) == [CONTENT[:7]]
    assert paths.cold.gets == [Get("a", 0, 7)] * 2
    assert paths.clock.pauses == [HEDGE_DELAY_MIN_SECONDS]
    assert paths.cold.cancelled == 1
    assert paths.metric("fetch_hedges_total", "cold") == 1
    assert paths.metric("fetch_hedges_won_total", "cold") == 1
    waits = sum(paths.metric("lagging_rate_limit_wait_seconds").counts)
    assert waits == paths.metric("lagging_consumer_requests_total") == HEDGE_SAMPLES_MIN + 1


async def test_a_failed_second_read_leaves_the_first(paths: Paths) -> None:
    await prepared_for_hedging(paths)
    gate = paths.cold.gates[0] = asyncio.Event()
    paths.cold.fail = lambda number, _get: StoreUnavailable("5xx") if number == 1 else None
    asked = asyncio.ensure_future(paths.lagging(part("a", 0, 7)))
    await turns()
    assert len(paths.cold.gets) == 2
    gate.set()
    assert await asked == [CONTENT[:7]]
    assert paths.metric("fetch_hedges_total", "cold") == 1
    assert paths.metric("fetch_hedges_won_total", "cold") == 0
    assert paths.metric("fetch_retries_total", "cold") == 0


async def test_two_failed_reads_are_one_failed_attempt(paths: Paths) -> None:
    await prepared_for_hedging(paths)
    gate = paths.cold.gates[0] = paths.cold.gates[1] = asyncio.Event()
    paths.cold.fail = lambda number, _get: StoreUnavailable("5xx") if number < 2 else None
    asked = asyncio.ensure_future(paths.lagging(part("a", 0, 7)))
    await turns()
    gate.set()
    assert await asked == [CONTENT[:7]]
    assert len(paths.cold.gets) == 3
    assert paths.metric("fetch_retries_total", "cold") == 1


async def test_hedges_are_few_when_all_reads_are_slow(paths: Paths) -> None:
    await prepared_for_hedging(paths)
    paths.cold.gate.clear()
    asked = [asyncio.ensure_future(paths.lagging(part("a", 0, 7))) for _ in range(16)]
    await turns()
    hedges = paths.metric("fetch_hedges_total", "cold")
    assert 1 <= hedges <= 1 + HEDGE_SAMPLES_MIN * HEDGE_SHARE
    assert len(paths.cold.gets) == 16 + hedges
    paths.cold.gate.set()
    assert await asyncio.gather(*asked) == [[CONTENT[:7]]] * 16


async def test_hedging_can_be_turned_off() -> None:
    paths = Paths(hedging=False)
    await paths.put("a")
    await prepared_for_hedging(paths)
    gate = paths.cold.gates[0] = asyncio.Event()
    asked = asyncio.ensure_future(paths.lagging(part("a", 0, 7)))
    await turns()
    assert len(paths.cold.gets) == 1
    gate.set()
    assert await asked == [CONTENT[:7]]
    await paths.paths.close()
