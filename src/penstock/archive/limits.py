"""Limits of archived data and of reading it."""

from __future__ import annotations

from typing import Final

OBJECT_BATCHES_MAX: Final = 100_000
"""Maximum number of batches in one object; the footer takes 8 bytes for each."""

FOOTER_PARTITIONS_MAX: Final = 100_000
"""Maximum number of partitions in one object; a higher number is rejected as damage."""

FOOTER_TAIL_BYTES: Final = 64 << 10
"""Bytes read from the end of an object for its footer; a second read fetches the rest."""

MERGE_GAP_BYTES: Final = 64 << 10
"""Gap between two ranges of an object below which they are read as one."""

CHUNK_BYTES: Final = 8 << 20
"""Bytes of extents that are read and checked together; a larger extent is a chunk of its own."""

CHUNK_EXTENTS_MAX: Final = 64

READS_AT_ONCE: Final = 8
"""Maximum number of ranges of a chunk that are read in parallel."""

PART_BYTES_MAX: Final = 4 << 20
"""Maximum size of an extent of a sealed segment, unless its first batch is larger. A lookup by
timestamp reads a whole extent, and retention drops whole ones."""

PART_BATCHES_MAX: Final = 4_096
"""Maximum number of batches of an extent of a sealed segment; every lookup returns their layout."""
