"""Fixed bounds of the Kafka interface that are not settings."""

from __future__ import annotations

from typing import Final

SCRATCH_BYTES: Final = 256 << 10
"""Receive buffer that all connections of a loop share for small frames."""

SMALL_FRAME_BYTES: Final = 64 << 10
"""Largest frame that is copied from the shared buffer; a larger one that arrives in parts is
received into its own buffer."""

RECEIVE_BYTES_MAX: Final = 256 << 10
"""Bytes of a large frame received in one step. Between two steps the total limit is checked, and
above 4 MiB other connections are served."""

JOIN_BYTES: Final = 128 << 10
"""Largest response that is joined into one write; larger ones are written in pieces."""

WRITE_HIGH_WATER_BYTES: Final = 1 << 20
"""Unsent response bytes of a connection above which its requests are not read."""

FRAME_GRACE_SECONDS: Final = 5.0
"""Time limit for a frame to arrive, plus its size divided by the rate below."""

FRAME_BYTES_PER_SECOND_MIN: Final = 64 << 10

VERIFICATION_TRIES_MAX: Final = 6
"""Verification requests to a coordinator that is ending the last transaction."""

VERIFICATION_RETRY_MS: Final = 20
"""Pause between them; Kafka's `add.partitions.to.txn.retry.backoff.ms`."""

TICK_SECONDS: Final = 1.0
"""Interval of checks of connections, produce timeouts and the store's housekeeping."""

FINISH_LOOK_SECONDS: Final = 0.005
"""Interval at which a stopping broker checks whether the last requests are answered."""

HELD_UP_SECONDS: Final = 2.0
"""Timer delay that shows a blocked loop: received data is read before clients count as slow or
gone."""

READINESS_PROBE_SECONDS: Final = 2.0
"""Time limit of a probe of control plane, object store or disk. `/readyz` runs the probes
concurrently."""

READINESS_KEPT_SECONDS: Final = 1.0
"""Time for which a probe's result is reused."""

FREE_BYTES_MIN: Final = 256 << 20
"""Free bytes of the data directory's disk below which the broker is not ready."""

WARNING_SECONDS: Final = 60.0
"""Time between two warnings of a kind about the same address."""

WARNED_ADDRESSES_MAX: Final = 1024
"""Addresses, times kinds of warnings, whose last warning is stored."""

METADATA_CACHE_ENTRIES: Final = 256
"""Encoded Metadata responses cached until the image changes."""

METADATA_CACHE_BYTES: Final = 32 << 20

FETCH_SESSION_IDLE_SECONDS: Final = 120.0
"""Idle time after which a fetch session may be evicted for a new one (as in Kafka)."""

FETCH_WAIT_SECONDS_MAX: Final = 300.0
"""Longest wait of Fetch and ShareFetch, whatever `max_wait` is: the maximum of librdkafka's
`fetch.wait.max.ms`."""

READS_SHARED_MAX: Final = 64
"""Reads that one wake-up of fetch waiters caches for equal reads."""

COPIED_BYTES_MAX: Final = 1 << 20
"""Response bytes above which no more is copied from the object cache in this turn."""

LOGS_CHANGED_PER_TURN: Final = 8
"""Partition logs created or deleted in one turn of the loop: milliseconds of system calls."""

SWITCH_PASSES_MAX: Final = 50
"""Passes over the logs of a topic that becomes diskless before its producers count as too fast."""

SWITCH_TAIL_BYTES: Final = 4 << 20
"""Largest size of a pass that is the last one before the fence."""

SWITCH_FENCE_SECONDS: Final = 10.0
"""Longest time that producers are fenced for the last copy; afterwards the topic stays local."""

SWITCH_COMMITS_MAX: Final = 5
"""Attempts to commit a switch while others change the topic."""

SWITCH_PAUSE_SECONDS: Final = 0.5
"""Pause before a commit of unknown outcome is retried."""

SWITCH_POLL_SECONDS: Final = 0.1
"""Interval at which a broker checks the others' progress with a switch."""

SWITCH_PASS_SECONDS: Final = 1.0
"""Interval at which a broker that waits for the others copies new records."""

SWITCH_JOIN_SECONDS: Final = 30.0
"""Time limit for the others to begin."""

SWITCH_WAIT_SECONDS: Final = 20.0
"""Longest wait of a request for a switch, which continues afterwards."""

LOOK_FOR_TOPICS_SECONDS: Final = 1.0
"""Longest wait of AddPartitionsToTxn for an image with an unknown topic."""
