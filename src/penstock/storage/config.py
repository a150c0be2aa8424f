"""A topic's configuration, under Kafka's names, with Kafka's defaults and bounds.

The storage acts on the names that concern a log; the others (`min.insync.replicas`, the remote,
the compaction and the table ones) are declared here too because a topic has one configuration,
and who acts on them reads it from `PartitionLog.config` or asks the broker for it.

Source: Kafka's `TopicConfig` and `LogConfig`; KIP-1030 (defaults and bounds of Kafka 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock.base.settings import INT_MAX, LONG_MAX, NoEffect, setting

GZIP_LEVELS: Final = ("-1", *map(str, range(1, 10)))
NOT_COMPACTED: Final = NoEffect(
    why="nothing is compacted yet; without delete the topic keeps every record", words=("compact",)
)
NO_COMPACTION: Final = NoEffect(why="nothing is compacted yet")
NO_TIERS: Final = NoEffect(
    why="there is no tiered storage yet, and segments stay on the broker's disk for as long as"
    " retention.ms and retention.bytes say",
    refused=True,
)
ONE_REPLICA: Final = NoEffect(why="a partition has one replica")
NO_RESERVE: Final = NoEffect(why="segment files grow as they are written")
THROTTLED_REPLICAS: Final = r"\*|(\d+:\d+(,\d+:\d+)*)?"


def gzip_level() -> Any:
    """The setting `compression.gzip.level`, of a topic and of a broker's topics that do not say."""
    return setting(
        -1,
        name="compression.gzip.level",
        doc="Level of batches that the broker compresses with gzip; -1 is zlib's own, 6.",
        choices=GZIP_LEVELS,
    )


def lz4_level() -> Any:
    """As `gzip_level`, of lz4."""
    return setting(
        9,
        name="compression.lz4.level",
        doc="Level of batches that the broker compresses with lz4; 9 is the fast one, as in Kafka.",
        minimum=1,
        maximum=17,
    )


def zstd_level() -> Any:
    """As `gzip_level`, of zstd."""
    return setting(
        3,
        name="compression.zstd.level",
        doc="Level of batches that the broker compresses with zstd.",
        minimum=-131_072,
        maximum=22,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How the partitions of a topic are stored."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        name="cleanup.policy",
        doc="What happens to old segments: delete them, compact them by key, or both.",
        choices=("delete", "compact"),
        no_effect=NOT_COMPACTED,
    )
    compression_gzip_level: int = gzip_level()
    compression_lz4_level: int = lz4_level()
    compression_zstd_level: int = zstd_level()
    compression_type: str = setting(
        "producer",
        name="compression.type",
        doc="Codec that stored batches must have; 'producer' keeps whatever the producer chose.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    delete_retention_ms: int = setting(
        86_400_000,
        name="delete.retention.ms",
        doc="How long tombstones stay in a compacted topic.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
        no_effect=NO_COMPACTION,
    )
    diskless_enable: bool = setting(
        False,
        name="diskless.enable",
        doc=(
            "Keep the topic's records in the object store instead of on brokers; may be set later,"
            " which moves the records, and is never taken back."
        ),
    )
    file_delete_delay_ms: int = setting(
        60_000,
        name="file.delete.delay.ms",
        doc="How long a deleted segment file stays on disk.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
    )
    flush_messages: int = setting(
        LONG_MAX,
        name="flush.messages",
        doc="Records after which a partition is forced to disk, whatever the flush policy.",
        minimum=1,
        maximum=LONG_MAX,
    )
    flush_ms: int = setting(
        LONG_MAX,
        name="flush.ms",
        doc="Time after which a partition is forced to disk, whatever the flush policy.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        name="follower.replication.throttled.replicas",
        doc="Replicas, as partition:broker or *, whose following is throttled.",
        pattern=THROTTLED_REPLICAS,
        no_effect=ONE_REPLICA,
    )
    index_interval_bytes: int = setting(
        4096,
        name="index.interval.bytes",
        doc="Bytes of log between two entries of the offset index.",
        unit="bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    internal_segment_bytes: int = setting(
        0,
        name="internal.segment.bytes",
        doc="In the place of segment.bytes where it is above 0, for tests with small segments.",
        unit="bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        name="leader.replication.throttled.replicas",
        doc="Replicas, as partition:broker or *, whose being followed is throttled.",
        pattern=THROTTLED_REPLICAS,
        no_effect=ONE_REPLICA,
    )
    local_retention_bytes: int = setting(
        -2,
        name="local.retention.bytes",
        doc="Keep this much of a tiered partition on local disk; -2 follows retention.bytes.",
        unit="bytes",
        minimum=-2,
        maximum=LONG_MAX,
        no_effect=NO_TIERS,
    )
    local_retention_ms: int = setting(
        -2,
        name="local.retention.ms",
        doc="Keep tiered segments on local disk this long; -2 follows retention.ms.",
        unit="ms",
        minimum=-2,
        maximum=LONG_MAX,
        no_effect=NO_TIERS,
    )
    max_compaction_lag_ms: int = setting(
        LONG_MAX,
        name="max.compaction.lag.ms",
        doc="Age above which a record must have been seen by compaction.",
        unit="ms",
        minimum=1,
        maximum=LONG_MAX,
        no_effect=NO_COMPACTION,
    )
    max_message_bytes: int = setting(
        1_048_588,
        name="max.message.bytes",
        doc="Largest record batch, after compression, that a producer may send.",
        unit="bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000,
        name="message.timestamp.after.max.ms",
        doc="How far ahead of the broker's clock a producer's timestamp may be.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX,
        name="message.timestamp.before.max.ms",
        doc="How far behind the broker's clock a producer's timestamp may be.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        name="message.timestamp.type",
        doc="Whether a record's time is the producer's or that of its append.",
        choices=("CreateTime", "LogAppendTime"),
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        name="min.cleanable.dirty.ratio",
        doc="Share of uncompacted bytes at which a log is worth compacting.",
        minimum=0,
        maximum=1,
        no_effect=NO_COMPACTION,
    )
    min_compaction_lag_ms: int = setting(
        0,
        name="min.compaction.lag.ms",
        doc="Age below which a record is never compacted away.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
        no_effect=NO_COMPACTION,
    )
    min_insync_replicas: int = setting(
        1,
        name="min.insync.replicas",
        doc="Replicas that must hold a batch before acks=all is answered.",
        minimum=1,
        maximum=INT_MAX,
    )
    preallocate: bool = setting(
        False,
        name="preallocate",
        doc="Reserve the space of a segment when it is created.",
        no_effect=NO_RESERVE,
    )
    record_validation: str = setting(
        "headers",
        name="record.validation",
        doc=(
            "How far produced batches are looked into: 'headers' not beyond header and checksum,"
            " 'chain' walks the records of uncompressed ones, 'full' opens compressed ones too."
        ),
        choices=("headers", "chain", "full"),
    )
    remote_storage_enable: bool = setting(
        False,
        name="remote.storage.enable",
        doc="Copy closed segments to the archive, so that local ones may be dropped earlier.",
        no_effect=NO_TIERS,
    )
    retention_bytes: int = setting(
        -1,
        name="retention.bytes",
        doc="Keep at most this much of a partition; -1 sets no limit.",
        unit="bytes",
        minimum=-1,
        maximum=LONG_MAX,
    )
    retention_ms: int = setting(
        604_800_000,
        name="retention.ms",
        doc="Keep records this long; -1 keeps them for ever.",
        unit="ms",
        minimum=-1,
        maximum=LONG_MAX,
    )
    segment_bytes: int = setting(
        1 << 30,
        name="segment.bytes",
        doc="Size at which a segment file is closed and a new one begun.",
        unit="bytes",
        minimum=1 << 20,
        maximum=INT_MAX,
    )
    segment_index_bytes: int = setting(
        10 << 20,
        name="segment.index.bytes",
        doc="Largest size of an index file; a segment whose index is full is closed.",
        unit="bytes",
        minimum=4,
        maximum=INT_MAX,
    )
    segment_jitter_ms: int = setting(
        0,
        name="segment.jitter.ms",
        doc="Part subtracted from segment.ms, different for each segment, to spread the rolls.",
        unit="ms",
        minimum=0,
        maximum=LONG_MAX,
    )
    segment_ms: int = setting(
        604_800_000,
        name="segment.ms",
        doc="Age at which a segment is closed, even if it is not full.",
        unit="ms",
        minimum=1,
        maximum=LONG_MAX,
    )
    table_codec: str = setting(
        "snappy",
        name="table.codec",
        doc="Compression of the files of the table beside the topic; see table.format.",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
    )
    table_commit_interval_ms: int = setting(
        60_000,
        name="table.commit.interval.ms",
        doc="How often the table beside the topic gets a commit; see table.format.",
        unit="ms",
        minimum=100,
        maximum=86_400_000,
    )
    table_format: str = setting(
        "none",
        name="table.format",
        doc="Table that `penstock table run` keeps beside the topic; 'none' keeps none.",
        choices=("none", "delta"),
    )
    table_location: str = setting(
        "",
        name="table.location",
        doc="Absolute path or URI of that table; empty is the topic's name below the job's root.",
    )
    unclean_leader_election_enable: bool = setting(
        False,
        name="unclean.leader.election.enable",
        doc="Let a replica that is behind lead when no other is left, at the price of records.",
        no_effect=ONE_REPLICA,
    )
