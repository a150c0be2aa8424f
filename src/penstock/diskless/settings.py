"""Broker settings of diskless topics. They begin with `diskless.`, and are named like Inkless's.

Settings of the fetch paths are in `penstock.objects.FetchSettings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.base.errors import InvalidSetting
from penstock.base.retry import Backoff
from penstock.base.settings import INT_MAX, LONG_MAX, setting
from penstock.control.values.errors import OBJECT_LEASES_PER_CALL_MAX

BUFFER_BYTES_MAX: Final = 8 << 20
"""Size at which the open object closes."""
LOCAL_COMMIT_INTERVAL_MS: Final = 5
"""Commit interval for stores in which a write takes about a millisecond."""
REMOTE_COMMIT_INTERVAL_MS: Final = 250
"""Commit interval for stores whose writes take many milliseconds and are billed."""
PENDING_BYTES_MAX: Final = 128 << 20
"""Bytes of appends that have no response yet."""
OBJECTS_IN_FLIGHT_MAX: Final = 8
"""Objects that are being written, or that wait for an earlier object's commit."""
LEASE_BLOCK_OBJECTS: Final = 64
"""Keys that one call reserves."""
LEASE_LIFE_SHARE: Final = 2
"""Divisor: a reserved key is used for this part of the grace period after which it is swept."""
DRAIN_TIMEOUT_MS: Final = 10_000
"""Time for which a stopping broker waits for objects being written."""
STAGED_PUTS_AT_ONCE_MAX: Final = 2
"""Objects of a sink's commit that are written at once, besides the open one."""
WATERMARKS_PER_CALL_MAX: Final = 1_000
"""Partitions whose watermarks are read in one call."""
RUN_EXTENTS_MAX: Final = 1_000
"""Extents that become one sealed segment. Their rows are replaced in one transaction."""

UNSET: Final = -1
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DisklessSettings:
    """Settings of one broker for diskless topics: writes, background jobs and migrations."""

    PREFIX: ClassVar = "diskless."

    commit_interval_ms: int = setting(
        UNSET, "Time for which an object collects batches, from its first batch on. -1 stands for"
        f" {LOCAL_COMMIT_INTERVAL_MS} with a store in a directory or in memory, and for"
        f" {REMOTE_COMMIT_INTERVAL_MS} with all other stores.", UNSET, 60_000,
    )  # fmt: skip
    buffer_bytes_max: int = setting(
        BUFFER_BYTES_MAX, "Size at which an object is written before its commit interval ends.",
        64 << 10, 1 << 30, name="diskless.buffer.max.bytes",
    )  # fmt: skip
    pending_bytes_max: int = setting(
        PENDING_BYTES_MAX, "Produced bytes that may wait for the commit of their objects. Further"
        " appends are rejected with a retriable error.", 1 << 20, LONG_MAX,
    )  # fmt: skip
    objects_in_flight_max: int = setting(
        OBJECTS_IN_FLIGHT_MAX, "Objects that are written at once. While so many are being"
        " written, the next one collects batches, up to diskless.buffer.max.bytes.", 1, 256,
    )  # fmt: skip
    write_timeout_ms: int = setting(
        25_000, "Time to write and commit an object, from its first batch on. After it, the"
        " object's producers get a retriable error. Set it below their request.timeout.ms.", 100,
        600_000,
    )  # fmt: skip
    put_timeout_ms: int = setting(
        10_000, "Time after which another attempt to write an object starts beside a slow one.",
        50, 600_000,
    )  # fmt: skip
    retry_backoff_ms: int = setting(
        50, "Maximum random pause before the first retry. It doubles with every retry.", 1, 60_000,
    )  # fmt: skip
    retry_backoff_max_ms: int = setting(2_000, "Maximum random pause between retries.", 1, 60_000)
    lease_block_objects: int = setting(
        LEASE_BLOCK_OBJECTS, "Keys of objects that are reserved in advance by one call.",
        2, OBJECT_LEASES_PER_CALL_MAX,
    )  # fmt: skip
    sweep_interval_ms: int = setting(60_000, "Interval of sweeps of unused objects.", 10, _DAY_MS)
    sweep_pending_grace_ms: int = setting(
        3_600_000, "Age at which a reserved key is swept if its object was not committed. It must"
        " be at least twice diskless.write.timeout.ms.", 200, 30 * _DAY_MS,
    )  # fmt: skip
    sweep_unreferenced_grace_ms: int = setting(
        600_000, "Time for which an object without extents is kept. Set it above the longest read.",
        0, 30 * _DAY_MS,
    )  # fmt: skip
    orphan_interval_ms: int = setting(
        6 * 3_600_000, "Interval of comparisons of the whole store with the control plane, which"
        " find orphaned objects; 0 disables them.", 0, 30 * _DAY_MS,
    )  # fmt: skip
    orphan_grace_ms: int = setting(
        _DAY_MS, "Age, by the store's clock, at which an object without a row in the control plane"
        " is deleted; -1 only reports such objects.", -1, LONG_MAX,
    )  # fmt: skip
    mark_interval_ms: int = setting(
        15_000, "Interval of recording the highest object id in the store. A starting broker uses"
        " it to detect that the database was restored from an older copy.", 10, _DAY_MS,
    )  # fmt: skip
    consolidation_interval_ms: int = setting(
        60_000, "Interval of passes that make sealed segments of old write-ahead extents; 0"
        " disables them on this broker.", 0, _DAY_MS,
    )  # fmt: skip
    consolidation_min_age_ms: int = setting(
        900_000, "Age of the newest record of an extent before it may become part of a segment.", 0,
        LONG_MAX,
    )  # fmt: skip
    consolidation_min_extents: int = setting(
        200, "Extents of a partition that become a segment even if it is smaller than"
        " diskless.consolidation.segment.bytes.", 2, RUN_EXTENTS_MAX,
    )  # fmt: skip
    consolidation_segment_bytes: int = setting(
        64 << 20, "Size of a sealed segment. Making one takes about twice as much memory.", 1 << 20,
        1 << 30,
    )  # fmt: skip
    consolidation_bytes_per_second: int = setting(
        32 << 20, "Bytes per second that this broker reads for segments; 0 sets no limit.", 0,
        LONG_MAX,
    )  # fmt: skip
    compaction_interval_ms: int = setting(
        60_000, "Interval of compaction of diskless topics whose cleanup.policy has `compact`; 0"
        " disables it on this broker.", 0, _DAY_MS,
    )  # fmt: skip
    compaction_map_bytes: int = setting(
        64 << 20, "Memory for the keys of one compaction pass, about 30 bytes each. A pass ends"
        " when the memory is full, and the next one continues.", 64 << 10, 8 << 30,
    )  # fmt: skip
    switch_bytes_per_second: int = setting(
        64 << 20, "Bytes per second that this broker copies of a topic that becomes diskless or"
        " replicated, except after its appends have stopped; 0 sets no limit.", 0, LONG_MAX,
    )  # fmt: skip
    retention_interval_ms: int = setting(
        30_000, "Interval of applying retention.ms and retention.bytes.", 10, _DAY_MS,
    )  # fmt: skip
    producer_expiration_ms: int = setting(
        _DAY_MS, "Time for which the state of an idle idempotent producer is kept.", 1, LONG_MAX,
        name="diskless.producer.id.expiration.ms",
    )  # fmt: skip
    drain_timeout_ms: int = setting(
        DRAIN_TIMEOUT_MS, "Time for which a stopping broker waits for objects being written.",
        0, INT_MAX,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.buffer_bytes_max > self.pending_bytes_max:
            raise InvalidSetting(
                "diskless.buffer.max.bytes",
                self.buffer_bytes_max,
                f"must not exceed diskless.pending.bytes.max = {self.pending_bytes_max}",
            )
        if self.commit_interval_ms >= self.write_timeout_ms:
            raise InvalidSetting(
                "diskless.commit.interval.ms",
                self.commit_interval_ms,
                f"must be below diskless.write.timeout.ms = {self.write_timeout_ms}",
            )
        if self.retry_backoff_ms > self.retry_backoff_max_ms:
            raise InvalidSetting(
                "diskless.retry.backoff.ms",
                self.retry_backoff_ms,
                f"must not exceed diskless.retry.backoff.max.ms = {self.retry_backoff_max_ms}",
            )
        # A key is used for half of its grace, so an object ends before its key may be swept.
        if self.sweep_pending_grace_ms < LEASE_LIFE_SHARE * self.write_timeout_ms:
            raise InvalidSetting(
                "diskless.sweep.pending.grace.ms",
                self.sweep_pending_grace_ms,
                f"must be at least {LEASE_LIFE_SHARE} times diskless.write.timeout.ms ="
                f" {self.write_timeout_ms}",
            )

    def interval_ms(self, *, local: bool) -> int:
        if self.commit_interval_ms != UNSET:
            return self.commit_interval_ms
        return LOCAL_COMMIT_INTERVAL_MS if local else REMOTE_COMMIT_INTERVAL_MS

    @property
    def backoff(self) -> Backoff:
        return Backoff(first_ms=self.retry_backoff_ms, ceiling_ms=self.retry_backoff_max_ms)

    @property
    def lease_life_ms(self) -> int:
        """Age in milliseconds up to which a reserved key may be used."""
        return self.sweep_pending_grace_ms // LEASE_LIFE_SHARE
