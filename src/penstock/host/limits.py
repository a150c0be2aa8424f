"""Bounds of host ingest that are no settings: each is a fact of the design, named once."""

from __future__ import annotations

from typing import Final

VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
"""The versions of the protocol that this code speaks."""

CHUNKS_PER_FRAME_MAX: Final = 4096
"""Chunks of one DATA_BATCH: three arrays of as many 32-bit numbers still fit a header."""

DENIED_TOPICS_MAX: Final = 100
"""Refused topics of one connection that are told apart, for the audit log."""

TOPICS_PER_HELLO_MAX: Final = 256
"""Topics that one producer may name."""

RANGES_PER_FRAME_MAX: Final = 1024
"""Ranges of sequences in one ACCEPTED frame."""

REASON_CHARS_MAX: Final = 512
"""A reason is a sentence, not a traceback."""

SEQUENCE_MAX: Final = 2**63 - 1
EVENTS_PER_FRAME_MAX: Final = 2**31 - 1
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
"""Kafka's producer epochs have 16 bits with a sign."""

PARTITION_MAX: Final = 2**31 - 1
"""Kafka's partitions have 32 bits with a sign."""

LOG_SEQUENCES: Final = 2**31
"""Record sequences within a producer partition wrap here, as Kafka's do."""

LANE_BATCHES_IN_FLIGHT_MAX: Final = 5
"""Record batches of a producer partition that may be unacknowledged: what the log remembers of a
producer.
"""

SMALL_FRAME_BYTES: Final = 64 << 10
"""The beginning of a frame up to this size is copied when a turn ends within it."""

SCRATCH_BYTES: Final = (1 << 20) + (80 << 10)
"""The block that all connections of an agent receive into: a payload of 1 MiB, and its header."""

BLOCKS_ON_LOAN_MAX: Final = 8
"""Blocks that connections may take along in the middle of a large frame."""

RECEIVE_BYTES_MAX: Final = 1 << 20
"""What is received of a large frame in one step; others have their turn in between."""

TURN_BYTES: Final = 4 << 20
"""What is received from one producer before others have their turn, and before it is answered."""

INTRODUCE_MS: Final = 4_000
"""What the sink has to say about a producer: less than a client waits for the answer to HELLO, so
that it hears the reason."""

SINK_CHECK_MS: Final = 3_000
"""Longest time for a check of the sink."""

SINK_CHECK_PAUSE_MS: Final = 1_000
"""Pause between two checks of the sink."""

HELLO_BYTES_MAX: Final = 64 << 10
"""What is received at once while a descriptor may come along."""

ANSWER_BACKLOG_BYTES_MAX: Final = 256 << 10
"""Unsent answers of a producer above which nothing more is read from it."""

ANSWER_STALL_MS: Final = 10_000
"""A producer that reads none of its answers for so long is cut off."""

LAST_ANSWER_MS: Final = 1_000
"""How long a connection that ends waits for its last answer to leave."""

FRAME_GRACE_MS: Final = 5_000.0
FRAME_BYTES_PER_MS_MIN: Final = 64
"""A frame may take the grace, and its size by this rate, to arrive."""

PARTITIONS_PER_PRODUCER_MAX: Final = 65_536
"""Partitions that one producer may number its frames for; it remembers each as long as it lives."""
