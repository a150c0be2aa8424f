"""A remote store and the fetch paths over it, before a real S3 server and a faulty network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.objects import (
    FetchPaths,
    FetchSettings,
    ObjectExists,
    ObjectNotFound,
    ObjectRange,
    ObjectStore,
    StoreClosed,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
    open_store,
)
from tests.proxy import Fault, FaultProxy, Plan, Request, first, share, through
from tests.s3 import S3Server

CONTENT = bytes(number % 251 for number in range(1 << 20))


class Remote:
    """Store with two clients: one straight to the server, one through the proxy."""

    def __init__(self, server: S3Server, proxy: FaultProxy, timeout_ms: int) -> None:
        self.proxy = proxy
        url = server.fresh_url()
        self.path = url.removeprefix("s3://")
        self.straight = open_store(url, options=server.options())
        self.through = open_store(
            url, options=server.options(proxy.endpoint), request_timeout_ms=timeout_ms
        )

    async def keys(self) -> list[str]:
        return [info.key async for info in self.straight.list("")]


@asynccontextmanager
async def remote(server: S3Server, *, timeout_ms: int = 10_000) -> AsyncIterator[Remote]:
    async with FaultProxy("127.0.0.1", server.port) as proxy:
        pair = Remote(server, proxy, timeout_ms)
        try:
            yield pair
        finally:
            await pair.through.close()
            await pair.straight.close()


async def every_call(store: ObjectStore) -> list[BaseException | Any]:
    """Return the outcome of each kind of call."""
    calls: list[Callable[[], Any]] = [
        lambda: store.put("new", [b"1"]),
        lambda: store.get("a", 0, 5),
        lambda: store.head("a"),
        lambda: store.delete(["other"]),
        lambda: anext(aiter(store.list(""))),
    ]
    return [
        (await asyncio.gather(asyncio.ensure_future(_awaited(call)), return_exceptions=True))[0]
        for call in calls
    ]


async def _awaited(call: Callable[[], Any]) -> Any:
    return await call()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(status=503), StoreThrottled),
        (Fault(status=429, code="TooManyRequests"), StoreThrottled),
        (Fault(status=500, code="InternalError"), StoreUnavailable),
        (Fault(status=502, code="BadGateway"), StoreUnavailable),
        (Fault(status=403, code="AccessDenied"), StoreRefused),
        (Fault(status=401, code="Unauthorized"), StoreRefused),
        (Fault(status=400, code="InvalidRequest"), StoreRefused),
        (Fault(reset=True), StoreUnavailable),
        (Fault(drop_answer=True), StoreUnavailable),
        (Fault(latency_seconds=600.0), StoreUnavailable),
    ],
    ids=["503", "429", "500", "502", "403", "401", "400", "reset", "lost", "late"],
)
async def test_responses_map_to_errors(
    s3: S3Server, fault: Fault, expected: type[PenstockError]
) -> None:
    async with remote(s3, timeout_ms=200 if fault.latency_seconds else 20_000) as pair:
        await pair.straight.put("a", [CONTENT[:10]])
        pair.proxy.plan = lambda _request: fault
        for outcome in await every_call(pair.through):
            assert type(outcome) is expected, outcome
            assert "s3://penstock/" in str(outcome)
            assert "penstock-secret" not in str(outcome)
        # One request per call, none repeated under our feet; late ones may not have come yet.
        assert pair.proxy.count() == 5 or (fault.latency_seconds and pair.proxy.count() < 5)
        pair.proxy.plan = through
        assert await pair.keys() in (["a"], ["a", "new"])


async def test_a_put_whose_answer_is_lost_has_taken_effect(s3: S3Server) -> None:
    async with remote(s3) as pair:
        pair.proxy.plan = first(1, Fault(drop_answer=True))
        with pytest.raises(StoreUnavailable):
            await pair.through.put("a", [CONTENT])
        assert bytes(await pair.straight.get("a", 0, len(CONTENT))) == CONTENT
        with pytest.raises(ObjectExists):
            await pair.through.put("a", [CONTENT])
        await pair.through.put("b", [CONTENT])
        assert await pair.keys() == ["a", "b"]


@pytest.mark.parametrize(("status", "code"), [(412, "PreconditionFailed"), (409, "Conflict")])
async def test_a_put_that_another_precedes(s3: S3Server, status: int, code: str) -> None:
    async with remote(s3) as pair:
        pair.proxy.plan = first(1, Fault(status=status, code=code))
        with pytest.raises(ObjectExists):
            await pair.through.put("a", [b"1"])
        await pair.through.put("a", [b"1"])


async def test_a_put_that_was_damaged_on_its_way_is_refused_by_the_store(s3: S3Server) -> None:
    async with remote(s3) as pair:
        pair.proxy.plan = first(1, Fault(corrupt=True))
        with pytest.raises((StoreRefused, StoreUnavailable)):
            await pair.through.put("a", [CONTENT])
        assert await pair.keys() == []


async def test_a_cancelled_put_leaves_the_store_usable(s3: S3Server) -> None:
    async with remote(s3) as pair:
        hold = asyncio.Event()
        pair.proxy.plan = first(1, Fault(hold=hold))
        writing = asyncio.ensure_future(pair.through.put("a", [CONTENT]))
        while not pair.proxy.requests:
            await asyncio.wait([writing], timeout=0.01)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await pair.through.put("b", [CONTENT])
        hold.set()
        assert "b" in await pair.keys()


@pytest.mark.parametrize(
    "fault",
    [Fault(truncate_bytes=0), Fault(truncate_bytes=100_000), Fault(bytes_per_second=10_000)],
    ids=["nothing", "truncated", "slow"],
)
async def test_half_an_answer_is_none(s3: S3Server, fault: Fault) -> None:
    async with remote(s3, timeout_ms=1000 if fault.bytes_per_second else 20_000) as pair:
        await pair.straight.put("a", [CONTENT])
        pair.proxy.plan = first(1, fault)
        with pytest.raises(StoreUnavailable):
            await pair.through.get("a", 0, len(CONTENT))
        # With the short timeout a second answer may be late too, where the machine is slow.
        for attempt in reversed(range(20 if fault.bytes_per_second else 1)):
            try:
                content = await pair.through.get("a", 0, len(CONTENT))
                break
            except StoreUnavailable:
                if not attempt:
                    raise
        assert bytes(content) == CONTENT


async def test_a_store_without_conditional_puts_gets_plain_ones(s3: S3Server) -> None:
    async with remote(s3) as pair:
        pair.proxy.plan = first(1, Fault(status=501, code="NotImplemented"), method="PUT")
        await pair.through.put("a", [b"1"])
        await pair.through.put("b", [b"2"])
        assert pair.proxy.count("PUT") == 3
        assert await pair.keys() == ["a", "b"]


async def test_a_missing_bucket_and_wrong_credentials_are_refused(s3: S3Server) -> None:
    nowhere = open_store("s3://no-such-bucket/x", options=s3.options())
    stranger = open_store(
        s3.fresh_url(), options={**s3.options(), "aws_secret_access_key": "wrong"}
    )
    for store in (nowhere, stranger):
        with pytest.raises(StoreRefused):
            await store.put("a", [b"1"])
        with pytest.raises(StoreRefused):
            await anext(aiter(store.list("")))
        await store.close()


async def test_an_unreachable_server_is_unavailable(s3: S3Server) -> None:
    options = s3.options("http://127.0.0.1:1")
    store = open_store("s3://penstock/x", options=options, request_timeout_ms=1000)
    for outcome in await every_call(store):
        assert type(outcome) is StoreUnavailable
    await store.close()


async def test_a_closed_store_answers_nothing(s3: S3Server) -> None:
    store = open_store(s3.fresh_url(), options=s3.options())
    await store.close()
    for outcome in await every_call(store):
        assert type(outcome) is StoreClosed


async def test_many_objects_are_listed_and_deleted_by_pages(s3: S3Server) -> None:
    async with remote(s3) as pair:
        keys = [f"wal/{number:04}" for number in range(1005)]
        await pair.straight.put("wal/0000", [b"x"])
        for key in keys[1:]:
            (s3.directory / "objects" / pair.path / key).write_bytes(b"x")
        assert await pair.keys() == keys
        listed = [info.key async for info in pair.through.list("wal/", after="wal/0500")]
        assert listed == keys[501:]
        await pair.through.delete([*keys, "wal/never"])
        assert await pair.keys() == []


@asynccontextmanager
async def fetching(
    server: S3Server, plan: Plan, **settings: Any
) -> AsyncIterator[tuple[FetchPaths, Remote]]:
    """Fetch paths over the proxy, with objects `object-0` to `object-19` in the store."""
    async with remote(server) as pair:
        for number in range(20):
            await pair.straight.put(f"object-{number}", [CONTENT[number : number + 50_000]])
        pair.proxy.plan = plan
        paths = FetchPaths(
            FetchSettings(**{"request_timeout_ms": 20_000, **settings}),
            hot=pair.through,
            cold=pair.through,
            clock=SYSTEM_CLOCK,
        )
        try:
            yield paths, pair
        finally:
            await paths.close()


def wanted(number: int) -> ObjectRange:
    return ObjectRange(f"object-{number}", 1000, 40_000, 50_000)


def expected(number: int) -> bytes:
    return CONTENT[number + 1000 : number + 41_000]


async def fetched(paths: FetchPaths, *numbers: int, newest_ms: int) -> list[Any]:
    ranges = [wanted(number) for number in numbers]
    return list(await paths.fetch(ranges, newest_timestamp_ms=newest_ms))


def now_ms() -> int:
    return SYSTEM_CLOCK.now_ms()


@pytest.mark.parametrize("newest_ms", [0, 1 << 60], ids=["cold", "hot"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503),
        Fault(status=500),
        Fault(reset=True),
        Fault(drop_answer=True),
        Fault(truncate_bytes=20_000),
        Fault(bytes_per_second=4_000),
    ],
    ids=["503", "500", "reset", "lost", "truncated", "slow"],
)
async def test_reads_survive_a_share_of_faults_and_are_exact(
    s3: S3Server, fault: Fault, newest_ms: int
) -> None:
    """A third of the requests fail: what is answered is exact, what is not is an error."""
    timeout_ms = 1500 if fault.bytes_per_second else 20_000
    plan = share(1 / 3, fault, seed=7)
    async with fetching(s3, plan, request_timeout_ms=timeout_ms) as (paths, pair):
        answers = await fetched(paths, *range(20), newest_ms=newest_ms)
        for number, answer in enumerate(answers):
            if isinstance(answer, PenstockError):
                assert isinstance(answer, StoreUnavailable)
            else:
                assert answer == expected(number)
        good = sum(isinstance(answer, memoryview) for answer in answers)
        assert good >= 15
        assert 20 < pair.proxy.count("GET") <= 60


async def test_a_storm_of_503_is_bounded_and_passes(s3: S3Server) -> None:
    async with fetching(s3, lambda _request: Fault(status=503)) as (paths, pair):
        answers = await fetched(paths, *range(20), newest_ms=now_ms())
        assert all(type(answer) is StoreThrottled for answer in answers)
        assert pair.proxy.count("GET") == 60
        pair.proxy.plan = through
        answers = await fetched(paths, *range(20), newest_ms=now_ms())
        assert answers == [expected(number) for number in range(20)]
        assert pair.proxy.count("GET") == 80


async def test_a_storm_on_old_data_leaves_recent_data_alone(s3: S3Server) -> None:
    def plan(request: Request) -> Fault:
        return Fault(status=503) if "object-1?" in request.path + "?" else Fault()

    async with fetching(s3, plan) as (paths, pair):
        old = [wanted(1)] * 5
        flood = [asyncio.ensure_future(paths.fetch(old, newest_timestamp_ms=0)) for _ in range(40)]
        for _ in range(3):
            answers = await fetched(paths, 2, 3, newest_ms=now_ms())
            assert answers == [expected(2), expected(3)]
        for rejected in await asyncio.gather(*flood):
            assert all(isinstance(answer, StoreThrottled) for answer in rejected)
        assert pair.proxy.count("GET", containing="object-2") == 1
        assert pair.proxy.count("GET", containing="object-1") == 40 * 3


async def test_closing_during_loads_that_hang(s3: S3Server) -> None:
    hold = asyncio.Event()
    async with fetching(s3, lambda _request: Fault(hold=hold), request_timeout_ms=60_000) as (
        paths,
        pair,
    ):
        loads = [
            asyncio.ensure_future(paths.fetch([wanted(number)], newest_timestamp_ms=newest_ms))
            for number in range(10)
            for newest_ms in (0, now_ms())
        ]
        while pair.proxy.count("GET") < 20:
            await asyncio.wait(loads, timeout=0.01)
        await asyncio.wait_for(paths.close(), 60)
        for (answer,) in await asyncio.gather(*loads):
            assert isinstance(answer, StoreClosed)
        hold.set()


async def test_a_missing_object_fails_alone(s3: S3Server) -> None:
    async with fetching(s3, through) as (paths, pair):
        await pair.straight.delete(["object-1"])
        for newest_ms in (0, now_ms()):
            answers = await fetched(paths, 0, 1, 2, newest_ms=newest_ms)
            assert isinstance(answers[1], ObjectNotFound)
            assert [answers[0], answers[2]] == [expected(0), expected(2)]
