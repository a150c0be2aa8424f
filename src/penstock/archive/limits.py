"""The bounds of what lies in a store, and of reading it."""

from __future__ import annotations

from typing import Final

OBJECT_BATCHES_MAX: Final = 100_000
"""Batches in one object; the footer takes 8 bytes for each."""

FOOTER_PARTITIONS_MAX: Final = 100_000
"""Partitions in one object; more are refused as damage before memory is taken."""

FOOTER_TAIL_BYTES: Final = 64 << 10
"""What is read from the end of an object for its footer; the rest, if there is more, comes next."""

MERGE_GAP_BYTES: Final = 64 << 10
"""Bytes between two ranges of an object below which they are read as one."""

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
