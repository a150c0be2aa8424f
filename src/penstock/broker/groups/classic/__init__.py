"""Consumer groups of the classic protocol."""

from penstock.broker.groups.classic.core import ClassicGroups
from penstock.broker.groups.classic.rebalance import GroupLimits
from penstock.broker.groups.classic.states import (
    Assignment,
    GroupState,
    Heartbeat,
    Joined,
    JoinedMember,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    LeftMember,
    Protocol,
    Request,
    Response,
    Synced,
    SyncGroup,
)

__all__ = [
    "Assignment",
    "ClassicGroups",
    "GroupLimits",
    "GroupState",
    "Heartbeat",
    "JoinGroup",
    "Joined",
    "JoinedMember",
    "LeaveGroup",
    "LeavingMember",
    "Left",
    "LeftMember",
    "Protocol",
    "Request",
    "Response",
    "SyncGroup",
    "Synced",
]
