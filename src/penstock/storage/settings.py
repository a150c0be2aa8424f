"""The broker's settings that concern its files: journal, flushing, caches, checkpoints.

Names that Kafka has are Kafka's; the others follow its manner.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.settings import INT_MAX, LONG_MAX, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """How one broker writes, caches and checkpoints its logs."""

    journal_file_bytes: int = setting(
        64 << 20,
        name="journal.file.bytes",
        doc="Size of one journal file; files are filled in turn and recycled.",
        unit="bytes",
        minimum=1 << 20,
        maximum=INT_MAX,
    )
    journal_files_max: int = setting(
        16,
        name="journal.files.max",
        doc="Journal files there may be; when all are in use, appends wait for a checkpoint.",
        minimum=2,
        maximum=4096,
    )
    log_flush_policy: str = setting(
        "group",
        name="log.flush.policy",
        doc=(
            "When a produce request is answered: 'group' after the sync that covers it, "
            "'interval' after the journal write, synced every log.flush.interval.ms, "
            "'os' after the write to the segment, synced by the checkpoint."
        ),
        choices=("group", "interval", "os"),
    )
    log_flush_interval_ms: int = setting(
        1000,
        name="log.flush.interval.ms",
        doc="With log.flush.policy = interval: the longest time that a write stays unsynced.",
        unit="ms",
        minimum=1,
        maximum=LONG_MAX,
    )
    log_checkpoint_interval_ms: int = setting(
        60_000,
        name="log.checkpoint.interval.ms",
        doc="Time after which written segments are synced and journal files are freed.",
        unit="ms",
        minimum=1,
        maximum=LONG_MAX,
    )
    log_checkpoint_bytes: int = setting(
        256 << 20,
        name="log.checkpoint.bytes",
        doc="Journal bytes after which written segments are synced and journal files are freed.",
        unit="bytes",
        minimum=1 << 16,
        maximum=LONG_MAX,
    )
    log_retention_check_interval_ms: int = setting(
        300_000,
        name="log.retention.check.interval.ms",
        doc="Time between two looks at which segments retention lets go.",
        unit="ms",
        minimum=1,
        maximum=LONG_MAX,
    )
    tail_cache_bytes: int = setting(
        64 << 20,
        name="tail.cache.bytes",
        doc="Newest batches of all partitions kept in memory, for consumers that keep up.",
        unit="bytes",
        minimum=1 << 16,
        maximum=LONG_MAX,
    )
    pending_bytes_max: int = setting(
        256 << 20,
        name="pending.bytes.max",
        doc="Appended bytes that may wait for the journal; more are refused with an error.",
        unit="bytes",
        minimum=1 << 20,
        maximum=LONG_MAX,
    )
    open_files_max: int = setting(
        4096,
        name="open.files.max",
        doc="Segment and index files kept open at once; the least recently used is closed.",
        minimum=16,
        maximum=INT_MAX,
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        name="producer.id.expiration.ms",
        doc="How long the sequence of an idle idempotent producer is remembered.",
        unit="ms",
        minimum=1,
        maximum=LONG_MAX,
    )
