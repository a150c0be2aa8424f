"""Bounds of consolidation that are no settings."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

CHUNK_BYTES: Final = 8 << 20
"""Bytes of extents that are read and checked together; a larger extent is a chunk of its own."""

CHUNK_EXTENTS_MAX: Final = 64
"""Extents of one chunk."""

READS_AT_ONCE: Final = 8
"""Ranges of a chunk that are read at the same time."""

PART_BYTES_MAX: Final = 4 << 20
"""Bytes of one extent of a sealed segment, unless its first batch alone is larger. A look-up by
time reads a whole extent, and retention drops whole ones."""

PART_BATCHES_MAX: Final = 4_096
"""Batches of one extent of a sealed segment: their layout comes with every find."""

PAGE_EXTENTS: Final = 1_001
"""Extents that are looked at together. More than a run has, so that its end is seen."""

BACKLOGS_MAX: Final = 1_000
"""Partitions of one pass, those with the most extents."""

REMEMBERED_MAX: Final = 100_000
"""Partitions of which it is remembered how far they are done."""

SWAP_ATTEMPTS_MAX: Final = 5
"""How often a swap is repeated whose outcome is unknown."""

SWAP_BACKOFF: Final = Backoff(first_ms=200)
"""Pauses before the repetitions."""
