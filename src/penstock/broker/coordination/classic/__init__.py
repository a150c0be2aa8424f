"""Consumer groups of the classic protocol."""

from penstock.broker.coordination.classic.core import ClassicGroups
from penstock.broker.coordination.classic.events import (
    Assignment,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
    Request,
    SyncGroup,
)
from penstock.broker.coordination.classic.rebalance import GroupLimits
from penstock.broker.coordination.classic.responses import (
    Joined,
    JoinedMember,
    Left,
    LeftMember,
    Response,
    Synced,
)
from penstock.broker.coordination.classic.states import GroupState

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
