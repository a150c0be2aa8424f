"""The desk of consolidation, over memory."""

from __future__ import annotations

from tests.diskless.consolidation.conftest import clock, desk, plane

__all__ = ["clock", "desk", "plane"]
