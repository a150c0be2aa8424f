"""Every bound of the outbox, by name.

Nothing in this package waits, retries or buffers beyond one of these numbers; those that an
operator may want to change are the defaults of `settings.py`.
"""

from __future__ import annotations

from typing import Final

PARTITION_ID_CHARS_MAX: Final = 200
"""Longest partition id; a file name has 255 bytes, and sidecars may add to it."""
BATCH_ID_CHARS_MAX: Final = 64
"""Longest batch id: twice a UUID in hexadecimal digits."""
CODEC_CHARS_MAX: Final = 32
"""Longest name of a codec."""
AT_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, which the tree's four digits can show."""
PATH_CHARS_MAX: Final = 512
"""Longest path of a payload below the root; the longest that `layout` makes has 325."""
POINTER_BYTES_MAX: Final = 4096
"""Longest pointer that is read; the longest that `pointer` makes has about 800 bytes."""
COUNT_MAX: Final = 2**63 - 1
"""Largest size and event count of a pointer: what a signed 64-bit column holds."""

GATHER_BUFFERS_MAX: Final = 1024
"""Buffers given to one `writev`: Linux's IOV_MAX."""
SLICE_BYTES: Final = 256 << 10
"""Bytes given to one `writev`, so that they are still in the processor's cache after their
checksum was taken; and after so many the disk is asked to begin, while the next are prepared."""
PAYLOAD_BUFFERS_MAX: Final = 1 << 20
"""Most buffers of one payload."""
PAYLOAD_BYTES_MAX: Final = 1 << 30
"""Largest payload."""
MISSING_MAX: Final = 16
"""Names that may be found missing in one attempt, because a sweeper removes them under it."""
HOUR_DIRECTORIES_OPEN_MAX: Final = 128
"""Hour directories held open by a writer; the least recently used is closed beyond it."""

THRESHOLD_BYTES: Final = 64 << 10
"""Largest payload that `send` puts into the record itself: a file costs two syncs and a record
none, and a topic takes records of up to 1 MiB."""
INLINE_BYTES_MAX: Final = 16 << 20
"""Largest threshold that can be set."""
IN_FLIGHT_BYTES: Final = 256 << 20
"""Payload bytes of writes under way."""
IN_FLIGHT_OPERATIONS: Final = 16
"""Writes under way, those included whose pointer is being published."""
PENDING_MAX: Final = 1024
"""Writes that wait for room among those under way."""
IO_THREADS: Final = 8
"""Threads that perform file calls."""
ACQUIRE_TIMEOUT_MS: Final = 30_000
"""Longest wait for room among the writes under way."""
WRITE_TIMEOUT_MS: Final = 60_000
"""Longest time that a caller waits for its file, all attempts included."""
PUBLISH_TIMEOUT_MS: Final = 60_000
"""Longest time that a caller waits for its record's acknowledgement."""
ATTEMPTS_MAX: Final = 5
"""Attempts of one write."""
BACKOFF_FIRST_MS: Final = 20
"""Ceiling of the pause before the second attempt; it doubles up to `BACKOFF_MAX_MS`."""
BACKOFF_MAX_MS: Final = 2_000

PUBLISH_RECORDS_MAX: Final = 1024
"""Records of one publish, and so rows of one table."""
PUBLISH_BYTES_MAX: Final = 8 << 20
"""Bytes of keys and values of one publish, unless its first record alone is larger."""
RECORD_OVERHEAD_BYTES: Final = 4096
"""Most bytes that a record's headers and the head of its batch take beside key and value."""
PUBLISH_QUEUE_RECORDS: Final = 8192
"""Records that wait to be published."""
PUBLISH_QUEUE_BYTES: Final = 64 << 20
"""Bytes of keys and values that wait to be published."""

PARTITION_LABELS_MAX: Final = 100
"""Partition ids that have series of their own in the metrics; later ones share one."""
