"""Special heartbeat epochs, and the heartbeat response, of consumer and share groups."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.broker.coordination.assignors import Partitions

JOIN: Final = 0
LEAVE: Final = -1
"""Epochs in the heartbeats of a member that joins (`JOIN`) or leaves (`LEAVE`)."""


class HeartbeatResponse(Struct, frozen=True, kw_only=True):
    """Heartbeat response. `assigned` is the assignment of the member; None if it is unchanged."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assigned: Partitions | None = None
