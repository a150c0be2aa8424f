"""Bounds of the outbox's read path; the write path's are in `limits`.

Those that an operator may want to change are arguments with these as defaults.
"""

from __future__ import annotations

from typing import Final

READ_BYTES_MAX: Final = 1 << 30
"""Largest payload; a pointer with a larger size is rejected before memory is allocated."""
CHUNK_BYTES: Final = 1 << 20
"""Bytes per chunk of the streaming reader."""
CHUNK_BYTES_MAX: Final = 64 << 20
READ_CALL_BYTES_MAX: Final = 1 << 30
"""Bytes per read call; Linux allows up to 2 GiB less a page."""

DEDUP_ENTRIES_MAX: Final = 100_000
"""Batches in a consumer's dedup window; an entry takes about 200 bytes."""
DEDUP_AGE_MS: Final = 3_600_000
"""Age limit of the dedup window."""
REBUILD_RECORDS_MAX: Final = 100_000
"""Records per partition below the committed offset that a starting consumer reads again."""
TAIL_PIECE_RECORDS: Final = 2_000
"""Records of one such read, the newest first."""
TAIL_BYTES_MAX: Final = 64 << 20
"""Limit of the bytes per partition read again, since records have inline payloads."""
DEAD_LETTERS_LOOKED_AT_MAX: Final = 10_000
"""Latest records per partition of the dead-letter topic that a starting consumer reads."""

READ_ATTEMPTS_MAX: Final = 8
"""Reads of an unreadable payload before the consumer stops."""
CORRUPT_ATTEMPTS_MAX: Final = 2
"""Reads of a corrupt payload before its record becomes a dead letter."""
MISSING_GRACE_MS: Final = 60_000
"""Age of a record at which its payload counts as missing: NFS clients cache "no such file" for
up to `acdirmax` seconds, 60 by default."""
PAUSE_FIRST_MS: Final = 50
"""Pause before the second read; it doubles up to `PAUSE_MAX_MS`."""
PAUSE_MAX_MS: Final = 5_000
DEAD_LETTERS_IN_A_ROW_MAX: Final = 100
"""Dead letters in a row before the consumer stops, since the mount may be missing."""
REASON_BYTES_MAX: Final = 1024
"""Longest text in a dead letter's headers."""
REASONS_MAX: Final = 100
"""Reasons of dead letters with their own counts; callers choose reasons."""

COMMIT_INTERVAL_MS: Final = 1_000
"""Longest time between two commits while batches are processed."""
COMMIT_MESSAGES: Final = 1_000
"""Most messages between two commits."""
POLL_MS: Final = 1_000
"""Longest wait of a consumer for records before it checks for commits and `stop`."""
FETCH_BYTES: Final = 4 << 20
"""Response size of a consumer's fetch: some 15,000 pointers, or inline payloads."""

ENTRIES_PER_STEP: Final = 16_384
"""Batch directories per step of a walk."""
FILES_PER_BATCH_MAX: Final = 1_024
"""Entries of a batch directory per sweep; later sweeps process the rest."""
FILL_ATTEMPTS_MAX: Final = 5
"""Reads of a topic while retention keeps removing its start."""
INDEX_ENTRIES_MAX: Final = 1_000_000
"""Paths in an index of pointers, about 300 bytes each."""
GROUPS_MAX: Final = 1_000
"""Consumer groups whose offsets a sweep reads."""
NOTES_MAX: Final = 1_000
"""Findings in a report; further ones are only counted."""

RETENTION_MS: Final = 24 * 3_600_000
"""Age at which a consumed payload is removed."""
ORPHAN_AGE_MS: Final = 3_600_000
"""Age at which temporary files and empty directories are removed."""
UNREFERENCED_GRACE_MS: Final = 24 * 3_600_000
"""Age beyond retention at which a payload without pointer is unreferenced."""
AUDIT_GRACE_MS: Final = 300_000
"""Age below which a payload may still be waiting for its pointer."""
