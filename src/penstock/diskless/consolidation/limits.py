"""Bounds of consolidation that are no settings."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

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
