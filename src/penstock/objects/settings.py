"""Settings of a broker's object reads: the cache, the hot and the cold path, hedging.

Names and defaults are Inkless's, under `diskless.`. Settings of writes are in `penstock.diskless`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, setting

DIRECTORY_THREADS: Final = 16
"""Maximum number of parallel file calls of a directory store."""

AUTO: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """Settings of how a broker reads objects of diskless topics.

    Raises:
        InvalidSetting: two settings contradict each other.
    """

    data_pool_size: int = setting(
        32, "Blocks of recent data that are loaded at once.", 1, 1024,
        name="diskless.fetch.data.thread.pool.size",
    )  # fmt: skip
    lagging_pool_size: int = setting(
        16, "Requests for old data that run at once, beside a hundred per each that wait; more are"
        " rejected. 0 turns the split off: all data is read as recent data is.", 0, 1024,
        name="diskless.fetch.lagging.consumer.thread.pool.size",
    )  # fmt: skip
    lagging_threshold_ms: int = setting(
        AUTO, "Data older than this is read past the cache, as for a lagging consumer. -1 is the"
        " cache's lifespan; a value below the lifespan is rejected.", AUTO, LONG_MAX,
        name="diskless.fetch.lagging.consumer.threshold.ms",
    )  # fmt: skip
    lagging_rate_limit: int = setting(
        200, "Requests per second to the store for old data, with bursts of as many. 0 is no"
        " limit.", 0, 1_000_000, name="diskless.fetch.lagging.consumer.request.rate.limit",
        unit="requests/s",
    )  # fmt: skip
    cache_lifespan_seconds: int = setting(
        60, "How long a block stays in the cache after it was last written or read.", 1, 86_400,
        name="diskless.consume.cache.expiration.lifespan.sec", unit="s",
    )  # fmt: skip
    cache_bytes_max: int = setting(
        256 << 20, "Memory for cached blocks; above, the least recently read one is dropped. Blocks"
        " that are being loaded are not counted.", 1 << 16, LONG_MAX,
        name="diskless.consume.cache.max.bytes",
    )  # fmt: skip
    cache_block_bytes: int = setting(
        16 << 20, "Blocks are cut at multiples of this and loaded whole, once for all readers.",
        1 << 12, INT_MAX, name="diskless.consume.cache.block.bytes",
    )  # fmt: skip
    request_timeout_ms: int = setting(
        10_000, "How long one request for bytes of an object may take before it is tried again.",
        10, 600_000, name="diskless.fetch.request.timeout.ms",
    )  # fmt: skip
    hedging: bool = setting(
        True, "Whether a request slower than the recent 99th percentile is sent a second time; the"
        " first response is used.", name="diskless.fetch.hedge.enable",
    )  # fmt: skip

    def __post_init__(self) -> None:
        lifespan_ms = self.cache_lifespan_seconds * 1000
        if self.lagging_threshold_ms != AUTO and self.lagging_threshold_ms < lifespan_ms:
            raise InvalidSetting(
                "diskless.fetch.lagging.consumer.threshold.ms",
                self.lagging_threshold_ms,
                "must be -1 or at least diskless.consume.cache.expiration.lifespan.sec"
                f" ({lifespan_ms} ms): with less, reads of cached data would bypass the cache",
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
        """Age above which data is old: the setting, or the cache's lifespan."""
        if self.lagging_threshold_ms == AUTO:
            return self.cache_lifespan_seconds * 1000
        return self.lagging_threshold_ms

    def lagging(self, *, now_ms: int, newest_timestamp_ms: int) -> bool:
        """Return whether data is old; future and missing timestamps count as recent."""
        if not self.lagging_pool_size or newest_timestamp_ms < 0:
            return False
        return max(0, now_ms - newest_timestamp_ms) > self.threshold_ms
