"""Bounds of host ingest that are no settings: each is a fact of the design, named once."""

from __future__ import annotations

from typing import Final

VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
"""The versions of the protocol that this code speaks."""

CHUNKS_PER_FRAME_MAX: Final = 4096
"""Chunks of one DATA_BATCH: three arrays of as many 32-bit numbers still fit a header."""

TOPICS_PER_HELLO_MAX: Final = 256
"""Topics that one producer may name."""

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
