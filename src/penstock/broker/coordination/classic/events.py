"""Requests of members of classic groups."""

from __future__ import annotations

from msgspec import Struct


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
