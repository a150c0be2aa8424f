"""State machine of a classic group, as tables.

                 ┌────────────── no members left ──────────────┐
                 ▼                                             │
    ──▶ Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──saved──▶ Stable
                              ▲                                  │                          │
                              └──── join, leave, expiry, sync timeout ◀─────────────────────┘

Each state may change to Dead, in which the group is being removed. Other tables contain the effect
of each request by state; they apply after the member id and the generation were checked.

Source: Kafka's `ClassicGroupState` and `GroupMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_ID_NOT_FOUND,
    Accepted,
)

NONE: Final = ""
FENCED_INSTANCE_ID: Final = "fenced_instance_id"
GROUP_MAX_SIZE_REACHED: Final = "group_max_size_reached"
ILLEGAL_GENERATION: Final = "illegal_generation"
INCONSISTENT_GROUP_PROTOCOL: Final = "inconsistent_group_protocol"
INVALID_GROUP_ID: Final = "invalid_group_id"
INVALID_REQUEST: Final = "invalid_request"
INVALID_SESSION_TIMEOUT: Final = "invalid_session_timeout"
MEMBER_ID_REQUIRED: Final = "member_id_required"
NON_EMPTY_GROUP: Final = "non_empty_group"
REBALANCE_IN_PROGRESS: Final = "rebalance_in_progress"
UNKNOWN_MEMBER_ID: Final = "unknown_member_id"


class GroupState(Enum):
    """State of a classic group; the values are the names in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE
_DEAD = GroupState.DEAD

PREVIOUS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    _EMPTY: frozenset({_PREPARING, _DEAD}),  # from Dead when the removal failed
    _PREPARING: frozenset({_EMPTY, _COMPLETING, _STABLE}),
    _COMPLETING: frozenset({_PREPARING}),
    _STABLE: frozenset({_COMPLETING}),
    _DEAD: frozenset({_EMPTY, _PREPARING, _COMPLETING, _STABLE}),
}
"""Allowed predecessors of each state."""

HEARTBEAT_ERRORS: Final[Mapping[GroupState, str]] = {
    _EMPTY: UNKNOWN_MEMBER_ID,
    _PREPARING: REBALANCE_IN_PROGRESS,
    _COMPLETING: NONE,
    _STABLE: NONE,
    _DEAD: COORDINATOR_NOT_AVAILABLE,
}

COMMIT_ERRORS: Final[Mapping[GroupState, str]] = {
    _EMPTY: NONE,
    _PREPARING: NONE,
    _COMPLETING: REBALANCE_IN_PROGRESS,
    _STABLE: NONE,
    _DEAD: COORDINATOR_NOT_AVAILABLE,
}

DELETE_ERRORS: Final[Mapping[GroupState, str]] = {
    _EMPTY: NONE,
    _PREPARING: NON_EMPTY_GROUP,
    _COMPLETING: NON_EMPTY_GROUP,
    _STABLE: NON_EMPTY_GROUP,
    _DEAD: GROUP_ID_NOT_FOUND,
}


class OnSync(Enum):
    UNKNOWN = UNKNOWN_MEMBER_ID
    REJOIN = REBALANCE_IN_PROGRESS
    NOT_AVAILABLE = COORDINATOR_NOT_AVAILABLE
    WAIT = "wait for the leader's assignment"
    ANSWER = "answer the assignment"


SYNC: Final[Mapping[GroupState, OnSync]] = {
    _EMPTY: OnSync.UNKNOWN,
    _PREPARING: OnSync.REJOIN,
    _COMPLETING: OnSync.WAIT,
    _STABLE: OnSync.ANSWER,
    _DEAD: OnSync.NOT_AVAILABLE,
}


class OnRejoin(Enum):
    UNKNOWN = UNKNOWN_MEMBER_ID
    NOT_AVAILABLE = COORDINATOR_NOT_AVAILABLE
    REBALANCE = "take part in the rebalance, starting one if needed"
    REBALANCE_IF_CHANGED = "repeat the answer if nothing changed, else rebalance"
    REBALANCE_IF_LEADER_OR_CHANGED = "repeat the answer unless the member leads or changed"


REJOIN: Final[Mapping[GroupState, OnRejoin]] = {
    _EMPTY: OnRejoin.UNKNOWN,
    _PREPARING: OnRejoin.REBALANCE,
    _COMPLETING: OnRejoin.REBALANCE_IF_CHANGED,
    _STABLE: OnRejoin.REBALANCE_IF_LEADER_OR_CHANGED,
    _DEAD: OnRejoin.NOT_AVAILABLE,
}


class Protocol(Struct, frozen=True, kw_only=True):
    """Assignment strategy that a member supports; `metadata` is its encoded subscription."""

    name: str
    metadata: bytes


class JoinGroup(Struct, frozen=True, kw_only=True):
    """JoinGroup request: a member joins or rejoins.

    `fresh_id` is a random text that makes a new member id unique. `member_id_required` is true from
    version 4 of the request on (KIP-394), `skip_assignment_known` from version 9 on (KIP-814).
    """

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    fresh_id: str
    member_id_required: bool = True
    skip_assignment_known: bool = True
    reason: str = ""


class Assignment(Struct, frozen=True, kw_only=True):
    member_id: str
    assignment: bytes


class SyncGroup(Struct, frozen=True, kw_only=True):
    """SyncGroup request: a member requests its assignment; the leader also sends all assignments.

    `protocol_type` and `protocol` are None if the request's version lacks these fields.
    """

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[Assignment, ...] = ()


class Heartbeat(Struct, frozen=True, kw_only=True):
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None


class LeavingMember(Struct, frozen=True, kw_only=True):
    """Member that leaves; `member_id` is empty if the request contains only the instance id."""

    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


class LeaveGroup(Struct, frozen=True, kw_only=True):
    group_id: str
    members: tuple[LeavingMember, ...]


Request = JoinGroup | SyncGroup | Heartbeat | LeaveGroup


class JoinedMember(Struct, frozen=True, kw_only=True):
    """Member in the leader's JoinGroup response. `metadata` is its subscription."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class Joined(Struct, frozen=True, kw_only=True):
    """JoinGroup response to a member of a generation; only the leader receives `members`."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class Synced(Struct, frozen=True, kw_only=True):
    protocol_type: str
    protocol: str
    assignment: bytes


class LeftMember(Struct, frozen=True, kw_only=True):
    """Outcome for one leaving member; `error` is empty on success."""

    member_id: str
    group_instance_id: str | None
    error: str = ""


class Left(Struct, frozen=True, kw_only=True):
    members: tuple[LeftMember, ...]


Response = Refused | Accepted | Joined | Synced | Left
