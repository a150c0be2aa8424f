"""Bounds of compaction that are no settings."""

from __future__ import annotations

from typing import Final

PAGE_EXTENTS: Final = 1_000
PASS_EXTENTS_MAX: Final = 20_000
"""Extents that a pass looks at, from a partition's start on; the next one sees what is behind."""

ABORTED_PAGE: Final = 1_000
ABORTED_MAX: Final = 100_000
"""Aborted transactions of what a pass takes: where there are more, it takes less."""
