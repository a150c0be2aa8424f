"""Live figures of the broker, sent to browsers as server-sent events, and limits of such responses.

One sampler reads the broker's counters every `SAMPLE_SECONDS`, while at least one browser is
connected, and keeps the last `SAMPLES_KEPT` samples for the charts. Every browser gets the same
text, so a further browser costs one write to a socket per sample.

Source: HTML, "Server-sent events".
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from msgspec import Struct
from starlette.responses import Response, StreamingResponse

from penstock.apps.console import formats
from penstock.base.errors import RetriableError
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import DESCRIBE, Needs

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from penstock.base.metrics import Histogram
    from penstock.broker.assembly import Assembly

SAMPLE_SECONDS: Final = 2.0
SAMPLES_KEPT: Final = 300
"""Samples that the charts show: ten minutes."""
BROWSERS_MAX: Final = 32
STREAMS_SHARE: Final = 0.25
"""Share of `admin.max.connections` that the streaming responses of one kind may use."""
EVENTS: Final = "text/event-stream"
PRODUCE: Final = "Produce"
FETCH: Final = "Fetch"


class TooManyStreams(RetriableError):
    """Rejection of a streaming response because too many others are under way."""

    code: ClassVar[str] = "throttling_quota_exceeded"


class Streams:
    """Streaming responses of one kind, whose number is limited. Belongs to the event loop."""

    def __init__(self, reason: str, maximum: int, connections_max: int) -> None:
        """`reason` follows the limit in the message of a rejection."""
        self._reason = reason
        self._limit = max(1, min(maximum, int(STREAMS_SHARE * connections_max)))
        self.count = 0

    def response(
        self, content: AsyncIterable[str | bytes], media_type: str, **headers: str
    ) -> Response:
        """Return a response that streams `content`.

        Raises:
            TooManyStreams: too many others are under way.
        """
        if self.count >= self._limit:
            raise TooManyStreams(f"{self._limit} {self._reason}")
        headers |= {"cache-control": "no-store", "x-accel-buffering": "no"}
        return _Counted(self, content, media_type=media_type, headers=headers)


class _Counted(StreamingResponse):
    """Streaming response that is counted from its first step on."""

    def __init__(self, streams: Streams, content: AsyncIterable[str | bytes], **more: Any) -> None:
        super().__init__(content, **more)
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.count += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.count -= 1


class Sample(Struct, frozen=True, kw_only=True):
    """Figures of one interval; rates are per second, latencies in milliseconds.

    A latency is None if no request ended in the interval.
    """

    at_ms: int
    bytes_in: float
    bytes_out: float
    requests: float
    produce_p50_ms: float | None
    produce_p99_ms: float | None
    fetch_p50_ms: float | None
    fetch_p99_ms: float | None
    cpu_percent: float


class _Counters(Struct, frozen=True, kw_only=True):
    at: float
    bytes_in: int
    bytes_out: int
    counts: Mapping[str, tuple[int, ...]]
    """Counts of the latency buckets, by API."""
    cpu_seconds: float


class Sampler:
    """Sampler of one broker. Belongs to the event loop."""

    def __init__(self, broker: Assembly) -> None:
        self._broker = broker
        self.streams = Streams(
            "browsers already show live figures of this broker",
            BROWSERS_MAX,
            broker.settings.admin_max_connections,
        )
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self._last: _Counters | None = None
        self._browsers = 0
        self._sampled = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._text = ""

    async def events(self) -> AsyncIterator[str]:
        """Yield each new sample as an event, until the broker stops."""
        self._browsers += 1
        try:
            self._start()
            yield ": connected\n\n"
            while not self._broker.stopping.is_set():
                async with self._sampled:
                    await self._sampled.wait()
                yield self._text
        finally:
            self._browsers -= 1
            if not self._browsers and self._task is not None:
                self._task.cancel()
                self._task = None

    def _start(self) -> None:
        if self._task is None:
            self._last = self._counters()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        stopping = self._broker.stopping
        while not stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(SAMPLE_SECONDS):
                    await stopping.wait()
            self._sample()
            async with self._sampled:
                self._sampled.notify_all()

    def _sample(self) -> None:
        now, last = self._counters(), self._last
        self._last = now
        if last is None or now.at <= last.at:
            return
        sample = _between(last, now, self._broker.clock.now_ms(), self._broker.metrics.latency)
        self.samples.append(sample)
        body = msgspec.json.encode({"sample": sample, "texts": texts(sample)}).decode()
        self._text = f"event: sample\ndata: {body}\n\n"

    def _counters(self) -> _Counters:
        owner, times = self._broker.owner, os.times()
        return _Counters(
            at=self._broker.clock.monotonic(),
            bytes_in=owner.bytes_in,
            bytes_out=owner.bytes_out,
            counts={
                api: tuple(histogram.counts)
                for api, histogram in self._broker.metrics.latency.items()
            },
            cpu_seconds=times.user + times.system,
        )


def _between(
    last: _Counters, now: _Counters, at_ms: int, latency: Mapping[str, Histogram]
) -> Sample:
    seconds = now.at - last.at
    ended = sum(map(sum, now.counts.values())) - sum(map(sum, last.counts.values()))

    def quantiles(api: str) -> tuple[float | None, float | None]:
        if api not in now.counts:
            return None, None
        before = last.counts.get(api, (0,) * len(now.counts[api]))
        counts = [new - old for new, old in zip(now.counts[api], before, strict=True)]
        bounds = latency[api].bounds
        return quantile(bounds, counts, 0.5), quantile(bounds, counts, 0.99)

    produce, fetch = quantiles(PRODUCE), quantiles(FETCH)
    return Sample(
        at_ms=at_ms,
        bytes_in=(now.bytes_in - last.bytes_in) / seconds,
        bytes_out=(now.bytes_out - last.bytes_out) / seconds,
        requests=ended / seconds,
        produce_p50_ms=produce[0],
        produce_p99_ms=produce[1],
        fetch_p50_ms=fetch[0],
        fetch_p99_ms=fetch[1],
        cpu_percent=100 * (now.cpu_seconds - last.cpu_seconds) / seconds,
    )


def quantile(bounds: Iterable[float], counts: Iterable[int], share: float) -> float | None:
    """Return a quantile of a histogram in milliseconds, interpolated within its bucket.

    `bounds` are the upper bounds of the buckets in seconds; the last of `counts` has no bound, and
    its observations count as the highest bound. None without observations.
    """
    counts = list(counts)
    wanted, lower = share * sum(counts), 0.0
    if not wanted:
        return None
    for bound, count in zip(bounds, counts, strict=False):
        if count and wanted <= count:
            return 1000 * (lower + (bound - lower) * wanted / count)
        wanted, lower = wanted - count, bound
    return 1000 * lower


def texts(sample: Sample | None) -> dict[str, str]:
    """Return the texts of the figures on the overview, by the name of their element."""
    if sample is None:
        return dict.fromkeys(("in", "out", "requests", "produce", "fetch", "cpu"), formats.UNKNOWN)
    return {
        "in": f"{formats.size(sample.bytes_in)}/s",
        "out": f"{formats.size(sample.bytes_out)}/s",
        "requests": f"{sample.requests:,.0f}/s",
        "produce": formats.duration(sample.produce_p99_ms),
        "fetch": formats.duration(sample.fetch_p99_ms),
        "cpu": f"{sample.cpu_percent:.0f} %",
    }


class LiveViews(Struct, frozen=True, kw_only=True):
    sampler: Sampler

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/live", DESCRIBE)
    async def live(self, request: Request) -> Response:
        """Return the live figures of this broker as server-sent events, without an end."""
        return self.sampler.streams.response(self.sampler.events(), EVENTS)
