"""Bounds of the outbox's write path.

Every wait, retry and buffer has one of these limits; those that an operator may want to change are
the defaults of `settings.py`.
"""

from __future__ import annotations

from typing import Final

PARTITION_ID_CHARS_MAX: Final = 200
"""Longest partition id; a file name has at most 255 bytes, some reserved for sidecars."""
BATCH_ID_CHARS_MAX: Final = 64
"""Longest batch id: twice a UUID in hexadecimal digits."""
CODEC_CHARS_MAX: Final = 32
"""Longest name of a codec."""
AT_MS_MAX: Final = 253_402_300_799_999
"""Last millisecond of the year 9999, the last with four digits."""
PATH_CHARS_MAX: Final = 512
"""Longest path of a payload below the root; `layout` needs at most 325."""
POINTER_BYTES_MAX: Final = 4096
"""Longest accepted pointer; `pointer` writes at most about 800 bytes."""
COUNT_MAX: Final = 2**63 - 1
"""Largest size and event count of a pointer, as a signed 64-bit column."""

GATHER_BUFFERS_MAX: Final = 1024
"""Buffers per `writev` call: Linux's IOV_MAX."""
SLICE_BYTES: Final = 256 << 10
"""Bytes per `writev` call, which stay in the processor's cache after their checksum; write-back
starts after each call, while the next bytes are prepared."""
PAYLOAD_BUFFERS_MAX: Final = 1 << 20
"""Most buffers of one payload."""
PAYLOAD_BYTES_MAX: Final = 1 << 30
"""Largest payload."""
MISSING_MAX: Final = 16
"""Missing names that one attempt tolerates, since a sweeper may remove directories meanwhile."""
HOUR_DIRECTORIES_OPEN_MAX: Final = 128
"""Hour directories kept open by a writer; beyond it the least recently used is closed."""

THRESHOLD_BYTES: Final = 64 << 10
"""Largest payload that `send` puts into the record itself, which saves a file's two syncs; a topic
accepts records of up to 1 MiB."""
INLINE_BYTES_MAX: Final = 16 << 20
"""Largest threshold that can be set."""
IN_FLIGHT_BYTES: Final = 256 << 20
"""Payload bytes of writes in progress."""
IN_FLIGHT_OPERATIONS: Final = 16
"""Writes in progress, including those whose pointer is being published."""
PENDING_MAX: Final = 1024
"""Writes that wait for admission."""
IO_THREADS: Final = 8
"""Threads that perform file calls."""
ACQUIRE_TIMEOUT_MS: Final = 30_000
"""Longest wait for admission."""
WRITE_TIMEOUT_MS: Final = 60_000
"""Longest time that a caller waits for its file, including all attempts."""
PUBLISH_TIMEOUT_MS: Final = 60_000
"""Longest time that a caller waits for its record's acknowledgement."""
ATTEMPTS_MAX: Final = 5
"""Attempts of one write."""
BACKOFF_FIRST_MS: Final = 20
"""Ceiling of the pause before the second attempt; it doubles up to `BACKOFF_MAX_MS`."""
BACKOFF_MAX_MS: Final = 2_000

PUBLISH_RECORDS_MAX: Final = 1024
"""Records of one publish, which are the rows of one table."""
PUBLISH_BYTES_MAX: Final = 8 << 20
"""Bytes of keys and values of one publish, unless its first record alone is larger."""
RECORD_OVERHEAD_BYTES: Final = 4096
"""Largest size of a record's headers and its batch header."""
PUBLISH_QUEUE_RECORDS: Final = 8192
"""Records that wait to be published."""
PUBLISH_QUEUE_BYTES: Final = 64 << 20
"""Bytes of keys and values that wait to be published."""
