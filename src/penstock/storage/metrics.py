"""Metrics of the storage, computed from its counters at scrape time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.base.metrics import Metric, Sample
from penstock.storage.compaction.cleaner import LogCleaner
from penstock.storage.journal import Journal
from penstock.storage.log.state import StoreParts


def _counter(name: str, doc: str) -> Metric:
    return Metric(name=f"penstock_storage_{name}", kind="counter", doc=doc)


def _gauge(name: str, doc: str) -> Metric:
    return Metric(name=f"penstock_storage_{name}", kind="gauge", doc=doc)


GROUPS: Final = _counter("groups_total", "Groups of appends made durable.")
INLINE_GROUPS: Final = _counter(
    "inline_groups_total", "Groups of appends that the event loop wrote and synced itself."
)
DUPLICATES: Final = _counter("duplicate_batches_total", "Duplicate batches of producers.")
JOURNAL_BYTES: Final = _counter("journal_written_bytes_total", "Bytes written to the journal.")
JOURNAL_SYNCS: Final = _counter("journal_syncs_total", "Syncs of journal files.")
SEGMENT_BYTES: Final = _counter("segment_written_bytes_total", "Bytes written to segments.")
READS: Final = _counter("reads_total", "Reads answered from segment files.")
READ_BYTES: Final = _counter("read_bytes_total", "Bytes read from segment files.")
TAIL_READS: Final = _counter("tail_reads_total", "Reads answered from memory.")
ROLLED: Final = _counter("segments_rolled_total", "Segments closed.")
REMOVED: Final = _counter("segments_removed_total", "Segments removed by retention.")
CHECKPOINTS: Final = _counter("checkpoints_total", "Checkpoints completed.")
REFUSED: Final = _counter("refused_writes_total", "Writes that failed before a sync.")
CORRUPTIONS: Final = _counter("damaged_partitions_total", "Partitions found damaged.")
DAMAGED: Final = _counter(
    "damaged_ranges_total", "Ranges of stored records that were found damaged when they were read."
)
MENDED: Final = _counter(
    "mended_bytes_total", "Bytes of damaged records that were fetched from another replica."
)
COMPACTIONS: Final = _counter("compactions_total", "Completed compaction passes over logs.")
COMPACTION_READ_BYTES: Final = _counter(
    "compaction_read_bytes_total", "Bytes of segments that compaction read."
)
COMPACTION_WRITTEN_BYTES: Final = _counter(
    "compaction_written_bytes_total", "Bytes of segments that compaction wrote."
)
COMPACTION_READ_RECORDS: Final = _counter(
    "compaction_read_records_total", "Records of the segments that compaction rewrote."
)
COMPACTION_KEPT_RECORDS: Final = _counter(
    "compaction_kept_records_total", "Records of rewritten segments that compaction kept."
)
MAX_DIRTY_RATIO: Final = _gauge(
    "compaction_max_dirty_ratio", "Highest share of uncompacted bytes of a log, 0 to 1."
)
COMPACTION_IDLE_SECONDS: Final = _gauge(
    "compaction_idle_seconds", "Seconds since the last compaction pass ended, or the start."
)
UNCLEANABLE: Final = _gauge(
    "compaction_uncleanable_partitions", "Partitions whose compaction failed."
)

FAILED: Final = _gauge("failed", "1 if the store rejects all appends after a failed sync.")
PARTITIONS: Final = _gauge("partitions", "Partition logs in the data directory.")
OPEN_FILES: Final = _gauge("open_files", "Segment and index files held open.")
TAIL_BYTES: Final = _gauge("tail_cache_bytes", "Bytes of the newest batches in memory.")
INDEX_BYTES: Final = _gauge("index_cache_bytes", "Bytes of closed segments' indexes in memory.")
PENDING_BYTES: Final = _gauge("pending_bytes", "Appended bytes that wait for the journal.")
UNWRITTEN_BYTES: Final = _gauge(
    "unwritten_bytes", "Durable bytes that wait for their segment write."
)
JOURNAL_FILES: Final = _gauge("journal_files", "Journal files on disk.")
JOURNAL_FILES_IN_USE: Final = _gauge(
    "journal_files_in_use", "Journal files that recovery after a crash would read."
)
RECOVERED: Final = _gauge("recovered_entries", "Journal entries replayed at the last start.")


def samples(
    parts: StoreParts,
    journal: Journal,
    *,
    cleaner: LogCleaner,
    partitions: int,
    recovered_entries: int,
) -> Iterator[Sample]:
    counters, queue = parts.counters, parts.queue
    yield Sample(GROUPS, counters.groups)
    yield Sample(INLINE_GROUPS, counters.inline_groups)
    yield Sample(DUPLICATES, counters.duplicates)
    yield Sample(JOURNAL_BYTES, journal.written_bytes)
    yield Sample(JOURNAL_SYNCS, journal.syncs)
    yield Sample(SEGMENT_BYTES, counters.written_bytes)
    yield Sample(READS, counters.reads)
    yield Sample(READ_BYTES, counters.read_bytes)
    yield Sample(TAIL_READS, counters.tail_reads)
    yield Sample(ROLLED, counters.rolled_segments)
    yield Sample(REMOVED, counters.removed_segments)
    yield Sample(CHECKPOINTS, counters.checkpoints)
    yield Sample(REFUSED, counters.disk_full)
    yield Sample(CORRUPTIONS, counters.corruptions)
    yield Sample(DAMAGED, counters.damaged_ranges)
    yield Sample(MENDED, counters.mended_bytes)
    yield Sample(COMPACTIONS, counters.compactions)
    yield Sample(COMPACTION_READ_BYTES, counters.compaction_read_bytes)
    yield Sample(COMPACTION_WRITTEN_BYTES, counters.compaction_written_bytes)
    yield Sample(COMPACTION_READ_RECORDS, counters.compaction_read_records)
    yield Sample(COMPACTION_KEPT_RECORDS, counters.compaction_kept_records)
    yield Sample(MAX_DIRTY_RATIO, max(cleaner.dirty_ratios.values(), default=0.0))
    yield Sample(COMPACTION_IDLE_SECONDS, cleaner.idle_ms / 1000)
    yield Sample(UNCLEANABLE, len(cleaner.uncleanable))
    yield Sample(FAILED, int(queue.failed is not None))
    yield Sample(PARTITIONS, partitions)
    yield Sample(OPEN_FILES, len(parts.segment_files.descriptors))
    yield Sample(TAIL_BYTES, parts.tails.size_bytes)
    yield Sample(INDEX_BYTES, parts.segment_files.indexes.size_bytes)
    yield Sample(PENDING_BYTES, queue.pending_bytes)
    yield Sample(UNWRITTEN_BYTES, queue.unwritten_bytes)
    yield Sample(JOURNAL_FILES, journal.file_count)
    yield Sample(JOURNAL_FILES_IN_USE, journal.files_in_use)
    yield Sample(RECOVERED, recovered_entries)
