"""Limits of consolidation."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

PAGE_EXTENTS: Final = 1_001
"""Extents of a page: more than a run has, so that a page includes the run's end."""

BACKLOGS_MAX: Final = 1_000
"""Partitions of one pass, those with the most extents."""

REMEMBERED_MAX: Final = 100_000
"""Partitions whose progress is stored."""

SWAP_ATTEMPTS_MAX: Final = 5
"""Attempts at a swap whose outcome is unknown."""

SWAP_BACKOFF: Final = Backoff(first_ms=200)
"""Pauses before the repetitions."""
