"""Every bound of the sinks, by name; each is the default of an argument or option."""

from __future__ import annotations

from typing import Final

FRAME_BYTES_MAX: Final = 16 << 20
"""Largest frame that the null and memory sinks take; the log sink's follows from its log."""
MEMORY_BYTES_MAX: Final = 256 << 20
"""Bytes that the memory sink holds until they are drained."""
MEMORY_FRAMES_MAX: Final = 100_000
"""Frames that the memory sink holds until they are drained."""

RETAINED_BYTES_MAX: Final = 64 << 20
"""Payload bytes that a sink accepted and has not completed; further frames are returned."""
RETAINED_FRAMES_MAX: Final = 65_536
"""Frames likewise: small ones cost more than their payload."""
RETRY_AFTER_MS: Final = 50
"""When a producer may try again whose frame found a full queue."""

LOG_MESSAGE_BYTES_MAX: Final = 1_048_588
"""Kafka's and Penstock's default of max.message.bytes."""
LOG_DELIVERY_TIMEOUT_MS: Final = 30_000
"""Longest time from a batch's first attempt to giving its frame back to the producer."""
LOG_REQUEST_TIMEOUT_MS: Final = 10_000
"""Longest wait for the log's answer to one request."""
LOG_STALL_MS: Final = 1_000
"""Age of a frame without an answer, and time without an answer to a check, after which the check
asks brokers for the cause."""
LOG_API_TIMEOUT_MS: Final = 10_000
"""Longest time to start, or to introduce a producer, with retries."""

PRODUCER_ID_BITS: Final = 62
"""Of the random producer ids that sinks without a log give out."""

JOINED_MAX: Final = 8
"""How often the same frame may wait for one write of the outbox."""

SENT_BACK_MAX: Final = 4096
"""Frames sent back of which the outbox sink remembers the time of the first attempt."""
