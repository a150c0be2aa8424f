"""Bounds of the exactly-once sink that are no settings."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

MANIFEST_BYTES_MAX: Final = 16 << 20
"""Body of one posted commit, as JSON."""

PIECE_BYTES_MAX: Final = 4 << 20
"""Staged bytes read, stamped and appended together, unless one batch alone is larger."""

PIECES_PER_TURN_MAX: Final = 64
"""Appends of small sections in one turn of the event loop."""

STAGED_BATCH_BYTES_MAX: Final = 128 << 20
"""Largest record batch in a staged blob, whatever the topic allows."""

UNSYNCED_BYTES_MAX: Final = 16 << 20
"""Appended bytes of one commit that may wait for their sync; more are read after it."""

TARGET_RECORDS_MAX: Final = 1 << 30
"""Records of one commit in one partition: half of the sequences there are, so that what is in the
log already can be told from what is not."""

TRANSACTION_TIMEOUT_MS: Final = 300_000
"""How long the transaction of a commit may be open, if `transaction.max.timeout.ms` allows it: so
long readers of committed records wait at most where its broker has died and does not come back."""

RENEWALS_MAX: Final = 3
"""Times that one attempt takes a new producer for a partition whose log has lost records."""

UPLOAD_BUFFER_BYTES: Final = 1 << 20
"""Bytes of an upload that are gathered before they are written."""

STAGED_FILES_MAX: Final = 200_000
"""Files in the staging directory above which no more are taken."""

STAGED_LOOK_SECONDS: Final = 1.0
"""How old a count of the staging directory may be."""

SWEEP_SECONDS: Final = 60.0
"""Time between two looks for orphaned blobs."""

REDRIVE_BACKOFF: Final = Backoff(first_ms=100, ceiling_ms=30_000)
"""Pauses before an interrupted commit is driven on."""

QUERY_LENGTH_MAX: Final = 249
OWNER_LENGTH_MAX: Final = 1024
