"""Default limits of this package; callers may pass other values."""

from __future__ import annotations

from typing import Final

DECOMPRESSED_BATCH_BYTES_MAX: Final = 256 << 20
"""Most decompressed bytes of one batch."""

DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""Most decompressed bytes of all batches of one buffer together."""

PRODUCER_BATCHES_MAX: Final = 5
"""Number of batches in a producer's state; Kafka's clients have at most five in flight."""

WALKED_BYTES_MAX: Final = 2 << 20
"""Most uncompressed bytes of an append that a broker checks in its event loop, in milliseconds."""
