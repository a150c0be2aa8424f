"""Settings of a broker's reads of objects: cache, hot path, cold path and hedging.

Names and defaults are those of Inkless, under `diskless.`. Settings of writes are in
`penstock.diskless`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, setting

DIRECTORY_THREADS: Final = 16
"""Threads of a directory store, which run its file calls in parallel."""

AUTO: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """Settings of one broker for reads of objects of diskless topics.

    Raises:
        InvalidSetting: two settings contradict each other.
    """

    data_pool_size: int = setting(
        32, "Blocks of recent data that are loaded at once.", 1, 1024,
        name="diskless.fetch.data.thread.pool.size",
    )  # fmt: skip
    lagging_pool_size: int = setting(
        16, "Requests for old data that run at once. A hundred times as many may wait, and further"
        " ones are rejected. 0 disables the cold path: all data is read as recent data.", 0, 1024,
        name="diskless.fetch.lagging.consumer.thread.pool.size",
    )  # fmt: skip
    lagging_threshold_ms: int = setting(
        AUTO, "Age above which data is old, so that it is read past the cache. -1 stands for the"
        " lifespan of cached blocks. A value below that lifespan is rejected.", AUTO, LONG_MAX,
        name="diskless.fetch.lagging.consumer.threshold.ms",
    )  # fmt: skip
    lagging_rate_limit: int = setting(
        200, "Requests per second to the store for old data. A burst may have as many. 0 sets no"
        " limit.", 0, 1_000_000, name="diskless.fetch.lagging.consumer.request.rate.limit",
        unit="requests/s",
    )  # fmt: skip
    cache_lifespan_seconds: int = setting(
        60, "Time for which a block stays in the cache after its last write or read.", 1, 86_400,
        name="diskless.consume.cache.expiration.lifespan.sec", unit="s",
    )  # fmt: skip
    cache_bytes_max: int = setting(
        256 << 20, "Memory for cached blocks. If it is full, the least recently used block is"
        " dropped. Blocks that are being loaded are not counted.", 1 << 16, LONG_MAX,
        name="diskless.consume.cache.max.bytes",
    )  # fmt: skip
    cache_block_bytes: int = setting(
        16 << 20, "Size of a block. An object is read in whole blocks, each once for all readers.",
        1 << 12, INT_MAX, name="diskless.consume.cache.block.bytes",
    )  # fmt: skip
    request_timeout_ms: int = setting(
        10_000, "Timeout of one request for bytes of an object. It is then retried.",
        10, 600_000, name="diskless.fetch.request.timeout.ms",
    )  # fmt: skip
    hedging: bool = setting(
        True, "Whether a request slower than the recent 99th percentile is sent a second time. The"
        " first response is used.", name="diskless.fetch.hedge.enable",
    )  # fmt: skip

    def __post_init__(self) -> None:
        lifespan_ms = self.cache_lifespan_seconds * 1000
        if self.lagging_threshold_ms != AUTO and self.lagging_threshold_ms < lifespan_ms:
            raise InvalidSetting(
                "diskless.fetch.lagging.consumer.threshold.ms",
                self.lagging_threshold_ms,
                "must be -1 or at least diskless.consume.cache.expiration.lifespan.sec"
                f" ({lifespan_ms} ms). With less, reads of cached data would bypass the cache",
            )
        if self.cache_block_bytes > self.cache_bytes_max:
            raise InvalidSetting(
                "diskless.consume.cache.block.bytes",
                self.cache_block_bytes,
                f"must be at most diskless.consume.cache.max.bytes ({self.cache_bytes_max}):"
                " no block would fit",
            )

    @property
    def threshold_ms(self) -> int:
        """Age in milliseconds above which data is old."""
        if self.lagging_threshold_ms == AUTO:
            return self.cache_lifespan_seconds * 1000
        return self.lagging_threshold_ms

    def lagging(self, *, now_ms: int, newest_timestamp_ms: int) -> bool:
        """Return whether data is old. Future and missing timestamps count as recent."""
        if not self.lagging_pool_size or newest_timestamp_ms < 0:
            return False
        return max(0, now_ms - newest_timestamp_ms) > self.threshold_ms
