"""Bounds of reading that are no settings: each is a fact of the design, named once."""

from __future__ import annotations

from typing import Final

COORDINATES_MAX_BYTES: Final = 64 << 20
"""What the known extents of all partitions may weigh."""

COORDINATES_AGE_SECONDS: Final = 30.0
"""How long an extent is believed in without asking the control plane again. Far below the grace
of the sweeper: what an extent names is there as long as it may be asked for."""

EXTENT_OVERHEAD_BYTES: Final = 400
"""What an extent weighs beside its layout and its key."""

READY_MAX_BYTES: Final = 128 << 20
"""Assembled batches that wait for the fetch that wants them."""

READY_SECONDS: Final = 30.0
"""How long they wait: longer than the pauses of consumers that go on where they were."""

FAILURE_SECONDS: Final = 0.5
"""How long a failed load is answered with its error before it is tried again."""

READY_PER_PARTITION_MAX: Final = 64
"""Runs of batches of one partition that wait, for consumers at different offsets."""

LOADING_MAX_BYTES: Final = 256 << 20
"""Bytes of batches under way from the store at a time; more wait for their turn."""

LOADS_MAX: Final = 1024
"""Loads under way or waiting for their turn; more are tried again at the next fetch."""

FIND_REQUESTS_MAX: Final = 500
"""Partitions that one call of the control plane is asked for."""

INLINE_BYTES_MAX: Final = 1 << 20
"""Assemblies above this size are made on a thread, so that they hold up nobody."""

READ_ATTEMPTS_MAX: Final = 2
"""How often coordinates are asked for anew where an object turned out to be gone."""

LOOKUP_EXTENTS: Final = 1000
"""Extents of one page where a look-up by time goes through them."""

LOOKUP_PAGES_MAX: Final = 10_000

LOOKUPS_AT_ONCE: Final = 16
"""Positions by time that are looked up side by side."""

ABORTED_PER_CALL: Final = 10_000
"""Aborted transactions of one answer of the control plane."""

ABORTED_PAGES_MAX: Final = 100
"""Answers that are asked for until all are there that a reader needs."""

ABORTED_KEPT_MAX: Final = 200_000
"""Aborted transactions that are kept; the partitions that were asked for longest ago go first."""

ABORTED_KEPT_PARTITIONS: Final = 10_000
"""Partitions of which they are kept, even if there are none."""

ABORTED_KEPT_PER_PARTITION: Final = 4
"""Places of readers of one partition for which they are kept."""
