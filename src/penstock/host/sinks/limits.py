"""Limits of the sinks; each is the default of a parameter or option."""

from __future__ import annotations

from typing import Final

FRAME_BYTES_MAX: Final = 16 << 20
"""Maximum frame of the null and memory sinks; that of the log sink follows from its log."""

RETAINED_BYTES_MAX: Final = 64 << 20
"""Maximum payload bytes that a sink holds without a verdict; further frames are failed as
retryable.
"""
RETAINED_FRAMES_MAX: Final = 65_536
"""Maximum number of such frames, because small frames cost more than their payload."""
RETRY_AFTER_MS: Final = 50
"""Time in milliseconds after which a producer may retry a frame that found the sink full."""

PRODUCER_ID_BITS: Final = 62
"""Bits of the random producer ids that sinks without a log assign."""
