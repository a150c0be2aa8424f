"""Metrics of object reads, computed at scrape time.

The first four are Inkless's RecentDataRequestRate, LaggingConsumerRequestRate,
LaggingConsumerRejectedRate and LaggingRateLimitWaitTime, in our naming.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.base.metrics import Kind, Metric, Sample

if TYPE_CHECKING:
    from penstock.objects.cache import BlockCache
    from penstock.objects.store_path import StorePath


def _metric(kind: Kind, name: str, doc: str, *labels: str) -> Metric:
    return Metric(name=f"penstock_objects_{name}", kind=kind, doc=doc, labels=labels)


RECENT_REQUESTS: Final = _metric(
    "counter", "recent_data_requests_total", "Requests for recent data, per object: the hot path."
)
LAGGING_REQUESTS: Final = _metric(
    "counter",
    "lagging_consumer_requests_total",
    "Requests for old data, per object: the cold path, including rejected ones.",
)
LAGGING_REJECTED: Final = _metric(
    "counter",
    "lagging_consumer_rejected_total",
    "Requests for old data rejected because the queue was full or the broker stopped.",
)
RATE_LIMIT_WAIT: Final = _metric(
    "histogram",
    "lagging_rate_limit_wait_seconds",
    "Time that requests of the cold path waited for the rate limit, including zero waits.",
)
CACHE_HITS: Final = _metric("counter", "cache_hits_total", "Blocks found in the cache.")
CACHE_MISSES: Final = _metric("counter", "cache_misses_total", "Blocks that had to be loaded.")
CACHE_JOINS: Final = _metric(
    "counter", "cache_shared_loads_total", "Blocks asked for while they were being loaded."
)
CACHE_EVICTIONS: Final = _metric("counter", "cache_evictions_total", "Blocks dropped for room.")
CACHE_EXPIRATIONS: Final = _metric(
    "counter", "cache_expirations_total", "Blocks dropped because they were not requested."
)
CACHE_BYTES: Final = _metric("gauge", "cache_bytes", "Memory that cached blocks take.")
CACHE_BLOCKS: Final = _metric("gauge", "cache_blocks", "Blocks in the cache.")
SECONDS: Final = _metric(
    "histogram",
    "fetch_seconds",
    "Latency of successful requests, including retries and waits.",
    "path",
)
READ_BYTES: Final = _metric("counter", "fetch_bytes_total", "Bytes read from the store.", "path")
FAILURES: Final = _metric("counter", "fetch_failures_total", "Requests that failed.", "path")
RETRIES: Final = _metric("counter", "fetch_retries_total", "Attempts after a first one.", "path")
HEDGES: Final = _metric("counter", "fetch_hedges_total", "Slow requests made twice.", "path")
HEDGES_WON: Final = _metric(
    "counter", "fetch_hedges_won_total", "Slow requests whose second was answered first.", "path"
)
RUNNING: Final = _metric("gauge", "fetch_running", "Requests that run.", "path")
WAITING: Final = _metric("gauge", "fetch_waiting", "Requests that wait for their pool.", "path")


def samples(
    *,
    cache: BlockCache[Any],
    paths: Mapping[str, StorePath],
    recent_requests: int,
    lagging_requests: int,
    lagging_rejected: int,
) -> Iterator[Sample]:
    yield Sample(RECENT_REQUESTS, recent_requests)
    yield Sample(LAGGING_REQUESTS, lagging_requests)
    yield Sample(LAGGING_REJECTED, lagging_rejected)
    yield Sample(RATE_LIMIT_WAIT, paths["cold"].counters.rate_limit_seconds)
    yield Sample(CACHE_HITS, cache.hits)
    yield Sample(CACHE_MISSES, cache.misses)
    yield Sample(CACHE_JOINS, cache.joins)
    yield Sample(CACHE_EVICTIONS, cache.evictions)
    yield Sample(CACHE_EXPIRATIONS, cache.expirations)
    yield Sample(CACHE_BYTES, cache.size_bytes)
    yield Sample(CACHE_BLOCKS, len(cache))
    for name, path in paths.items():
        counters = path.counters
        labels = (name,)
        yield Sample(SECONDS, counters.seconds, labels)
        yield Sample(READ_BYTES, counters.read_bytes, labels)
        yield Sample(FAILURES, counters.failures, labels)
        yield Sample(RETRIES, counters.retries, labels)
        yield Sample(HEDGES, counters.hedges, labels)
        yield Sample(HEDGES_WON, counters.hedges_won, labels)
        yield Sample(RUNNING, path.pool.running, labels)
        yield Sample(WAITING, path.pool.waiting, labels)
