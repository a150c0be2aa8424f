"""Settings of the broker's files: journal, flushing, caches, checkpoints.

Settings that Kafka has, too, have Kafka's names; the other names follow its style.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.settings import INT_MAX, LONG_MAX, setting


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
        " after the segment write, which a checkpoint syncs.", choices=("group", "interval", "os"),
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
