"""The bounds of this package that are no settings."""

from __future__ import annotations

from typing import Final

INLINE_COMMIT_BYTES_MAX: Final = 128 << 10
"""A lone group up to this size is written and synced by the owner's thread itself: handing it
to the writer thread and back costs more than the wait (158 against 226 µs, measured)."""

COPIED_APPEND_BYTES_MAX: Final = 16 << 10
"""Appends up to this size are copied into the tail; above, the received bytes are kept."""

SEGMENT_WRITE_BYTES: Final = 256 << 10
"""Bytes of one partition that wait in memory, durable by the journal, for their segment write."""

INLINE_WRITE_BYTES_MAX: Final = 64 << 10
"""Segment writes up to this size are not worth a thread."""

SEGMENT_WRITE_LOGS_MAX: Final = 64
"""Partitions whose segments one job writes; their files are opened on the owner's thread."""

SEGMENT_WRITE_SHARE: Final = 4
"""All partitions together may have a `1 / SEGMENT_WRITE_SHARE` part of the tail cache unwritten."""

JOURNAL_ENTRY_BYTES_MAX: Final = 16 << 20
"""A group's appends are cut into entries of about this size; recovery reads one at a time."""

SEGMENT_SYNCS_MAX: Final = 4
"""Segments with large appends of one group that are synced at the same time."""

JOURNAL_PREWRITE_BYTES: Final = 256 << 10
"""How far a new journal file is written ahead with zeros, so that small entries overwrite."""

SCAN_BYTES: Final = 64 << 10
"""What a header walk reads at once."""

RECOVERY_SCAN_BYTES: Final = 4 << 20
"""What a recovering walk, which verifies checksums, reads at once."""

REPLAY_WRITE_BYTES: Final = 4 << 20
"""What is written at once of what the journal has for a segment."""

LAZY_REPLAY_BYTES_MAX: Final = 4 << 20
"""A log of which the journal has more than this is loaded at the start, not when it is needed."""

REPLAYED_LOGS_MAX: Final = 32
"""Logs into whose files one call puts what the journal had for them at the last start."""

INDEX_CACHE_BYTES: Final = 64 << 20
"""Indexes of closed segments kept in memory."""

HOUSEKEEPING_LOGS_MAX: Final = 256
"""Partitions that one call of `housekeeping` looks at."""

HOUSEKEEPING_SEGMENTS_MAX: Final = 64
"""Segments that one call of `housekeeping` looks at, or lets go, at 120 µs each; others wait."""

HOUSEKEEPING_FILES_MAX: Final = 256
"""Files that one call of `housekeeping` removes."""

CHECKPOINT_FILE_BYTES_MAX: Final = 256 << 20
"""A checkpoint larger than this is refused as damaged."""

CARRIED_BATCHES_MAX: Final = 20_000
"""Batches of producers that a log which begins anew is told of, the newest: 46 bytes each."""
