"""Heartbeat epochs and the heartbeat response of all kinds of groups."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.broker.coordination.assignors import Partitions

JOIN: Final = 0
LEAVE: Final = -1
"""Value in place of the epoch in a member's heartbeat."""


class HeartbeatResponse(Struct, frozen=True, kw_only=True):
    """A member's epoch and its assignment; None if that is unchanged."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assigned: Partitions | None = None
