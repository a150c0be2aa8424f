"""What a share group is set to, as its share partitions use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from penstock.broker.group_configs import KNOWN_MAX, READ_COMMITTED, GroupConfigs, duration_ms
from penstock.broker.share.values import ShareLimits
from penstock.records.positions import EARLIEST, LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    """The settings of one share group.

    It begins at a position (`records.positions`), or so long before now. `renews`: members may
    renew locks. `letter_topic` gets its dead letters, with the records' data if it `copies` them.
    """

    limits: ShareLimits = field(default_factory=ShareLimits)
    begins_at: int = LATEST
    begins_before_ms: int | None = None
    committed: bool = False
    renews: bool = True
    letter_topic: str = ""
    copies: bool = True


@lru_cache(maxsize=KNOWN_MAX)
def share_settings(found: GroupConfigs) -> ShareSettings:
    """What a group is set to."""
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
        letter_topic=found.errors_deadletterqueue_topic_name,
        copies=found.errors_deadletterqueue_copy_record_enable,
    )
