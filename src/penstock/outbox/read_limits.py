"""Every bound of the outbox's read path, by name; the write path's are in `limits`.

Those that an operator may want to change are arguments with these as defaults.
"""

from __future__ import annotations

from typing import Final

READ_BYTES_MAX: Final = 1 << 30
"""Largest payload that is read; a pointer that claims more is refused before memory is taken."""
CHUNK_BYTES: Final = 1 << 20
"""Bytes that the streaming reader hands over at a time."""
CHUNK_BYTES_MAX: Final = 64 << 20
READ_CALL_BYTES_MAX: Final = 1 << 30
"""Most bytes of one read call; Linux takes up to 2 GiB less a page."""

DEDUP_ENTRIES_MAX: Final = 100_000
"""Batches that a consumer remembers; an entry takes about 200 bytes."""
DEDUP_AGE_MS: Final = 3_600_000
"""How long a consumer remembers a batch."""
REBUILD_RECORDS_MAX: Final = 100_000
"""Records per partition below the committed offset that a starting consumer looks at again."""
TAIL_PIECE_RECORDS: Final = 2_000
"""Of these, as many at a time, the newest first."""
TAIL_BYTES_MAX: Final = 64 << 20
"""Most bytes per partition that are looked at again: inline payloads come with their records."""
DEAD_LETTERS_LOOKED_AT_MAX: Final = 10_000
"""Latest records per partition of the dead-letter topic that a starting consumer looks at."""

READ_ATTEMPTS_MAX: Final = 8
"""Readings of a payload that cannot be read, before the consumer stops."""
CORRUPT_ATTEMPTS_MAX: Final = 2
"""Readings of a payload that is not what its pointer says, before it is given up."""
MISSING_GRACE_MS: Final = 60_000
"""Age of a record from which a missing payload is believed: NFS clients keep "no such file" for
up to `acdirmax` seconds, 60 by default."""
PAUSE_FIRST_MS: Final = 50
"""Pause before the second reading; it doubles up to `PAUSE_MAX_MS`."""
PAUSE_MAX_MS: Final = 5_000
DEAD_LETTERS_IN_A_ROW_MAX: Final = 100
"""Records given up one after the other before the consumer stops: is the mount there?"""
REASON_BYTES_MAX: Final = 1024
"""Longest text in a dead letter's headers."""
REASONS_MAX: Final = 100
"""Reasons of dead letters that are counted apart; callers make up their own."""

COMMIT_INTERVAL_MS: Final = 1_000
"""Longest time between two commits while batches are processed."""
COMMIT_MESSAGES: Final = 1_000
"""Most messages between two commits."""
POLL_MS: Final = 1_000
"""How long a consumer waits for records before it looks at commits and at `stop` again."""
FETCH_BYTES: Final = 4 << 20
"""Answer size that a consumer fetches: some 15,000 pointers, or inline payloads."""

ENTRIES_PER_STEP: Final = 16_384
"""Batch directories that a walk looks at in one step."""
FILES_PER_BATCH_MAX: Final = 1_024
"""Entries of a batch directory that are looked at in one sweep; the next ones see the others."""
FILL_ATTEMPTS_MAX: Final = 5
"""Readings of a topic whose start retention keeps moving."""
INDEX_ENTRIES_MAX: Final = 1_000_000
"""Paths that an index of pointers holds at a time, about 300 bytes each."""
GROUPS_MAX: Final = 1_000
"""Most consumer groups that a sweep asks for their offsets."""
NOTES_MAX: Final = 1_000
"""Most single findings that a report keeps; beyond it they are only counted."""

RETENTION_MS: Final = 24 * 3_600_000
"""Age from which a consumed payload is removed."""
ORPHAN_AGE_MS: Final = 3_600_000
"""Age from which temporary files and empty directories are removed."""
UNREFERENCED_GRACE_MS: Final = 24 * 3_600_000
"""Age beyond retention from which a payload without pointer is called unreferenced."""
AUDIT_GRACE_MS: Final = 300_000
"""Age below which a payload may still be waiting for its pointer."""
