"""Limits of compaction."""

from __future__ import annotations

from typing import Final

PAGE_EXTENTS: Final = 1_000
PASS_EXTENTS_MAX: Final = 20_000
"""Extents from a partition's start on that a pass reads; the next pass takes the others."""

ABORTED_PAGE: Final = 1_000
ABORTED_MAX: Final = 100_000
"""Aborted transactions in the extents of a pass, which takes fewer extents to meet it."""
