"""Configuration of a topic, under Kafka's names, with Kafka's defaults and bounds.

It also declares names that other rooms act on (`min.insync.replicas`, remote storage, compaction,
tables), because a topic has one configuration.

Source: Kafka's `TopicConfig` and `LogConfig`; KIP-1030 (defaults and bounds of Kafka 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.settings import INT_MAX, LONG_MAX, NoEffect, setting

GZIP_LEVELS: Final = ("-1", *map(str, range(1, 10)))
NOT_THROTTLED: Final = NoEffect(why="copies to other brokers are not throttled")
NO_RESERVE: Final = NoEffect(why="segment files grow as they are written")
THROTTLED_REPLICAS: Final = r"\*|(\d+:\d+(,\d+:\d+)*)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Storage settings of a topic's partitions."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",), "What happens to old segments: delete them, compact them by key, or both.",
        choices=("delete", "compact"),
    )  # fmt: skip
    compression_gzip_level: int = setting(
        -1, "Level of batches that the broker compresses with gzip; -1 is zlib's own, 6.",
        choices=GZIP_LEVELS,
    )  # fmt: skip
    compression_lz4_level: int = setting(
        9, "Level of batches that the broker compresses with lz4; 9 is the fast one, as in Kafka.",
        1, 17,
    )  # fmt: skip
    compression_zstd_level: int = setting(
        3, "Level of batches that the broker compresses with zstd.", -131_072, 22
    )
    compression_type: str = setting(
        "producer", "Codec that stored batches must have; 'producer' keeps whatever the producer"
        " chose.", choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )  # fmt: skip
    delete_retention_ms: int = setting(
        86_400_000, "How long tombstones stay in a compacted topic.", 0, LONG_MAX
    )
    diskless_enable: bool = setting(
        False, "Keep the topic's records in the object store instead of on brokers; may be set"
        " later, or set back, which moves the records.",
    )  # fmt: skip
    errors_deadletterqueue_group_enable: bool = setting(
        False, "Let share groups write dead letters here that name this topic in"
        " errors.deadletterqueue.topic.name."
    )  # fmt: skip
    file_delete_delay_ms: int = setting(
        60_000, "How long a deleted segment file stays on disk.", 0, LONG_MAX
    )
    flush_messages: int = setting(
        LONG_MAX, "Records after which a partition is forced to disk, whatever the flush policy.",
        1, LONG_MAX,
    )  # fmt: skip
    flush_ms: int = setting(
        LONG_MAX, "Time after which a partition is forced to disk, whatever the flush policy.", 0,
        LONG_MAX,
    )  # fmt: skip
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (), "Replicas, as partition:broker or *, whose following is throttled.",
        pattern=THROTTLED_REPLICAS, no_effect=NOT_THROTTLED,
    )  # fmt: skip
    index_interval_bytes: int = setting(
        4096, "Bytes of log between two entries of the offset index.", 0, INT_MAX
    )
    internal_segment_bytes: int = setting(
        0, "In the place of segment.bytes where it is above 0, for tests with small segments.", 0,
        INT_MAX,
    )  # fmt: skip
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (), "Replicas, as partition:broker or *, whose being followed is throttled.",
        pattern=THROTTLED_REPLICAS, no_effect=NOT_THROTTLED,
    )  # fmt: skip
    local_retention_bytes: int = setting(
        -2, "Keep this much of a tiered partition on local disk; -2 follows retention.bytes.", -2,
        LONG_MAX,
    )  # fmt: skip
    local_retention_ms: int = setting(
        -2, "Keep tiered segments on local disk this long; -2 follows retention.ms.", -2, LONG_MAX
    )
    max_compaction_lag_ms: int = setting(
        LONG_MAX, "Age above which a record must have been seen by compaction.", 1, LONG_MAX
    )
    max_message_bytes: int = setting(
        1_048_588, "Largest record batch, after compression, that a producer may send.", 0, INT_MAX
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, "How far ahead of the broker's clock a producer's timestamp may be.", 0, LONG_MAX
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX, "How far behind the broker's clock a producer's timestamp may be.", 0, LONG_MAX
    )
    message_timestamp_type: str = setting(
        "CreateTime", "Whether a record's time is the producer's or that of its append.",
        choices=("CreateTime", "LogAppendTime"),
    )  # fmt: skip
    min_cleanable_dirty_ratio: float = setting(
        0.5, "Share of uncompacted bytes above which a log is worth compacting.", 0, 1
    )
    min_compaction_lag_ms: int = setting(
        0, "Age below which a record is never compacted away.", 0, LONG_MAX
    )
    min_insync_replicas: int = setting(
        1, "Replicas that must hold a batch before acks=all is answered.", 1, INT_MAX
    )
    preallocate: bool = setting(
        False, "Reserve the space of a segment when it is created.", no_effect=NO_RESERVE
    )
    record_validation: str = setting(
        "chain", "Depth of the validation of produced batches: 'headers' checks header and"
        " checksum, 'chain' also the record framing of uncompressed batches and the frames of"
        " compressed ones, 'full' also decompresses and checks compressed batches.",
        choices=("headers", "chain", "full"),
    )  # fmt: skip
    remote_log_copy_disable: bool = setting(
        False, "Copy nothing more to the archive; archived segments are still read, and expire."
    )
    remote_log_delete_on_disable: bool = setting(
        False, "Delete the archived segments once remote.storage.enable is set to false."
    )
    remote_storage_enable: bool = setting(
        False, "Copy closed segments to the archive, so that local ones may be dropped earlier."
    )
    retention_bytes: int = setting(
        -1, "Keep at most this much of a partition; -1 sets no limit.", -1, LONG_MAX
    )
    retention_ms: int = setting(
        604_800_000, "Keep records this long; -1 keeps them for ever.", -1, LONG_MAX
    )
    segment_bytes: int = setting(
        1 << 30, "Size at which a segment file is closed and a new one begun.", 1 << 20, INT_MAX
    )
    segment_index_bytes: int = setting(
        10 << 20, "Largest size of an index file; a segment whose index is full is closed.", 4,
        INT_MAX,
    )  # fmt: skip
    segment_jitter_ms: int = setting(
        0, "Part subtracted from segment.ms, different for each segment, to spread the rolls.", 0,
        LONG_MAX,
    )  # fmt: skip
    segment_ms: int = setting(
        604_800_000, "Age at which a segment is closed, even if it is not full.", 1, LONG_MAX
    )
    table_codec: str = setting(
        "snappy", "Compression of the files of the topic's table; see table.format.",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
    )  # fmt: skip
    table_commit_interval_ms: int = setting(
        60_000, "Interval of the commits to the topic's table; see table.format.", 100,
        86_400_000,
    )  # fmt: skip
    table_format: str = setting(
        "none", "Table that `penstock table run` keeps beside the topic; 'none' keeps none.",
        choices=("none", "delta"),
    )  # fmt: skip
    table_location: str = setting(
        "", "Absolute path or URI of that table; empty is the topic's name below the job's root."
    )
    unclean_leader_election_enable: bool = setting(
        False, "Let a replica that is behind lead when no other is left, at the price of records."
        " Discarded records are reported by `penstock doctor`."
    )  # fmt: skip
