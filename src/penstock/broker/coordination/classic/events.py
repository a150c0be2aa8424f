"""Requests of members of classic groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One assignment strategy that a member can follow, with its opaque subscription."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    """A member enters the group or returns for the next generation.

    `fresh_id` makes a new member id unique: the shell draws it, cores have no dice.
    `member_id_required` is set from version 4 on (KIP-394), `skip_assignment_known` from
    version 9 on (KIP-814).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What the leader gives to one member, opaque."""

    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    """A member asks for its assignment; the leader brings all of them.

    `protocol_type` and `protocol` are None where the request's version has no such field.
    """

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[Assignment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A member says that it lives, and asks whether it must rejoin."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """One of the members that leave; `member_id` is empty when only the instance is named."""

    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    """Members leave, or an administrator removes static members."""

    group_id: str
    members: tuple[LeavingMember, ...]


Request = JoinGroup | SyncGroup | Heartbeat | LeaveGroup
