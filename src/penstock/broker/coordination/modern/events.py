"""Heartbeat epochs and the heartbeat response of all kinds of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.broker.coordination.assignors import Partitions

JOIN: Final = 0
LEAVE: Final = -1
"""Value in place of the epoch in a member's heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """A member's epoch and its assignment; None if that is unchanged."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assigned: Partitions | None = None
