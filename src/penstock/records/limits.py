"""The bounds of this package; each is a default that the caller may lower or raise."""

from __future__ import annotations

from typing import Final

BATCHES_MAX: Final = 1 << 20
"""Batches in one buffer: 64 MiB of the smallest batches there are."""

DECOMPRESSED_BATCH_BYTES_MAX: Final = 256 << 20
"""What one compressed batch may unpack to."""

DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""What all compressed batches of one buffer may unpack to together."""

BATCH_BYTES_MAX: Final = 1 << 20
"""Size that an encoded batch aims to stay below (Kafka's `message.max.bytes` is 1 MiB + 12)."""

BATCH_RECORDS_MAX: Final = 20_000
"""Records in an encoded batch."""

SNAPPY_EXPANSION_MAX: Final = 64
"""Snappy's densest element writes 64 bytes from three; a larger claim is a lie."""

COMPRESSED_MEMBERS_MAX: Final = 1024
"""Gzip members in one batch; clients write one."""

PRODUCER_BATCHES_MAX: Final = 5
"""Batches remembered per producer: Kafka's clients have at most five in flight."""

VALIDATED_BATCH_BYTES_MAX: Final = 64 << 20
"""What a compressed batch may unpack to in a broker that looks inside before it stores it."""

OPENED_REQUEST_BYTES_MAX: Final = 512 << 20
"""What all batches of one produce request may unpack to in a broker that looks inside."""

WALKED_BYTES_MAX: Final = 2 << 20
"""Uncompressed batches of an append that a broker walks in its event loop: some milliseconds."""

REFUSED_RECORDS_NAMED_MAX: Final = 100
"""Records of a refused batch that its answer names."""
