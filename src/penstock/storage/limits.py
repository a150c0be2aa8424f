"""Limits of this package that are not settings."""

from __future__ import annotations

from typing import Final

INLINE_COMMIT_BYTES_MAX: Final = 128 << 10
"""Maximum bytes of a lone group that the event loop's thread writes and syncs itself, because a
thread switch costs more than the wait (158 against 226 µs, measured)."""

COPIED_APPEND_BYTES_MAX: Final = 16 << 10
"""Maximum bytes of an append that is copied into the tail; larger ones keep the receive buffer."""

SEGMENT_WRITE_BYTES: Final = 256 << 10
"""Durable bytes of one partition that gather in memory before they are written to its segment."""

INLINE_WRITE_BYTES_MAX: Final = 64 << 10
"""Maximum bytes of a segment write that the event loop's thread performs itself."""

SEGMENT_WRITE_LOGS_MAX: Final = 64
"""Maximum number of partitions whose segments one job writes, because the event loop's thread opens
the files."""

SEGMENT_WRITE_SHARE: Final = 4
"""All partitions together may have `1 / SEGMENT_WRITE_SHARE` of the tail cache unwritten."""

JOURNAL_ENTRY_BYTES_MAX: Final = 16 << 20
"""Approximate maximum size of a journal entry; recovery reads one at a time."""

SEGMENT_SYNCS_MAX: Final = 4
"""Maximum number of segments that are synced in parallel for the large appends of one group."""

JOURNAL_PREWRITE_BYTES: Final = 256 << 10
"""Bytes of zeros that extend a journal file at once, so that small entries overwrite blocks."""

SCAN_BYTES: Final = 64 << 10
"""Bytes that a header walk reads at once."""

RECOVERY_SCAN_BYTES: Final = 4 << 20
"""Bytes that a recovery walk, which verifies checksums, reads at once."""

REPLAY_WRITE_BYTES: Final = 4 << 20
"""Bytes of a segment that replay writes at once."""

LAZY_REPLAY_BYTES_MAX: Final = 4 << 20
"""Journal bytes of a log above which it is loaded at the start instead of on first use."""

REPLAYED_LOGS_MAX: Final = 32
"""Maximum number of logs whose journal entries one call replays after a start."""

INDEX_CACHE_BYTES: Final = 64 << 20
"""Maximum bytes of memory for the indexes of closed segments."""

HOUSEKEEPING_LOGS_MAX: Final = 256
"""Maximum number of partitions that one `housekeeping` call examines."""

HOUSEKEEPING_SEGMENTS_MAX: Final = 64
"""Maximum number of segments that one `housekeeping` call examines or drops, at 120 µs each."""

HOUSEKEEPING_FILES_MAX: Final = 256
"""Maximum number of files that one `housekeeping` call removes."""

CHECKPOINT_FILE_BYTES_MAX: Final = 256 << 20
"""Size of a checkpoint file, in bytes, above which it is rejected as damaged."""

CARRIED_BATCHES_MAX: Final = 20_000
"""Maximum number of producers' batches, of 46 bytes each, that a replica receives when its log
restarts at another offset."""
