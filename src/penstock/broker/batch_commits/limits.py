"""Constant bounds of the exactly-once sink."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

MANIFEST_BYTES_MAX: Final = 16 << 20
PIECE_BYTES_MAX: Final = 4 << 20
"""Staged bytes that are read, stamped and appended together; a single batch may be larger."""

PIECES_PER_TURN_MAX: Final = 64
"""Appends of small sections in one turn of the event loop."""

STAGED_BATCH_BYTES_MAX: Final = 128 << 20
"""Largest record batch in a staged blob, whatever the topic allows."""

UNSYNCED_BYTES_MAX: Final = 16 << 20
"""Appended bytes of one commit that may wait for their sync; more are read after it."""

TARGET_RECORDS_MAX: Final = 1 << 30
"""Records of one commit in one partition: half of the sequence space, to detect appended ones."""

TRANSACTION_TIMEOUT_MS: Final = 300_000
"""Transaction timeout of a commit, limited by `transaction.max.timeout.ms`.

Readers of committed records wait at most this long after its broker has failed permanently.
"""

RENEWALS_MAX: Final = 3
"""Renewals of producers in one attempt, for partitions whose logs lost records."""

UPLOAD_BUFFER_BYTES: Final = 1 << 20
STAGED_FILES_MAX: Final = 200_000
STAGED_LOOK_SECONDS: Final = 1.0
"""Maximum age of a count of the staging directory."""

SWEEP_SECONDS: Final = 60.0
REDRIVE_BACKOFF: Final = Backoff(first_ms=100, ceiling_ms=30_000)
QUERY_LENGTH_MAX: Final = 249
OWNER_LENGTH_MAX: Final = 1024
