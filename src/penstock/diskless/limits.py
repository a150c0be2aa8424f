"""The bounds of this package that are no settings, and the defaults of those that are."""

from __future__ import annotations

from typing import Final

BUFFER_BYTES_MAX: Final = 8 << 20
"""Bytes at which the open object closes."""

LOCAL_COMMIT_INTERVAL_MS: Final = 5
"""How long an object gathers where a write takes about a millisecond: a directory, memory."""

REMOTE_COMMIT_INTERVAL_MS: Final = 250
"""How long an object gathers where writes take many milliseconds and are paid for one by one."""

TIMER_GRAIN_MS: Final = 1.0
"""How much too early a timer of the loop may come; the interval on a directory has five of it."""

PENDING_BYTES_MAX: Final = 128 << 20
"""Submitted bytes that are not answered yet."""

PENDING_SUBMISSIONS_MAX: Final = 100_000
"""Submissions that are not answered yet."""

UNVERIFIED_PRODUCERS_MAX: Final = 10_000
"""Producers of one partition of which it is known that a batch was not verified yet."""

OBJECTS_IN_FLIGHT_MAX: Final = 8
"""Objects that are being written, or wait for the commit of one before them."""

COPIED_SUBMISSION_BYTES_MAX: Final = 16 << 10
"""Submissions up to this size are copied, so that they do not hold a whole receive buffer."""

LEASE_BLOCK_OBJECTS: Final = 64
"""Keys that are reserved at once."""

ATTEMPTS_AT_ONCE_MAX: Final = 3
"""PUTs of one object that are under way at once, because those before are overdue."""

LEASE_LIFE_SHARE: Final = 2
"""A reserved key is used for one `LEASE_LIFE_SHARE`th of the grace after which it is swept."""

DRAIN_TIMEOUT_MS: Final = 10_000
"""How long stopping waits for what is being written."""

SWEPT_OBJECTS_MAX: Final = 1_000
"""Objects that one step of the sweeper deletes."""

SWEEP_STEPS_MAX: Final = 100
"""Steps of one sweep; what is left waits for the next."""

RETAINED_EXTENTS_MAX: Final = 1_000
"""Extents that one call drops from a partition."""

RETENTION_CALLS_MAX: Final = 1_000
"""Calls for one partition in one pass; what is left waits for the next."""

STAGED_PUTS_AT_ONCE_MAX: Final = 2
"""Objects of one commit of a sink that are written at once; one more gathers meanwhile."""

SINK_COMMIT_REPEATS_MAX: Final = 3
"""How often a commit of a sink is made again while its outcome is unknown, and the client waits."""

STAGED_PUT_ATTEMPTS_MAX: Final = 6
"""How often writing one of them is tried, each time under a new key."""

MARKS_PER_CALL_MAX: Final = 1_000
"""Partitions whose marks retention asks for at once."""

FORGOTTEN_PARTITIONS_MAX: Final = 1_000
"""Rows of deleted topics' partitions that one call drops."""

FORGOTTEN_PRODUCERS_MAX: Final = 10_000
"""Idle producers that one call drops."""

FORGET_CALLS_MAX: Final = 100
"""Calls for each of both in one pass."""

LISTED_ROWS_MAX: Final = 1_000
"""Rows that are compared with a listing of the store at once."""

ORPHANS_DELETED_MAX: Final = 1_000
"""Orphans that one pass deletes."""

ADOPTION_SAMPLE_OBJECTS: Final = 16
"""Committed objects that are looked for in a store without an identity before it is adopted."""

ORPHANS_NAMED_MAX: Final = 20
"""Orphans that one pass names in the log."""

MARKS_KEPT: Final = 4
"""Marks that stay in the store; older ones are deleted when a new one is written."""

MARKS_READ_MAX: Final = 10_000
"""Marks that are looked at at a start; there are a handful unless their deletion fails."""

VERIFIED_EXTENTS_PER_CALL: Final = 1_000
"""Extents that a verification asks for at once."""

FOOTERS_KEPT: Final = 1_000
"""Footers that a verification keeps: extents of several partitions lie in one object."""

FINDINGS_MAX: Final = 1_000
"""Findings that a verification names; it counts all."""

RUN_EXTENTS_MAX: Final = 1_000
"""Extents that one sealed segment is made of: their rows are replaced in one transaction."""
