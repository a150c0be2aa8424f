"""Limits of diskless topics, and defaults of their settings."""

from __future__ import annotations

from typing import Final

BUFFER_BYTES_MAX: Final = 8 << 20
"""Size at which the open object closes."""

LOCAL_COMMIT_INTERVAL_MS: Final = 5
"""Time that an object is open if a write takes about a millisecond: in a directory, in memory."""

REMOTE_COMMIT_INTERVAL_MS: Final = 250
"""Time that an object is open if writes take many milliseconds and are billed one by one."""

TIMER_GRAIN_MS: Final = 1.0
"""Time by which a timer of the event loop may fire too early."""

PENDING_BYTES_MAX: Final = 128 << 20
"""Bytes of unanswered submissions."""

PENDING_SUBMISSIONS_MAX: Final = 100_000
"""Unanswered submissions."""

UNVERIFIED_PRODUCERS_MAX: Final = 10_000
"""Producers of one partition with an unverified batch."""

OBJECTS_IN_FLIGHT_MAX: Final = 8
"""Objects that are being written, or wait for an earlier commit."""

COPIED_SUBMISSION_BYTES_MAX: Final = 16 << 10
"""Size up to which submissions are copied, so that they do not hold a whole receive buffer."""

LEASE_BLOCK_OBJECTS: Final = 64
"""Keys that are reserved at once."""

ATTEMPTS_AT_ONCE_MAX: Final = 3
"""Concurrent PUTs of one object, after earlier ones became overdue."""

LEASE_LIFE_SHARE: Final = 2
"""A reserved key is used for one `LEASE_LIFE_SHARE`th of the grace after which it is swept."""

DRAIN_TIMEOUT_MS: Final = 10_000
"""Time for which a stop waits for objects being written."""

SWEPT_OBJECTS_MAX: Final = 1_000
"""Objects that one step of the sweeper deletes."""

SWEEP_STEPS_MAX: Final = 100
"""Steps of one sweep."""

RETAINED_EXTENTS_MAX: Final = 1_000
"""Extents that one call drops from a partition."""

RETENTION_CALLS_MAX: Final = 1_000
"""Calls for one partition in one pass."""

STAGED_PUTS_AT_ONCE_MAX: Final = 2
"""Objects of a sink's commit that are written at once, beside the open one."""

SINK_COMMIT_REPEATS_MAX: Final = 3
"""Attempts at a sink's commit whose outcome is unknown."""

STAGED_PUT_ATTEMPTS_MAX: Final = 6
"""Attempts to write one of them, each under a new key."""

WATERMARKS_PER_CALL_MAX: Final = 1_000
"""Partitions whose watermarks are read in one call."""

FORGOTTEN_PARTITIONS_MAX: Final = 1_000
"""Rows of deleted topics that one call drops."""

FORGOTTEN_PRODUCERS_MAX: Final = 10_000
"""Idle producers that one call drops."""

FORGET_CALLS_MAX: Final = 100
"""Calls of each kind in one pass."""

LISTED_ROWS_MAX: Final = 1_000
"""Rows in one comparison with a listing of the store."""

ORPHANS_DELETED_MAX: Final = 1_000
"""Orphans that one pass deletes."""

ADOPTION_SAMPLE_OBJECTS: Final = 16
"""Committed objects that a store without an identity is checked for."""

ORPHANS_NAMED_MAX: Final = 20
"""Orphans that one pass names in the log."""

ID_MARKERS_KEPT: Final = 4
"""High-object-id markers in the store; older ones are deleted when a new one is written."""

ID_MARKERS_READ_MAX: Final = 10_000
"""High-object-id markers in one listing; there are a handful unless their deletion fails."""

VERIFIED_EXTENTS_PER_CALL: Final = 1_000
"""Extents that a verification reads in one call."""

FOOTERS_KEPT: Final = 1_000
"""Cached footers of a verification, as objects have extents of several partitions."""

FINDINGS_MAX: Final = 1_000
"""Findings that a verification reports; it counts all."""

RUN_EXTENTS_MAX: Final = 1_000
"""Extents of one sealed segment, whose rows are replaced in one transaction."""
