"""Values of share partitions: runs of records, limits, acknowledgements.

Source: KIP-932 (states, acknowledgements), KIP-1191 (dead letters), KIP-1222 (renew).
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import ClassVar, NamedTuple

from msgspec import Struct, field

from penstock.base.errors import InvalidError
from penstock.broker.configuration.groups import (
    KNOWN_MAX,
    READ_COMMITTED,
    GroupConfigs,
    duration_ms,
)
from penstock.records.extents import EARLIEST, LATEST


class RecordState(IntEnum):
    """State of a record for one share group.

    `RESOLVED` covers KIP-932's Acknowledged and Archived. Records in `ARCHIVING` (KIP-1191) wait
    for their dead letters.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    RESOLVED = 2
    ARCHIVING = 3


class Run(NamedTuple):
    """Consecutive records, `first` to `last`, in the same state.

    `deliveries` counts acquisitions. Acquired runs have a `member` and a `deadline_ms`, in
    wall-clock time. Archiving runs have a `cause`, the value of a `Cause`.
    """

    first: int
    last: int
    state: RecordState
    deliveries: int = 0
    member: str = ""
    deadline_ms: int = 0
    cause: int = 0

    @property
    def records(self) -> int:
        return self.last - self.first + 1


class Acknowledge(IntEnum):
    """Type of an acknowledgement. `GAP` is for an offset without a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acknowledged(NamedTuple):
    first: int
    last: int
    kind: Acknowledge


class Batch(NamedTuple):
    """Offsets of a batch; `records` is false for control batches and aborted transactions."""

    first: int
    last: int
    records: bool = True


class Acquired(NamedTuple):
    """Records that a member holds until it acknowledges them or its lock expires."""

    first: int
    last: int
    deliveries: int


class Cause(IntEnum):
    """Cause of archiving a record: a member rejected it, or it was delivered too often."""

    REJECTED = 1
    DELIVERIES = 2


class Undeliverable(NamedTuple):
    first: int
    last: int
    deliveries: int
    cause: Cause

    @property
    def records(self) -> int:
        return self.last - self.first + 1


class ShareLimits(Struct, frozen=True, kw_only=True):
    """Limits from the settings of a group; `dead_letters` enables the archiving state."""

    delivery_count_limit: int = 5
    lock_duration_ms: int = 30_000
    record_locks_max: int = 2_000
    dead_letters: bool = False


class InvalidRecordState(InvalidError):
    """The member does not hold the records that it acknowledges."""

    code: ClassVar[str] = "invalid_record_state"


class InvalidAcknowledgement(InvalidError):
    code: ClassVar[str] = "invalid_request"


class ShareSettings(Struct, frozen=True, kw_only=True):
    """Settings of one share group.

    A new share partition begins at position `begins_at` (`records.positions`), or
    `begins_before_ms` before now if that is set. With `committed`, the group reads committed
    records only. `renews` allows members to renew locks. `dead_letter_topic` is the topic of dead
    letters, empty for none; with `copies` they contain the data of their records.
    """

    limits: ShareLimits = field(default_factory=ShareLimits)
    begins_at: int = LATEST
    begins_before_ms: int | None = None
    committed: bool = False
    renews: bool = True
    dead_letter_topic: str = ""
    copies: bool = True


@lru_cache(maxsize=KNOWN_MAX)
def share_settings(found: GroupConfigs) -> ShareSettings:
    reset = found.share_auto_offset_reset
    return ShareSettings(
        limits=ShareLimits(
            delivery_count_limit=found.share_delivery_count_limit,
            lock_duration_ms=found.share_record_lock_duration_ms,
            record_locks_max=found.share_partition_max_record_locks,
            dead_letters=bool(found.errors_deadletterqueue_topic_name),
        ),
        begins_at=EARLIEST if reset == "earliest" else LATEST,
        begins_before_ms=duration_ms(reset),
        committed=found.share_isolation_level == READ_COMMITTED,
        renews=found.share_renew_acknowledge_enable,
        dead_letter_topic=found.errors_deadletterqueue_topic_name,
        copies=found.errors_deadletterqueue_copy_record_enable,
    )
