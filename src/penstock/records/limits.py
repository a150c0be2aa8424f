"""Default limits of this package; the caller may lower or raise each."""

from __future__ import annotations

from typing import Final

DECOMPRESSED_BATCH_BYTES_MAX: Final = 256 << 20
"""Most decompressed bytes of one batch."""

DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""Most decompressed bytes of all batches of one buffer together."""

PRODUCER_BATCHES_MAX: Final = 5
"""Batches in a producer's state: Kafka's clients have at most five in flight."""

WALKED_BYTES_MAX: Final = 2 << 20
"""Uncompressed bytes of an append that a broker walks in its event loop: some milliseconds."""
