"""Every bound of the sinks, by name; each is the default of an argument or option."""

from __future__ import annotations

from typing import Final

FRAME_BYTES_MAX: Final = 16 << 20
"""Largest frame that the null and memory sinks take; the log sink's follows from its log."""

RETAINED_BYTES_MAX: Final = 64 << 20
"""Payload bytes that a sink accepted and has not completed; further frames are returned."""
RETAINED_FRAMES_MAX: Final = 65_536
"""Frames likewise: small ones cost more than their payload."""
RETRY_AFTER_MS: Final = 50
"""When a producer may try again whose frame found a full queue."""

PRODUCER_ID_BITS: Final = 62
"""Of the random producer ids that sinks without a log give out."""
