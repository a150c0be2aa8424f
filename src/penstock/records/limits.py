"""Default limits of this package; the caller may lower or raise each."""

from __future__ import annotations

from typing import Final

BATCHES_MAX: Final = 1 << 20
"""Batches in one buffer: 64 MiB of the smallest possible batches."""

DECOMPRESSED_BATCH_BYTES_MAX: Final = 256 << 20
"""Most decompressed bytes of one batch."""

DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""Most decompressed bytes of all batches of one buffer together."""

BATCH_BYTES_MAX: Final = 1 << 20
"""Largest encoded batch by default (Kafka's `message.max.bytes` is 1 MiB + 12)."""

BATCH_RECORDS_MAX: Final = 20_000
"""Most records in an encoded batch."""

SNAPPY_EXPANSION_MAX: Final = 64
"""Snappy's densest element writes 64 bytes from three; a larger claim is invalid."""

COMPRESSED_MEMBERS_MAX: Final = 1024
"""Most gzip members in one batch; clients write one."""

PRODUCER_BATCHES_MAX: Final = 5
"""Batches in a producer's state: Kafka's clients have at most five in flight."""

VALIDATED_BATCH_BYTES_MAX: Final = 64 << 20
"""Most decompressed bytes of a batch that a broker validates."""

OPENED_REQUEST_BYTES_MAX: Final = 512 << 20
"""Most decompressed bytes of all batches of a produce request that a broker validates."""

WALKED_BYTES_MAX: Final = 2 << 20
"""Uncompressed bytes of an append that a broker walks in its event loop: some milliseconds."""

REFUSED_RECORDS_NAMED_MAX: Final = 100
"""Records of a rejected batch that its response names."""
