"""The broker's defaults for topics, under Kafka's broker-side names (`log.*` and a few more).

A topic that does not set a configuration takes it from the broker. Kafka gives each such pair
two names, one per level (`retention.bytes` and `log.retention.bytes`), and for times a chain of
names in falling precision (`log.retention.ms`, `.minutes`, `.hours`); `configs.py` resolves
them. `UNSET` stands for Kafka's null: the name was not given, so the next of its chain counts.

Source: Kafka's `ServerLogConfigs`, `CleanerConfig` and `ServerTopicConfigSynonyms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.settings import INT_MAX, LONG_MAX, setting
from penstock.storage.config import (
    NO_COMPACTION,
    NO_RESERVE,
    NO_TIERS,
    NOT_COMPACTED,
    ONE_REPLICA,
    gzip_level,
    lz4_level,
    zstd_level,
)

UNSET: Final = -(2**31)
"""An integer setting that was not given; no bounds admit it, so nobody can give it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """What a topic gets when it does not say."""

    compression_gzip_level: int = gzip_level()
    compression_lz4_level: int = lz4_level()
    compression_zstd_level: int = zstd_level()
    compression_type: str = setting(
        "producer",
        name="compression.type",
        doc="Codec that stored batches must have; 'producer' keeps whatever the producer chose.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    message_max_bytes: int = setting(
        1_048_588,
        name="message.max.bytes",
        doc="Largest record batch, after compression, that a producer may send.",
        unit="bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    min_insync_replicas: int = setting(
        1,
        name="min.insync.replicas",
        doc="Replicas that must hold a batch before acks=all is answered.",
        minimum=1,
        maximum=INT_MAX,
    )
    unclean_leader_election_enable: bool = setting(
        False,
        name="unclean.leader.election.enable",
        doc="Let a replica that is behind lead when no other is left, at the price of records.",
        no_effect=ONE_REPLICA,
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        name="log.cleanup.policy",
        doc="What happens to old segments: delete them, compact them by key, or both.",
        choices=("delete", "compact"),
        no_effect=NOT_COMPACTED,
    )
    log_retention_ms: int = setting(
        UNSET,
        name="log.retention.ms",
        doc="Keep records this long; -1 keeps them for ever. Wins over minutes and hours.",
        unit="ms",
        minimum=-1,
        maximum=LONG_MAX,
    )
    log_retention_minutes: int = setting(
        UNSET,
        name="log.retention.minutes",
        doc="Keep records this long; -1 keeps them for ever. Wins over hours.",
        unit="minutes",
        minimum=-1,
        maximum=INT_MAX,
    )
    log_retention_hours: int = setting(
        168,
        name="log.retention.hours",
        doc="Keep records this long; -1 keeps them for ever.",
        unit="hours",
        minimum=-1,
        maximum=INT_MAX,
    )
    log_retention_bytes: int = setting(
        -1,
        name="log.retention.bytes",
        doc="Keep at most this much of a partition; -1 sets no limit.",
        unit="bytes",
        minimum=-1,
        maximum=LONG_MAX,
    )
    log_segment_bytes: int = setting(
        1 << 30,
        name="log.segment.bytes",
        doc="Size at which a segment file is closed and a new one begun.",
        unit="bytes",
        minimum=1 << 20,
        maximum=INT_MAX,
    )
    log_roll_ms: int = setting(
        UNSET,
        name="log.roll.ms",
        doc="Age at which a segment is closed. Wins over hours.",
        unit="ms",
        minimum=1,
        maximum=LONG_MAX,
    )
    log_roll_hours: int = setting(
        168,
        name="log.roll.hours",
        doc="Age at which a segment is closed.",
        unit="hours",
        minimum=1,
        maximum=INT_MAX,
    )
    log_roll_jitter_ms: int = setting(
        UNSET,
        name="log.roll.jitter.ms",
        doc="Random part subtracted from the roll age. Wins over hours.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
    )
    log_roll_jitter_hours: int = setting(
        0,
        name="log.roll.jitter.hours",
        doc="Random part subtracted from the roll age.",
        unit="hours",
        minimum=0,
        maximum=INT_MAX,
    )
    log_index_interval_bytes: int = setting(
        4096,
        name="log.index.interval.bytes",
        doc="Bytes of log between two entries of the offset index.",
        unit="bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    log_index_size_max_bytes: int = setting(
        10 << 20,
        name="log.index.size.max.bytes",
        doc="Largest size of an index file.",
        unit="bytes",
        minimum=4,
        maximum=INT_MAX,
    )
    log_flush_interval_messages: int = setting(
        LONG_MAX,
        name="log.flush.interval.messages",
        doc="Records after which a partition is forced to disk, whatever the flush policy.",
        minimum=1,
        maximum=LONG_MAX,
    )
    log_segment_delete_delay_ms: int = setting(
        60_000,
        name="log.segment.delete.delay.ms",
        doc="How long a deleted segment file stays on disk.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
    )
    log_cleaner_delete_retention_ms: int = setting(
        86_400_000,
        name="log.cleaner.delete.retention.ms",
        doc="How long tombstones stay in a compacted topic.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
        no_effect=NO_COMPACTION,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        0.5,
        name="log.cleaner.min.cleanable.ratio",
        doc="Share of uncompacted bytes at which a log is worth compacting.",
        minimum=0,
        maximum=1,
        no_effect=NO_COMPACTION,
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        0,
        name="log.cleaner.min.compaction.lag.ms",
        doc="Age below which a record is never compacted away.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
        no_effect=NO_COMPACTION,
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        LONG_MAX,
        name="log.cleaner.max.compaction.lag.ms",
        doc="Age above which a record must have been seen by compaction.",
        unit="ms",
        minimum=1,
        maximum=LONG_MAX,
        no_effect=NO_COMPACTION,
    )
    log_preallocate: bool = setting(
        False,
        name="log.preallocate",
        doc="Reserve the space of a segment when it is created.",
        no_effect=NO_RESERVE,
    )
    log_message_timestamp_type: str = setting(
        "CreateTime",
        name="log.message.timestamp.type",
        doc="Whether a record's time is the producer's or that of its append.",
        choices=("CreateTime", "LogAppendTime"),
    )
    log_message_timestamp_before_max_ms: int = setting(
        LONG_MAX,
        name="log.message.timestamp.before.max.ms",
        doc="How far behind the broker's clock a producer's timestamp may be.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
    )
    log_message_timestamp_after_max_ms: int = setting(
        3_600_000,
        name="log.message.timestamp.after.max.ms",
        doc="How far ahead of the broker's clock a producer's timestamp may be.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
    )
    log_record_validation: str = setting(
        "headers",
        name="log.record.validation",
        doc=(
            "How far produced batches are looked into: 'headers' not beyond header and checksum,"
            " 'chain' walks the records of uncompressed ones, 'full' opens compressed ones too."
        ),
        choices=("headers", "chain", "full"),
    )
    log_local_retention_ms: int = setting(
        -2,
        name="log.local.retention.ms",
        doc="Keep tiered segments on local disk this long; -2 follows the retention time.",
        unit="ms",
        minimum=-2,
        maximum=LONG_MAX,
        no_effect=NO_TIERS,
    )
    log_local_retention_bytes: int = setting(
        -2,
        name="log.local.retention.bytes",
        doc="Keep this much of a tiered partition on local disk; -2 follows the retention size.",
        unit="bytes",
        minimum=-2,
        maximum=LONG_MAX,
        no_effect=NO_TIERS,
    )
