"""Settings of the broker's files (journal, flushing, caches, checkpoints), and of a topic's log.

Settings that Kafka has, too, have Kafka's names; the other names follow its style.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.settings import INT_MAX, LONG_MAX, NoEffect, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Settings of how a broker writes, caches and checkpoints its logs."""

    journal_file_bytes: int = setting(
        64 << 20, "Size of one journal file; full files are reused after a checkpoint.", 1 << 20,
        INT_MAX,
    )  # fmt: skip
    journal_files_max: int = setting(
        16, "Maximum number of journal files; when all are in use, appends wait for a checkpoint.",
        2, 4096,
    )  # fmt: skip
    log_flush_policy: str = setting(
        "group", "Time of the response to a produce request: 'group' after the sync that covers it,"
        " 'interval' after the journal write, which is synced every log.flush.interval.ms, 'os'"
        " after the segment write, which a checkpoint syncs. With 'os', committed offsets are not"
        " synced either.", choices=("group", "interval", "os"),
    )  # fmt: skip
    log_flush_interval_ms: int = setting(
        1000, "Maximum time that a write stays unsynced if log.flush.policy is interval.", 1,
        LONG_MAX,
    )  # fmt: skip
    journal_append_bytes_max: int = setting(
        256 << 10, "Appends larger than this are written to their segment and synced there; the"
        " journal stores only their position. An append is one partition of a request.", 1, INT_MAX,
    )  # fmt: skip
    log_checkpoint_interval_ms: int = setting(
        60_000, "Time after which written segments are synced and journal files are freed.", 1,
        LONG_MAX,
    )  # fmt: skip
    log_checkpoint_bytes: int = setting(
        256 << 20, "Journal bytes after which written segments are synced and journal files are"
        " freed.", 1 << 16, LONG_MAX,
    )  # fmt: skip
    log_cleaner_backoff_ms: int = setting(
        15_000, "Time between two searches for compacted logs that are dirty enough; after a"
        " compaction the next search follows at once.", 0, LONG_MAX,
    )  # fmt: skip
    log_cleaner_dedupe_buffer_size: int = setting(
        128 << 20, "Memory for the keys of compacted records, of all threads together. A key takes"
        " 32 bytes: a slot has 24 bytes, and three of four slots are used. Logs with more keys take"
        " several passes.", 1 << 20, LONG_MAX,
    )  # fmt: skip
    log_cleaner_enable: bool = setting(
        True, "Whether topics are compacted whose cleanup.policy includes compact."
    )
    log_cleaner_io_buffer_size: int = setting(
        4 << 20, "Bytes that compaction reads at once, of all threads together; a larger batch is"
        " read as a whole.", 1 << 14, INT_MAX,
    )  # fmt: skip
    log_cleaner_io_max_bytes_per_second: int = setting(
        LONG_MAX, "Bytes that compaction reads and writes per second, of all threads together.",
        1, LONG_MAX,
    )  # fmt: skip
    log_cleaner_threads: int = setting(1, "Threads that compact, each one log at a time.", 1, 64)
    log_retention_check_interval_ms: int = setting(
        300_000, "Time between two searches for segments that retention removes.", 1, LONG_MAX
    )
    tail_cache_bytes: int = setting(
        64 << 20, "Memory for the newest batches of all partitions, for consumers at the log end.",
        1 << 16, LONG_MAX,
    )  # fmt: skip
    pending_bytes_max: int = setting(
        256 << 20, "Appended bytes that may wait for the journal; more are rejected with an error.",
        1 << 20, LONG_MAX,
    )  # fmt: skip
    open_files_max: int = setting(
        4096, "Segment and index files kept open at once; the least recently used is closed.", 16,
        INT_MAX,
    )  # fmt: skip
    producer_id_expiration_ms: int = setting(
        86_400_000, "Time that the sequence of an idle idempotent producer is remembered.", 1,
        LONG_MAX,
    )  # fmt: skip


# Configuration of a topic, under Kafka's names, with Kafka's defaults and bounds.
#
# It also declares names that other rooms act on (`min.insync.replicas`, remote storage, compaction,
# tables), because a topic has one configuration.
#
# Source: Kafka's `TopicConfig` and `LogConfig`; KIP-1030 (defaults and bounds of Kafka 4).


GZIP_LEVELS: Final = ("-1", *map(str, range(1, 10)))
NOT_THROTTLED: Final = NoEffect(why="replication is not throttled")
NO_RESERVE: Final = NoEffect(why="segment files grow as they are written")
THROTTLED_REPLICAS: Final = r"\*|(\d+:\d+(,\d+:\d+)*)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Storage settings of a topic's partitions."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",), "Cleanup of old segments: delete them, compact them by key, or both.",
        choices=("delete", "compact"),
    )  # fmt: skip
    compression_gzip_level: int = setting(
        -1, "Level of batches that the broker compresses with gzip; -1 is zlib's own, 6.",
        choices=GZIP_LEVELS,
    )  # fmt: skip
    compression_lz4_level: int = setting(
        9, "Level of batches that the broker compresses with lz4; 9 selects the fast compressor, as"
        " in Kafka.", 1, 17,
    )  # fmt: skip
    compression_zstd_level: int = setting(
        3, "Level of batches that the broker compresses with zstd.", -131_072, 22
    )
    compression_type: str = setting(
        "producer", "Codec of stored batches; 'producer' keeps the codec that the producer chose.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )  # fmt: skip
    delete_retention_ms: int = setting(
        86_400_000, "Time that tombstones stay in a compacted topic.", 0, LONG_MAX
    )
    diskless_enable: bool = setting(
        False, "Keep the topic's records in the object store instead of on brokers. A change of"
        " this setting moves the existing records.",
    )  # fmt: skip
    errors_deadletterqueue_group_enable: bool = setting(
        False, "Whether share groups that name this topic in errors.deadletterqueue.topic.name may"
        " write dead letters to it."
    )  # fmt: skip
    file_delete_delay_ms: int = setting(
        60_000, "Time that a deleted segment file stays on disk.", 0, LONG_MAX
    )
    flush_messages: int = setting(
        LONG_MAX, "Records after which a partition is synced, with any log.flush.policy.", 1,
        LONG_MAX,
    )  # fmt: skip
    flush_ms: int = setting(
        LONG_MAX, "Time after which a partition is synced, with any log.flush.policy.", 0, LONG_MAX,
    )  # fmt: skip
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (), "Followers whose fetching is throttled, as partition:broker or *.",
        pattern=THROTTLED_REPLICAS, no_effect=NOT_THROTTLED,
    )  # fmt: skip
    index_interval_bytes: int = setting(
        4096, "Bytes of log between two entries of the offset index.", 0, INT_MAX
    )
    internal_segment_bytes: int = setting(
        0, "Replaces segment.bytes if it is above 0, for tests with small segments.", 0, INT_MAX,
    )  # fmt: skip
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (), "Leaders whose sending to followers is throttled, as partition:broker or *.",
        pattern=THROTTLED_REPLICAS, no_effect=NOT_THROTTLED,
    )  # fmt: skip
    link_client_config: str = setting(
        "", "Absolute path, on each broker, of a properties file with the client's security options"
        " for the brokers of link.source; empty for a source without security.",
    )  # fmt: skip
    link_epoch: int = setting(
        0, "Lowest leader epoch that clients of a linked topic see. The brokers set it; a request"
        " cannot change it.", 0, INT_MAX,
    )  # fmt: skip
    link_source: str = setting(
        "", "Brokers of another cluster, as HOST:PORT, whose topic of the same name this topic"
        " follows: it has the same batches at the same offsets, and rejects producers. Empty for a"
        " topic without a link; deleting this setting promotes the topic.",
    )  # fmt: skip
    link_source_topic_id: str = setting(
        "", "Id of the topic that a linked topic follows. The link stops if the source's topic has"
        " another id, because it was created again. Brokers set it; a request cannot change it.",
    )  # fmt: skip
    local_retention_bytes: int = setting(
        -2, "Bytes of a tiered partition to keep on local disk; -2 means retention.bytes.", -2,
        LONG_MAX,
    )  # fmt: skip
    local_retention_ms: int = setting(
        -2, "Time to keep tiered segments on local disk; -2 means retention.ms.", -2, LONG_MAX
    )
    max_compaction_lag_ms: int = setting(
        LONG_MAX, "Maximum age of a record that compaction has not processed yet.", 1, LONG_MAX
    )
    max_message_bytes: int = setting(
        1_048_588, "Largest record batch, after compression, that a producer may send.", 0, INT_MAX
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, "Maximum lead of a producer's timestamp over the broker's clock.", 0, LONG_MAX
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX, "Maximum lag of a producer's timestamp behind the broker's clock.", 0, LONG_MAX
    )
    message_timestamp_type: str = setting(
        "CreateTime", "Timestamp of a record: the producer's (CreateTime), or that of its append.",
        choices=("CreateTime", "LogAppendTime"),
    )  # fmt: skip
    min_cleanable_dirty_ratio: float = setting(
        0.5, "Share of uncompacted bytes above which a log is compacted.", 0, 1
    )
    min_compaction_lag_ms: int = setting(
        0, "Minimum age of a record before compaction may remove it.", 0, LONG_MAX
    )
    min_insync_replicas: int = setting(
        1, "Replicas that must hold a batch before acks=all is answered. A topic with one replica"
        " needs only that one.", 1, INT_MAX,
    )  # fmt: skip
    preallocate: bool = setting(
        False, "Reserve the space of a segment when it is created.", no_effect=NO_RESERVE
    )
    record_validation: str = setting(
        "chain", "Depth of the validation of produced batches: 'headers' checks header and"
        " checksum, 'chain' also the lengths of records in uncompressed batches and the frames of"
        " compressed batches, 'full' also decompresses and checks compressed batches.",
        choices=("headers", "chain", "full"),
    )  # fmt: skip
    remote_log_copy_disable: bool = setting(
        False, "Stop copying segments to the archive. Archived segments are still read, and expire."
    )
    remote_log_delete_on_disable: bool = setting(
        False, "Delete the archived segments once remote.storage.enable is set to false."
    )
    remote_storage_enable: bool = setting(
        False, "Copy closed segments to the archive, so that local ones may be deleted earlier."
    )
    retention_bytes: int = setting(
        -1, "Maximum bytes of a partition to keep; -1 sets no limit.", -1, LONG_MAX
    )
    retention_ms: int = setting(
        604_800_000, "Time to keep records; -1 keeps them for ever.", -1, LONG_MAX
    )
    schema_validation_key: bool = setting(
        False, "Whether the key of each produced record must have the id of a registered schema."
        " Null keys are accepted. The brokers must have registry.enable = true.",
    )  # fmt: skip
    schema_validation_subject_strategy: str = setting(
        "any", "Schemas that schema.validation.key and schema.validation.value accept: 'any'"
        " schema of the default context, or those of the 'topic', which are the versions of the"
        " subjects <topic>-key and <topic>-value.", choices=("any", "topic"),
    )  # fmt: skip
    schema_validation_value: bool = setting(
        False, "Whether the value of each produced record must have the id of a registered schema."
        " Null values are accepted. The brokers must have registry.enable = true.",
    )  # fmt: skip
    segment_bytes: int = setting(
        1 << 30, "Size at which a segment file is closed and a new one begun.", 1 << 20, INT_MAX
    )
    segment_index_bytes: int = setting(
        10 << 20, "Largest size of an index file; a segment whose index is full is closed.", 4,
        INT_MAX,
    )  # fmt: skip
    segment_jitter_ms: int = setting(
        0, "Maximum time that is subtracted from segment.ms; it differs for each segment, so that"
        " segments do not all roll at once.", 0, LONG_MAX,
    )  # fmt: skip
    segment_ms: int = setting(
        604_800_000, "Age at which a segment is closed, even if it is not full.", 1, LONG_MAX
    )
    table_codec: str = setting(
        "snappy", "Compression codec of the files of the topic's table; see table.format.",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
    )  # fmt: skip
    table_commit_interval_ms: int = setting(
        60_000, "Interval of the commits to the topic's table; see table.format.", 100,
        86_400_000,
    )  # fmt: skip
    table_format: str = setting(
        "none", "Format of the table that `penstock table run` writes of the topic; 'none': none.",
        choices=("none", "delta"),
    )  # fmt: skip
    table_location: str = setting(
        "", "Absolute path or URI of the table; empty means the topic's name below the job's root."
    )
    unclean_leader_election_enable: bool = setting(
        False, "Whether an out-of-sync replica may become leader if no in-sync replica is left."
        " This loses records; `penstock doctor` reports them."
    )  # fmt: skip
