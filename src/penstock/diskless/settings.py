"""The broker's settings that concern diskless topics: writing, sweeping, retention.

Those of the fetch paths are `penstock.objects.FetchSettings`. Names follow Inkless's where it has
them, under `diskless.`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.base.errors import InvalidSetting
from penstock.base.retry import Backoff
from penstock.base.settings import INT_MAX, LONG_MAX, setting
from penstock.control.limits import OBJECT_LEASES_PER_CALL_MAX
from penstock.diskless import limits

UNSET: Final = -1
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DisklessSettings:
    """How one broker writes the objects of diskless topics, and what it clears away."""

    PREFIX: ClassVar = "diskless."

    commit_interval_ms: int = setting(
        UNSET, "How long an object gathers batches after its first. -1 is"
        f" {limits.LOCAL_COMMIT_INTERVAL_MS} for a directory and memory, and"
        f" {limits.REMOTE_COMMIT_INTERVAL_MS} for all other stores.", UNSET, 60_000,
    )  # fmt: skip
    buffer_bytes_max: int = setting(
        limits.BUFFER_BYTES_MAX, "Size at which an object is written without waiting any longer.",
        64 << 10, 1 << 30, name="diskless.buffer.max.bytes",
    )  # fmt: skip
    pending_bytes_max: int = setting(
        limits.PENDING_BYTES_MAX, "Produced bytes that may wait for their objects; more are"
        " refused with an error.", 1 << 20, LONG_MAX,
    )  # fmt: skip
    objects_in_flight_max: int = setting(
        limits.OBJECTS_IN_FLIGHT_MAX, "Objects that are written at once. While there are so many,"
        " the open one gathers on, up to diskless.buffer.max.bytes.", 1, 256,
    )  # fmt: skip
    write_timeout_ms: int = setting(
        25_000, "How long writing and committing an object is tried, from its first batch on; then"
        " its producers get an error that may be retried. Best below their request.timeout.ms.",
        100, 600_000,
    )  # fmt: skip
    put_timeout_ms: int = setting(
        10_000, "How long one attempt to write an object may take before another is made beside"
        " it.", 50, 600_000,
    )  # fmt: skip
    retry_backoff_ms: int = setting(
        50, "Ceiling of the random pause before the first repetition; it doubles every time.", 1,
        60_000,
    )  # fmt: skip
    retry_backoff_max_ms: int = setting(
        2_000, "Ceiling of the random pause between repetitions.", 1, 60_000
    )
    lease_block_objects: int = setting(
        limits.LEASE_BLOCK_OBJECTS, "Keys of objects that are reserved at once, before they are"
        " needed.", 2, OBJECT_LEASES_PER_CALL_MAX,
    )  # fmt: skip
    sweep_interval_ms: int = setting(
        60_000, "Time between two looks for objects that nobody needs any more.", 10, _DAY_MS
    )
    sweep_pending_grace_ms: int = setting(
        3_600_000, "Age at which a reserved key whose object was never committed is swept. At"
        " least twice diskless.write.timeout.ms.", 200, 30 * _DAY_MS,
    )  # fmt: skip
    sweep_unreferenced_grace_ms: int = setting(
        600_000, "How long an object is kept after nothing refers to it: longer than the longest"
        " read that may have begun before.", 0, 30 * _DAY_MS,
    )  # fmt: skip
    orphan_interval_ms: int = setting(
        6 * 3_600_000, "Time between two comparisons of the whole store with the control plane; 0"
        " makes none.", 0, 30 * _DAY_MS,
    )  # fmt: skip
    orphan_grace_ms: int = setting(
        _DAY_MS, "Age, by the store's own time, at which an object that the control plane does not"
        " know is deleted; -1 only reports them.", -1, LONG_MAX,
    )  # fmt: skip
    mark_interval_ms: int = setting(
        15_000, "Time between two notes in the store of the highest object id, by which a start"
        " finds out that the database was restored from an older copy.", 10, _DAY_MS,
    )  # fmt: skip
    consolidation_interval_ms: int = setting(
        60_000, "Time between two looks for old write-ahead extents to make sealed segments of; 0"
        " makes none on this broker.", 0, _DAY_MS,
    )  # fmt: skip
    consolidation_min_age_ms: int = setting(
        900_000, "Age of the newest record of an extent before it may become part of a segment.", 0,
        LONG_MAX,
    )  # fmt: skip
    consolidation_min_extents: int = setting(
        200, "How many extents of a partition become a segment that is smaller than"
        " diskless.consolidation.segment.bytes.", 2, limits.RUN_EXTENTS_MAX,
    )  # fmt: skip
    consolidation_segment_bytes: int = setting(
        64 << 20, "Size of a sealed segment. About twice as much memory is taken while one is"
        " made, one at a time.", 1 << 20, 1 << 30,
    )  # fmt: skip
    consolidation_bytes_per_second: int = setting(
        32 << 20, "Bytes that this broker reads for segments in a second; 0 sets no bound.", 0,
        LONG_MAX,
    )  # fmt: skip
    compaction_interval_ms: int = setting(
        60_000, "Time between two looks for diskless partitions to be compacted, of topics whose"
        " cleanup.policy has compact; 0 makes none on this broker.", 0, _DAY_MS,
    )  # fmt: skip
    compaction_map_bytes: int = setting(
        64 << 20, "Memory for the keys of one pass, 24 bytes each with a quarter more; a pass ends"
        " where they do not fit, and the next one goes on.", 64 << 10, 8 << 30,
    )  # fmt: skip
    switch_bytes_per_second: int = setting(
        64 << 20, "Bytes in a second that this broker copies of a local topic that becomes"
        " diskless, but for the last ones; 0 sets no bound.", 0, LONG_MAX,
    )  # fmt: skip
    retention_interval_ms: int = setting(
        30_000, "Time between two looks at what retention.ms and retention.bytes let go.", 10,
        _DAY_MS,
    )  # fmt: skip
    producer_expiration_ms: int = setting(
        _DAY_MS, "How long the sequence of an idle idempotent producer is remembered.", 1, LONG_MAX,
        name="diskless.producer.id.expiration.ms",
    )  # fmt: skip
    drain_timeout_ms: int = setting(
        limits.DRAIN_TIMEOUT_MS, "How long stopping waits for the objects that are being written.",
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
        if self.sweep_pending_grace_ms < limits.LEASE_LIFE_SHARE * self.write_timeout_ms:
            raise InvalidSetting(
                "diskless.sweep.pending.grace.ms",
                self.sweep_pending_grace_ms,
                f"must be at least {limits.LEASE_LIFE_SHARE} times diskless.write.timeout.ms ="
                f" {self.write_timeout_ms}",
            )

    def interval_ms(self, *, local: bool) -> int:
        """How long an object gathers, on a local or a remote store."""
        if self.commit_interval_ms != UNSET:
            return self.commit_interval_ms
        return limits.LOCAL_COMMIT_INTERVAL_MS if local else limits.REMOTE_COMMIT_INTERVAL_MS

    @property
    def backoff(self) -> Backoff:
        """Pauses before repetitions."""
        return Backoff(first_ms=self.retry_backoff_ms, ceiling_ms=self.retry_backoff_max_ms)

    @property
    def lease_life_ms(self) -> int:
        """How long after it was reserved a key may still be taken for an object."""
        return self.sweep_pending_grace_ms // limits.LEASE_LIFE_SHARE
