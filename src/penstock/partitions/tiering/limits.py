"""The bounds of this package that are no settings."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

CHUNK_BYTES: Final = 8 << 20
"""What is read at once of a segment for one consumer, and again ahead of it."""

CHUNKS_AHEAD: Final = 3
"""Chunks that are read ahead, side by side."""

REST_SHARE: Final = 4
"""What is left of a segment comes with its last chunk, up to such a part of it."""

CHUNK_BYTES_MIN: Final = 1 << 20
"""What it is at least, where many consumers share what may be ready."""

READY_BYTES_MAX: Final = 128 << 20
"""Batches that were read and wait for the fetch that wants them."""

READY_SECONDS: Final = 30.0
"""How long they wait."""

READY_SHARE: Final = 4
"""A consumer's chunks may take one `READY_SHARE`th of its part of what may be ready."""

LOADING_BYTES_MAX: Final = 256 << 20
"""Bytes that are under way from the store at a time; more wait for their turn."""

LOADS_MAX: Final = 1_024
"""Loads under way or waiting for their turn; more are tried again at the next fetch."""

INLINE_BYTES_MAX: Final = 256 << 10
"""Chunks above this are verified on a thread."""

ROWS_PER_PAGE: Final = 100
"""Segments that are asked for at once."""

ROWS_SECONDS: Final = 30.0
"""How long what the control plane said of segments is believed: far below the sweeper's grace."""

ROW_PAGES_MAX: Final = 1_024
"""Partitions of which such a page is kept."""

LOOKUPS_AT_ONCE: Final = 16
"""Positions by time that are looked up side by side."""

ABORTED_PAGES_MAX: Final = 1_000
"""Pages of segments with aborted transactions that one read looks through."""

MARKS_PER_CALL: Final = 1_000
"""Partitions whose tiers are asked for at once."""

STEPS_PER_LOOK_MAX: Final = 1_000
"""What is done for one partition before others have their turn."""

LOOKS_PER_LIFE: Final = 100
"""How old the oldest segment is, is looked at once per such a part of `retention.ms`."""

LAG_LOOKS: Final = 8
"""Looks over which what waits to be copied counts as growing."""

RETRY: Final = Backoff(first_ms=500, ceiling_ms=60_000, steady=0.5)
"""Pauses of a partition whose copying failed."""

FORGET_SECONDS: Final = 30.0
"""Time between two looks for the tiers of topics that are gone."""

FORGET_CALLS_MAX: Final = 100
"""Calls of one such look."""
