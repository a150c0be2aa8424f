"""Ranges by signed URLs from a real S3 server: those bytes and no others, for a while."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from urllib.parse import urlsplit

import pytest

from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.objects import (
    FetchPaths,
    FetchSettings,
    ObjectNotFound,
    ObjectRange,
    ObjectTruncated,
    StoreClosed,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
    open_store,
    signer_of,
)
from penstock.objects.signed_store import SignedStore
from penstock.objects.signing import Signing, range_header
from penstock.records.extents import SignedRange
from tests.proxy import Fault, FaultProxy, first
from tests.s3 import S3Server, s3_server

KEY = "wal/7/x"
CONTENT = bytes(number % 251 for number in range(1 << 20))
HOUR_MS = 3_600_000


class Signed:
    """A store with one object, and the URLs of its ranges; `endpoint` is who is asked for them."""

    def __init__(self, server: S3Server, endpoint: str | None = None) -> None:
        url = server.fresh_url()
        self.store = open_store(url, options=server.options())
        self._signer = signer_of(url, server.options(endpoint), {})

    def signing(self, *, ago_ms: int = 0) -> Signing:
        now_ms = SYSTEM_CLOCK.now_ms() - ago_ms
        return self._signer.signing(now_ms=now_ms, lifetime_ms=60_000)

    def range(self, start: int, size_bytes: int, *, key: str = KEY, ago_ms: int = 0) -> SignedRange:
        signing = self.signing(ago_ms=ago_ms)
        url = signing.url(key, start, size_bytes)
        return SignedRange(
            url=url, start=start, size_bytes=size_bytes, expires_ms=signing.expires_ms
        )


@asynccontextmanager
async def signed(server: S3Server, endpoint: str | None = None) -> AsyncIterator[Signed]:
    made = Signed(server, endpoint)
    await made.store.put(KEY, [CONTENT])
    yield made
    await made.store.close()


@asynccontextmanager
async def reading(*ranges: SignedRange, timeout_ms: int = 20_000) -> AsyncIterator[SignedStore]:
    """The ranges by their numbers as names."""
    named = {str(number): one for number, one in enumerate(ranges)}
    store = SignedStore(named, name="s3://penstock", request_timeout_ms=timeout_ms)
    yield store
    await store.close()


def ask(url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Return the server's response to a client without credentials."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc)) as connection:
        connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
        response = connection.getresponse()
        return response.status, response.read()


async def test_ranges_are_read_whole_and_in_part(s3: S3Server) -> None:
    async with signed(s3) as made:
        last = len(CONTENT) - 1000
        async with reading(made.range(24, 5000), made.range(0, 1), made.range(last, 1000)) as store:
            assert bytes(await store.get("0", 0, 5000)) == CONTENT[24:5024]
            assert bytes(await store.get("0", 100, 7)) == CONTENT[124:131]
            assert bytes(await store.get("1", 0, 1)) == CONTENT[:1]
            assert bytes(await store.get("2", 0, 1000)) == CONTENT[last:]
            with pytest.raises(ObjectNotFound):
                await store.get("3", 0, 1)
            with pytest.raises(ObjectTruncated):
                await store.get("0", 1, 5000)


async def test_a_url_brings_its_range_and_nothing_else(s3: S3Server) -> None:
    async with signed(s3) as made:
        await made.store.put("wal/7/y", [CONTENT])
        url = made.range(100, 50).url
        assert ask(url, {"Range": range_header(100, 50)}) == (206, CONTENT[100:150])
        for headers in (
            {},
            {"Range": range_header(100, 51)},
            {"Range": range_header(99, 50)},
            {"Range": range_header(0, len(CONTENT))},
            {"Range": range_header(100, 50) + ",0-99"},
            {"Range": "bytes=100-"},
        ):
            status, content = ask(url, headers)
            assert status == 403, headers
            assert b"SignatureDoesNotMatch" in content
        for other in (
            url.replace(KEY, "wal/7/y"),
            url.replace("X-Amz-Expires=60", "X-Amz-Expires=600"),
            url.replace("host%3Brange", "host"),
            url.replace(KEY, ""),
        ):
            assert other != url
            assert ask(other, {"Range": range_header(100, 50)})[0] == 403, other


async def test_a_url_ends(s3: S3Server) -> None:
    async with signed(s3) as made:
        ended = made.range(0, 10, ago_ms=HOUR_MS)
        assert ended.expires_ms < SYSTEM_CLOCK.now_ms()
        assert ask(ended.url, {"Range": range_header(0, 10)})[0] == 403
        async with reading(ended) as store:
            with pytest.raises(
                StoreRefused, match="s3://penstock: cannot read 0: status 403 "
            ) as e:
                await store.get("0", 0, 10)
        assert "X-Amz" not in str(e.value)


async def test_missing_objects(s3: S3Server) -> None:
    async with signed(s3) as made:
        beyond, end = made.range(len(CONTENT), 10), made.range(len(CONTENT) - 4, 10)
        async with reading(made.range(0, 10, key="wal/8"), beyond, end) as store:
            with pytest.raises(ObjectNotFound):
                await store.get("0", 0, 10)
            for name in ("1", "2"):
                with pytest.raises(ObjectTruncated):
                    await store.get(name, 0, 10)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(status=503), StoreThrottled),
        (Fault(status=429, code="TooManyRequests"), StoreThrottled),
        (Fault(status=500, code="InternalError"), StoreUnavailable),
        (Fault(status=403, code="AccessDenied"), StoreRefused),
        (Fault(status=404, code="NoSuchBucket"), StoreRefused),
        (Fault(status=307, code="TemporaryRedirect"), StoreRefused),
        (Fault(reset=True), StoreUnavailable),
        (Fault(drop_answer=True), StoreUnavailable),
        (Fault(truncate_bytes=10_000), StoreUnavailable),
        (Fault(latency_seconds=600.0), StoreUnavailable),
    ],
    ids=["503", "429", "500", "403", "bucket", "307", "reset", "lost", "half", "late"],
)
async def test_responses_map_to_errors(
    s3: S3Server, fault: Fault, expected: type[PenstockError]
) -> None:
    async with FaultProxy("127.0.0.1", s3.port) as proxy, signed(s3, proxy.endpoint) as made:
        wanted = made.range(0, 50_000)
        async with reading(wanted, timeout_ms=200 if fault.latency_seconds else 20_000) as store:
            proxy.plan = first(1, fault)
            with pytest.raises(PenstockError) as caught:
                await store.get("0", 0, 50_000)
            assert type(caught.value) is expected
            assert "X-Amz" not in str(caught.value)
            if not fault.latency_seconds:
                assert bytes(await store.get("0", 0, 50_000)) == CONTENT[:50_000]


async def test_connections_are_kept_and_replaced() -> None:
    with s3_server(keep_alive=True) as server:
        async with signed(server) as made, reading(made.range(0, 10)) as store:
            for _ in range(3):
                assert bytes(await store.get("0", 0, 10)) == CONTENT[:10]
            (kept,) = store._open
            assert kept.sock is not None
            kept.sock.close()
            assert bytes(await store.get("0", 0, 10)) == CONTENT[:10]
            assert kept not in store._open


async def test_closing_ends_reads_that_wait(s3: S3Server) -> None:
    async with FaultProxy("127.0.0.1", s3.port) as proxy, signed(s3, proxy.endpoint) as made:
        hold = asyncio.Event()
        proxy.plan = lambda _request: Fault(hold=hold)
        async with reading(made.range(0, 10), timeout_ms=600_000) as store:
            read = asyncio.ensure_future(store.get("0", 0, 10))
            while not proxy.requests:
                await asyncio.wait([read], timeout=0.01)
        with pytest.raises(StoreUnavailable):
            await read
        with pytest.raises(StoreClosed):
            await store.get("0", 0, 10)


async def test_fetch_paths_ask_for_ranges_as_they_are_signed(s3: S3Server) -> None:
    """Several of one object, with what belongs to others between them."""
    async with FaultProxy("127.0.0.1", s3.port) as proxy, signed(s3, proxy.endpoint) as made:
        places = [(100 + 20_000 * number, 9_000) for number in range(20)]
        async with reading(*(made.range(*place) for place in places)) as store:
            proxy.plan = first(3, Fault(status=503))
            settings = FetchSettings(request_timeout_ms=20_000)
            paths = FetchPaths(settings, hot=store, cold=store, clock=SYSTEM_CLOCK)
            wanted = [ObjectRange(str(number), 0, 9_000, -1) for number in range(20)]
            answers = await paths.fetch(wanted, newest_timestamp_ms=0)
            await paths.close()
    expected = [memoryview(CONTENT)[start : start + size] for start, size in places]
    assert answers == expected
    assert proxy.count("GET") == 23


def test_no_url_is_shown_and_none_is_of_another_kind() -> None:
    url = "https://host/key?X-Amz-Signature=word"
    assert "word" not in repr(SignedRange(url=url, start=0, size_bytes=1, expires_ms=2))
    for other in ("ftp://host/key", "file:///etc/passwd", "https://host/a b", "https://host/ü", ""):
        with pytest.raises(ValueError, match="must begin with http"):
            SignedRange(url=other, start=0, size_bytes=1, expires_ms=2)
