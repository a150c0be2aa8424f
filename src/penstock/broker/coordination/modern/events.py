"""What members of groups that heartbeat say, and are told, whatever the kind of their group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.broker.coordination.assignors import Partitions

JOIN: Final = 0
LEAVE: Final = -1
"""What a heartbeat says instead of an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """A member's epoch, and what it may read, unless that is as it was (None)."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assigned: Partitions | None = None
