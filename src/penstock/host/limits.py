"""Limits of host ingest that are not settings."""

from __future__ import annotations

from typing import Final

VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
"""Lowest and highest supported version of the protocol."""

CHUNKS_PER_FRAME_MAX: Final = 4096
"""Maximum number of chunks in a DATA_BATCH frame.

Three arrays of as many 32-bit numbers fit into a header.
"""

TOPICS_PER_HELLO_MAX: Final = 256
"""Maximum number of topics that one producer may name."""

REASON_CHARS_MAX: Final = 512
"""Maximum number of characters of a reason in an answer."""

SEQUENCE_MAX: Final = 2**63 - 1
EVENTS_PER_FRAME_MAX: Final = 2**31 - 1
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
"""Maximum producer epoch; Kafka's epochs are signed 16-bit numbers."""

PARTITION_MAX: Final = 2**31 - 1
"""Maximum partition; Kafka's partitions are signed 32-bit numbers."""

LOG_SEQUENCES: Final = 2**31
"""Number of record sequences of a producer partition, after which they wrap, as in Kafka."""
