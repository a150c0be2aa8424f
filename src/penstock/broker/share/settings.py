"""Settings of a share group, as its share partitions use them."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct, field

from penstock.broker.group_configs import KNOWN_MAX, READ_COMMITTED, GroupConfigs, duration_ms
from penstock.broker.share.values import ShareLimits
from penstock.records.positions import EARLIEST, LATEST


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
