"""Requests of members of classic groups."""

from __future__ import annotations

from msgspec import Struct


class Protocol(Struct, frozen=True, kw_only=True):
    """Assignment strategy that a member supports, with its opaque subscription."""

    name: str
    metadata: bytes


class JoinGroup(Struct, frozen=True, kw_only=True):
    """A member joins or rejoins.

    `fresh_id` is random and makes a new member id unique. `member_id_required` is set from version
    4 on (KIP-394), `skip_assignment_known` from version 9 on (KIP-814).
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
    """A member requests its assignment; the leader sends all assignments.

    `protocol_type` and `protocol` are None where the request's version has no such field.
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
    """A leaving member; `member_id` is empty if only the instance is named."""

    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


class LeaveGroup(Struct, frozen=True, kw_only=True):
    group_id: str
    members: tuple[LeavingMember, ...]


Request = JoinGroup | SyncGroup | Heartbeat | LeaveGroup
