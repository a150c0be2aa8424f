"""Broker defaults for topics, under Kafka's broker-side names (`log.*` and a few more).

A configuration has different names for topics and for brokers (`retention.bytes` and
`log.retention.bytes`). Some times have several broker names with different units
(`log.retention.ms`, `.minutes`, `.hours`). The first one that is set applies (`configs.py`).
`UNSET` means that a setting is not set, as null in Kafka.

Source: Kafka's `ServerLogConfigs`, `CleanerConfig` and `ServerTopicConfigSynonyms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock.base.settings import INT_MAX, describe, like
from penstock.storage.config import LogConfig

UNSET: Final = -(2**31)
"""Value of an integer setting that is not set. It is outside the bounds of all settings."""
_TOPIC: Final = {info.name: info for info in describe(LogConfig)}
_FOR_EVER: Final = _TOPIC["retention.ms"].doc
_JITTER: Final = "Maximum of the random time by which a segment is closed early."


def _of(name: str, **changes: Any) -> Any:
    return like(_TOPIC[name], **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """Broker defaults of topic configurations.

    Of several fields for the same configuration, the first one that is set applies.
    """

    compression_gzip_level: int = _of("compression.gzip.level")
    compression_lz4_level: int = _of("compression.lz4.level")
    compression_zstd_level: int = _of("compression.zstd.level")
    compression_type: str = _of("compression.type")
    message_max_bytes: int = _of("max.message.bytes")
    min_insync_replicas: int = _of("min.insync.replicas")
    unclean_leader_election_enable: bool = _of("unclean.leader.election.enable")
    log_cleanup_policy: tuple[str, ...] = _of("cleanup.policy")
    log_retention_ms: int = _of(
        "retention.ms", default=UNSET, doc=f"{_FOR_EVER} Overrides minutes and hours."
    )
    log_retention_minutes: int = _of(
        "retention.ms", default=UNSET, doc=f"{_FOR_EVER} Overrides hours.", maximum=INT_MAX
    )
    log_retention_hours: int = _of("retention.ms", default=168, maximum=INT_MAX)
    log_retention_bytes: int = _of("retention.bytes")
    log_segment_bytes: int = _of("segment.bytes")
    log_roll_ms: int = _of(
        "segment.ms", default=UNSET, doc="Age at which a segment is closed. Overrides hours."
    )
    log_roll_hours: int = _of(
        "segment.ms", default=168, doc="Age at which a segment is closed.", maximum=INT_MAX
    )
    log_roll_jitter_ms: int = _of(
        "segment.jitter.ms", default=UNSET, doc=f"{_JITTER} Overrides hours."
    )
    log_roll_jitter_hours: int = _of("segment.jitter.ms", doc=_JITTER, maximum=INT_MAX)
    log_index_interval_bytes: int = _of("index.interval.bytes")
    log_index_size_max_bytes: int = _of("segment.index.bytes", doc="Largest size of an index file.")
    log_flush_interval_messages: int = _of("flush.messages")
    log_segment_delete_delay_ms: int = _of("file.delete.delay.ms")
    log_cleaner_delete_retention_ms: int = _of("delete.retention.ms")
    log_cleaner_min_cleanable_ratio: float = _of("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _of("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _of("max.compaction.lag.ms")
    log_preallocate: bool = _of("preallocate")
    log_message_timestamp_type: str = _of("message.timestamp.type")
    log_message_timestamp_before_max_ms: int = _of("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = _of("message.timestamp.after.max.ms")
    log_record_validation: str = _of("record.validation")
    log_local_retention_ms: int = _of("local.retention.ms")
    log_local_retention_bytes: int = _of("local.retention.bytes")
