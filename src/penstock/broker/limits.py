"""Bounds of the Kafka front that are no settings: each is a fact of the design, named once."""

from __future__ import annotations

from typing import Final

SCRATCH_BYTES: Final = 256 << 10
"""The receive buffer that all connections of a loop share for small frames."""

SMALL_FRAME_BYTES: Final = 64 << 10
"""A frame up to this size is copied out of the shared buffer; a larger one, when it does not
arrive at once, is received straight into a buffer of its own."""

RECEIVE_BYTES_MAX: Final = 256 << 10
"""Bytes of a large frame that are received in one step; between two steps the total limit is
checked, and between those of a frame above 4 MiB other connections are served."""

JOIN_BYTES: Final = 128 << 10
"""Answers up to this size are joined into one write; above, pieces are handed to the kernel."""

WRITE_HIGH_WATER_BYTES: Final = 1 << 20
"""Unsent answers of a connection above which its requests are no longer read."""

FRAME_GRACE_SECONDS: Final = 5.0
"""How long a frame may take to arrive, plus its size divided by the rate below."""

FRAME_BYTES_PER_SECOND_MIN: Final = 64 << 10

VERIFICATION_TRIES_MAX: Final = 6
"""How often a coordinator is asked of partitions while it ends the last transaction."""

VERIFICATION_RETRY_MS: Final = 20
"""What is waited in between; Kafka's `add.partitions.to.txn.retry.backoff.ms`."""

TICK_SECONDS: Final = 1.0
"""How often connections, produce timeouts and the store's housekeeping are looked at."""

FINISH_LOOK_SECONDS: Final = 0.005
"""How often a broker that stops looks whether the last requests are answered."""

HELD_UP_SECONDS: Final = 2.0
"""A timer that comes later than this shows that the loop itself was held up: what arrived
meanwhile is read before clients are taken to be slow or gone."""

READINESS_PROBE_SECONDS: Final = 2.0
"""How long a look at the control plane, the object store or the disk may take before it counts as
away; `/readyz` takes no longer, as they are looked at together."""

READINESS_KEPT_SECONDS: Final = 1.0
"""How long a look is answered again, however often it is asked for."""

FREE_BYTES_MIN: Final = 256 << 20
"""Free bytes of the data directory's disk below which the broker is not ready for more."""

WARNING_SECONDS: Final = 60.0
"""Between two warnings of a kind about the same address."""

WARNED_ADDRESSES_MAX: Final = 1024
"""Addresses, times kinds of warnings, of which the last warning is remembered."""

METADATA_CACHE_ENTRIES: Final = 256
"""Encoded Metadata answers kept until the image changes."""

METADATA_CACHE_BYTES: Final = 32 << 20

FETCH_SESSION_IDLE_SECONDS: Final = 120.0
"""A fetch session unused for this long may be evicted for a new one (as in Kafka)."""

FETCH_WAIT_SECONDS_MAX: Final = 300.0
"""Longest wait of Fetch and ShareFetch, whatever `max_wait` says: the most that librdkafka's
`fetch.wait.max.ms` takes."""

READS_SHARED_MAX: Final = 64
"""Reads that one wake-up of fetch waiters remembers, so that equal ones share it."""

COPIED_BYTES_MAX: Final = 1 << 20
"""Bytes of an answer above which no more is copied out of the cache of objects in this turn."""

LOGS_CHANGED_PER_TURN: Final = 8
"""Partition logs that are made or deleted in one turn of the loop: milliseconds of system calls."""

SWITCH_PASSES_MAX: Final = 50
"""Passes over the logs of a topic that becomes diskless before its producers count as too fast."""

SWITCH_TAIL_BYTES: Final = 4 << 20
"""A pass that copied no more is the last before the fence."""

SWITCH_FENCE_SECONDS: Final = 10.0
"""How long producers may be kept out for the last copy; then the topic stays local."""

SWITCH_COMMITS_MAX: Final = 5
"""Commits of a switch between which somebody else changed the topic."""

SWITCH_PAUSE_SECONDS: Final = 0.5
"""Pause before a commit of unknown outcome is made again."""

SWITCH_POLL_SECONDS: Final = 0.1
"""How often a broker looks how far the others are with a topic that becomes diskless."""

SWITCH_PASS_SECONDS: Final = 1.0
"""How often one that waits for the others copies what was appended meanwhile."""

SWITCH_JOIN_SECONDS: Final = 30.0
"""How long the others have to begin."""

SWITCH_WAIT_SECONDS: Final = 20.0
"""How long a request waits for a switch, which goes on without it."""

LOOK_FOR_TOPICS_SECONDS: Final = 1.0
"""How long AddPartitionsToTxn waits for an image that has a topic it does not know."""
