"""The bed of consolidation, over memory."""

from __future__ import annotations

from tests.diskless.consolidation.conftest import bed, clock, plane

__all__ = ["bed", "clock", "plane"]
